package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gobridge/gobridge/admin"
)

func TestInterruptCancelsTheRedrive(t *testing.T) {
	t.Parallel()
	p, err := newPlayed()
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	base, err := url.Parse(p.server.URL)
	if err != nil {
		t.Fatal(err)
	}
	c := &client{base: base, key: testKey, http: p.server.Client()}
	var j admin.Job
	// The second entry is due in a quarter of an hour.
	req := admin.DLQRedrive{Filter: &admin.DLQFilter{}, Rate: 0.001}
	if err := c.call(t.Context(), http.MethodPost, "dlq/redrive", nil, req, &j); err != nil {
		t.Fatal(err)
	}
	for j.Done == 0 {
		if err := c.call(t.Context(), http.MethodGet, "jobs/"+j.ID, nil, nil, &j); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	stopped := false
	var progress bytes.Buffer
	j, err = c.follow(ctx, func() { stopped = true }, j, &progress)
	if err != nil {
		t.Fatal(err)
	}
	if j.State != admin.JobStopped || j.Error != "cancelled" || j.Done != 1 || !stopped {
		t.Errorf("state %s (%s), done %d, signals given back: %t", j.State, j.Error, j.Done, stopped)
	}
}

// firstWrite ends a context with what is first written.
type firstWrite struct {
	text string
	done func()
}

func (w *firstWrite) Write(b []byte) (int, error) {
	w.text += string(b)
	w.done()
	return len(b), nil
}

func TestARedriveSaysThatItWaitsForAnother(t *testing.T) {
	t.Parallel()
	p, err := newPlayed()
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	base, err := url.Parse(p.server.URL)
	if err != nil {
		t.Fatal(err)
	}
	c := &client{base: base, key: testKey, http: p.server.Client()}
	var j admin.Job
	for range 2 { // the first takes half an hour
		req := admin.DLQRedrive{Filter: &admin.DLQFilter{}, Rate: 0.001}
		if err := c.call(t.Context(), http.MethodPost, "dlq/redrive", nil, req, &j); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	progress := &firstWrite{done: cancel}
	if _, err := c.follow(ctx, func() {}, j, progress); err != nil {
		t.Fatal(err)
	}
	if want := "waits for a redrive that was asked for before this one\n"; progress.text != want {
		t.Errorf("printed %q, want %q", progress.text, want)
	}
}

func TestRatesAreReadPerUnit(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]float64{"": 0, "10": 10, "10/s": 10, "0.5/s": 0.5, "30/m": 0.5, "36/h": 0.01} {
		if got, err := parseRate(text); err != nil || got != want {
			t.Errorf("%q = %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"0", "-1/s", "x", "10/d", "/s", "NaN", "Inf/s", "1e9"} {
		if got, err := parseRate(text); err == nil {
			t.Errorf("%q is read as %v", text, got)
		}
	}
}

// The daemon serves the admin API to the keys of its config, and keeps its stores to
// itself.
func TestRunServesTheAdminAPI(t *testing.T) {
	t.Parallel()
	cfg := strings.Replace(runConfig("127.0.0.1:0", closedPort(t)), `http: { `,
		`http: { admin_keys: [ { name: ops, key: "`+testKey+`" } ], `, 1)
	d := startDaemon(t, cfg)
	var up struct{ Addr string }
	if err := json.Unmarshal([]byte(d.await(t, "http listener up")), &up); err != nil || up.Addr == "" {
		t.Fatalf("no address: %v", err)
	}
	gobridge := func(want int, args ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		if code := execute(args, &out, &errs); code != want {
			t.Errorf("%q: exit code %d, want %d: %s%s", args, code, want, &out, &errs)
		}
		return out.String() + errs.String()
	}
	at := "http://" + up.Addr
	gobridge(exitFailed, "dlq", "list", "--url", at, "--key", "Gue55ed-0123456789")
	if out := gobridge(exitOK, "dlq", "list", "--url", at, "--key", testKey); !strings.Contains(out, "0 listed, 0 in the queue") {
		t.Errorf("list prints %s", out)
	}
	if out := gobridge(exitOK, "dlq", "redrive", "--all", "--url", at, "--key", testKey); !strings.Contains(out, "sent 0 of 0") {
		t.Errorf("redrive prints %s", out)
	}
	if out := gobridge(exitOK, "store", "verify", "--url", at, "--key", testKey); !strings.Contains(out, "gobridge.db") {
		t.Errorf("verify prints %s", out)
	}
	backup := filepath.Join(t.TempDir(), "copy.db")
	gobridge(exitOK, "store", "backup", backup, "--url", at, "--key", testKey)
	if info, err := os.Stat(backup); err != nil || info.Size() == 0 {
		t.Errorf("backup: %v", err)
	}
	http.DefaultClient.CloseIdleConnections()
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	code, log := d.wait()
	if code != exitOK {
		t.Errorf("exit code %d:\n%s", code, log)
	}
	for _, line := range []string{`"msg":"admin key refused"`, `"action":"dlq.redrive","actor":"ops"`, `"action":"store.verify","actor":"ops"`} {
		if !strings.Contains(log, line) {
			t.Errorf("no %s in the log:\n%s", line, log)
		}
	}
	if strings.Contains(log, testKey) || strings.Contains(log, "Gue55ed") {
		t.Errorf("a key in the log:\n%s", log)
	}
}

func TestWhatWasNotTriedIsPrintedOnceForEachBinding(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	err := printRedrive(&out, &admin.Job{
		State: admin.JobDone, Total: 5, Done: 2, NotTried: 3,
		Bindings: []admin.JobBinding{
			{RouteID: "up", BindingID: "up/0", Entries: 3, Unreachable: "not tried: not connected"},
			{RouteID: "down", BindingID: "down/0", Entries: 2},
		},
	})
	want := `sent 2 of 5, 0 failed, 0 skipped, 3 not tried

ROUTE  BINDING  ENTRIES
up     up/0     3
down   down/0   2

NOT TRIED  REASON
up/0       not tried: not connected
`
	if diff := cmp.Diff(want, out.String()); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}
