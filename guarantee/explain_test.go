package guarantee

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/gobridge/gobridge/config"
	"github.com/gobridge/gobridge/kinds"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// explained reads a config of testdata, with texts replaced in pairs, and explains it.
func explained(t *testing.T, name string, replace ...string) *Report {
	t.Helper()
	file := filepath.Join("testdata", name+".yaml")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer(replace...).Replace(string(data))
	if len(replace) > 0 && text == string(data) {
		t.Fatalf("%s: nothing to replace", name)
	}
	all := kinds.All()
	f, diags := config.Load(file, []byte(text), all)
	if config.HasErrors(diags) {
		t.Fatalf("%v", diags)
	}
	return Explain(&f.Spec, all)
}

// cases is what each config comes to: the rows by which the bridge itself can lose a
// message, filter by filter, and the strongest change.
var cases = []struct {
	config string
	lost   []string
	change []string // one for each filter, how it begins
}{
	{"direct-hold", nil, []string{"delivery_mode: shared_outbox"}},
	{
		"mixed-qos",
		[]string{"route up, filter live/#: G04 G17 outage"},
		[]string{"qos: 1 for the filter", "delivery_mode: shared_outbox", "delivery_mode: shared_outbox"},
	},
	{"qos-0", []string{"route up, filter live/#: G04 G17 outage"}, []string{"qos: 1 for the filter, with session_mode: persistent"}},
	{"outbox", nil, []string{"a unique mqtt.message-id"}},
	{"outbox-ephemeral", []string{"route up, filter sensors/#: G07"}, []string{"session_mode: persistent"}},
	{"outbox-memory", []string{"route up, filter sensors/#: G08"}, []string{"stores.outbox.type: sqlite"}},
	{"drop", []string{"route up, filter sensors/#: G13 G14 G15"}, []string{"on_permanent_failure: dlq"}},
	{"drop-expired-outbox", []string{"route up, filter sensors/#: G12"}, []string{"on_expired: dlq"}},
	{
		"no-dlq",
		[]string{"route up, filter live/#: G04 G14 G15 outage", "route up, filter sensors/#: G13 G14 G15"},
		[]string{"qos: 1 for the filter", "on_permanent_failure: dlq, without stores.dlq.type: none"},
	},
	{"dlq-memory", []string{"route up, filter sensors/#: G13 G14 G15"}, []string{"stores.dlq.type: sqlite"}},
	{"fan-out", nil, []string{"delivery_mode: shared_outbox (each binding"}},
	{"fan-out-outbox", nil, []string{"a unique mqtt.message-id"}},
	{"fan-out-memory", []string{"route up, filter sensors/#: G08 fan-out"}, []string{"stores.outbox.type: sqlite"}},
	{"exclusive", nil, []string{"a unique mqtt.message-id"}},
	{"share", nil, []string{"delivery_mode: shared_outbox"}},
	{"share-ephemeral", []string{"route up, filter $share/bridges/sensors/#: G07"}, []string{"session_mode: persistent"}},
	{"identity", nil, []string{"identity: message_id"}},
	{"identity-message-id", nil, []string{"delivery_mode: shared_outbox"}},
	{"outage-fails", nil, []string{"on_unavailable: hold"}},
	{"outage-fails-outbox", []string{"route up, filter sensors/#: G12 outage"}, []string{"on_permanent_failure: dlq"}},
	{"short-expiry", nil, []string{"session_expiry_interval: 86400"}},
	{"no-expiry", nil, []string{"a unique mqtt.message-id"}},
	{"send-qos-0", []string{"route up, filter sensors/#: unconfirmed-send"}, []string{"qos: 1 for sender to-cloud"}},
	{"send-preserve", nil, []string{"delivery_mode: shared_outbox"}},
	{"downgrade", []string{"route up, filter sensors/#: downgrade"}, []string{"on_qos_downgrade: fail"}},
}

func TestConfigsComeToTheirPromise(t *testing.T) {
	for _, c := range cases {
		t.Run(c.config, func(t *testing.T) {
			r := explained(t, c.config)
			if diff := cmp.Diff(c.lost, r.Lost()); diff != "" {
				t.Errorf("lost by the bridge (-want +got):\n%s", diff)
			}
			if r.NoSourceSideLoss != (len(c.lost) == 0) {
				t.Errorf("no source-side loss: %t", r.NoSourceSideLoss)
			}
			filters := r.Routes[0].Filters
			if len(filters) != len(c.change) {
				t.Fatalf("%d filters, want %d", len(filters), len(c.change))
			}
			for i, f := range filters {
				if got := f.Change.Write + " (" + f.Change.Why + ")"; !strings.HasPrefix(got, c.change[i]) {
					t.Errorf("%s: strongest change %q, want %q", f.Topic, got, c.change[i])
				}
			}
		})
	}
}

// What is called the strongest change closes the loss that it speaks of.
func TestStrongestChangesCloseWhatTheySpeakOf(t *testing.T) {
	for _, c := range []struct {
		config, old, new string
		lost             []string
	}{
		{"qos-0", "qos: 0", "qos: 1", nil},
		{"mixed-qos", "qos: 0", "qos: 1", nil},
		{"outbox-memory", "type: memory", "type: sqlite", nil},
		{"outbox-ephemeral", "session_mode: ephemeral", "session_mode: persistent", nil},
		{"downgrade", "on_qos_downgrade: accept", "on_qos_downgrade: fail", nil},
		{"send-qos-0", "qos: 0", "qos: 1", nil},
		{"dlq-memory", "type: memory", "type: sqlite", nil},
		{"drop", "on_permanent_failure: drop", "on_permanent_failure: dlq", []string{"route up, filter sensors/#: G15"}},
		{"drop-expired-outbox", "on_expired: drop", "on_expired: dlq", nil},
		{"outage-fails-outbox", "on_permanent_failure: drop", "on_permanent_failure: dlq", nil},
	} {
		if diff := cmp.Diff(c.lost, explained(t, c.config, c.old, c.new).Lost()); diff != "" {
			t.Errorf("%s with %s: lost by the bridge (-want +got):\n%s", c.config, c.new, diff)
		}
	}
}

// golden compares got with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	name = filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(name, []byte(got), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got; go test -update writes it):\n%s", name, diff)
	}
}

func TestTextForPeople(t *testing.T) {
	for _, c := range cases {
		t.Run(c.config, func(t *testing.T) {
			var out bytes.Buffer
			if err := explained(t, c.config).WriteText(&out); err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(out.String()) {
				if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > width {
					t.Errorf("a line has %d characters: %s", n, line)
				}
			}
			golden(t, c.config+".txt", out.String())
		})
	}
}

func TestJSONIsStable(t *testing.T) {
	for _, name := range []string{"mixed-qos", "outbox"} {
		out, err := json.MarshalIndent(explained(t, name), "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		golden(t, name+".json", string(out)+"\n")
	}
}

// Each row of the matrix has a config to which it applies, so that the expected files
// show it, and each config its expected text.
func TestEveryRowIsExplainedSomewhere(t *testing.T) {
	shown := map[string]bool{}
	var named []string
	for _, c := range cases {
		named = append(named, filepath.Join("testdata", c.config+".yaml"))
		for _, f := range explained(t, c.config).Routes[0].Filters {
			for _, p := range f.Packets {
				for _, g := range p.Findings {
					shown[g.Row] = true
				}
			}
		}
	}
	for _, r := range rows {
		if r.apply != nil && !shown[r.ID] {
			t.Errorf("%s applies to no config of testdata", r.ID)
		}
	}
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(named)
	if diff := cmp.Diff(named, files); diff != "" {
		t.Errorf("configs (-tested +there):\n%s", diff)
	}
}

// Rows are about packets: what a publisher sends at QoS 0 is no fault of a filter that
// asks for more, and a filter of QoS 0 has nobody else to blame.
func TestQoS0IsBlamedOnWhoChoseIt(t *testing.T) {
	filters := explained(t, "mixed-qos").Routes[0].Filters
	outside := func(p Packets, row string) bool {
		i := slices.IndexFunc(p.Findings, func(f Finding) bool { return f.Row == row })
		if i < 0 {
			t.Fatalf("%s does not apply to QoS %d", row, p.QoS)
		}
		return p.Findings[i].Outside
	}
	if f := filters[0]; len(f.Packets) != 1 || outside(f.Packets[0], "G04") {
		t.Errorf("filter of QoS 0: %+v, want its own packets, lost by its own choice", f.Packets)
	}
	for _, f := range filters[1:] {
		if len(f.Packets) != 2 || f.Packets[0].QoS != f.QoS || !f.Packets[1].ByPublisher || !outside(f.Packets[1], "G04") {
			t.Errorf("filter of QoS %d: %+v, want its own packets and those of publishers at QoS 0", f.QoS, f.Packets)
		}
	}
}
