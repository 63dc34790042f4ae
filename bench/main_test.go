package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/gobridge/gobridge/bridgetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"-n", "0"}, "over 0"},
		{[]string{"-rounds", "0"}, "over 0"},
		{[]string{"-duration", "-1s"}, "over 0"},
		{[]string{"-size", "8"}, "-size 8: must be 16 to 65536"},
		{[]string{"-only", "("}, "missing closing )"},
		{[]string{"all"}, `unexpected argument "all"`},
	} {
		if _, err := parseOptions(tc.args, t.Output()); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v: got %v, want an error with %q", tc.args, err, tc.want)
		}
	}
}

func TestOnlySelectsByName(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		only string
		want []string
	}{
		{"fake", []string{
			"fake/direct", "fake/mosquitto-200", "fake/mosquitto-1000", "fake/gobridge", "fake/gobridge-1000", "fake/gobridge-outbox", "fake/gobridge-outbox-1000",
		}},
		{"/gobridge$", []string{"brokers/gobridge", "fake/gobridge"}},
		{"inside", []string{"brokers/mosquitto-inside"}},
		{"nobody", nil},
	} {
		o, err := parseOptions([]string{"-only", tc.only}, t.Output())
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, j := range o.jobs() {
			got = append(got, j.setting.name+"/"+j.contender.name)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("-only %s (-want +got):\n%s", tc.only, diff)
		}
	}
}

func TestEveryPeerIsAContender(t *testing.T) {
	t.Parallel()
	for _, c := range contenders {
		if c.peer != "" && contenderNamed(c.peer).name != c.peer {
			t.Errorf("%s is compared with %s, which does not exist", c.name, c.peer)
		}
	}
}

// A short run of every kind of contender: the figures mean nothing, the machinery must
// work and leave no file behind.
func TestShortRunMeasuresEveryKind(t *testing.T) {
	bridgetest.RequireMosquitto(t)
	binary := bridgetest.BuildBinary(t) // before TMPDIR changes: it outlives this test
	files := t.TempDir()
	t.Setenv("TMPDIR", files)
	record := filepath.Join(t.TempDir(), "record.json")
	args := []string{
		"-only", "/(direct|mosquitto-inside|mosquitto-200|gobridge)$", "-n", "500", "-rounds", "1", "-duration", "100ms", "-json", record,
		"-gobridge", binary,
	}
	var out bytes.Buffer
	if err := run(t.Context(), args, &out, t.Output()); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	var rep report
	text, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &rep); err != nil {
		t.Fatal(err)
	}
	if len(rep.Results) != 4+3 {
		t.Errorf("got %d runs, want 4 between brokers and 3 between fakes", len(rep.Results))
	}
	for _, r := range rep.Results {
		want := []metric{msgRate, loadCPU, flatCount}
		if r.Setting == "brokers" {
			want = append(want, bothCPU, latencyP50, latencyP99)
		}
		if contenderNamed(r.Contender).kind.separate() {
			want = append(want, bridgeCPU, peakRSS)
			if r.Setting == "brokers" {
				want = append(want, startUp, idleRSS, pacedCPU)
			}
		}
		for _, m := range want {
			if r.Values[m] <= 0 {
				t.Errorf("%s/%s: %s is %v, want over 0", r.Setting, r.Contender, m, r.Values[m])
			}
		}
	}
	for _, title := range []string{"Flat out between two", "Paced between two", "fake source and sink", "Footprint", "Deliveries"} {
		if !strings.Contains(out.String(), title) {
			t.Errorf("the report has no part %q:\n%s", title, out.String())
		}
	}
	left, err := os.ReadDir(files)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range left {
		if strings.HasPrefix(f.Name(), "gobridge-bench-") {
			t.Errorf("%s was left behind", f.Name())
		}
	}
}

// Without a bridge the load meets its own counter over a real connection: nothing of
// it may be lost, and no other program is needed.
func TestLoadArrivesWithoutABridge(t *testing.T) {
	t.Parallel()
	l := load{messages: 5000, size: 64, rate: 1000, duration: 1}
	res := settings[1].measure(t.Context(), &programs{}, contenders[0], l, t.TempDir(), 1)
	if res.Error != "" {
		t.Fatal(res.Error)
	}
	for m, want := range map[metric]float64{flatCount: 5000, lost: 0, duplicates: 0, outOfOrder: 0} {
		if res.Values[m] != want {
			t.Errorf("%s is %v, want %v", m, res.Values[m], want)
		}
	}
}
