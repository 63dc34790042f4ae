package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/gobridge/gobridge"
)

// gobridge check sees what a bridge would, disturbs none and shows no secret.
func TestCheckReportsEachEndpointBesideARunningBridge(t *testing.T) {
	t.Parallel()
	r := newRotation(t)
	file := write(t, r.cfg.file())
	b := run(t, file)
	b.waitReady("")
	stdout, stderr, code := command(t, nil, "check", file)
	if code != 0 || stderr != "" {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	for _, want := range []string{"source tcp://" + r.source.Addr(), `user name "bridge", a password`, "destination ssl://" + r.dest.Addr(), "expires in 0 days", "receive maximum"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in:\n%s", want, stdout)
		}
	}
	if got := b.counter("mqtt_reconnects"); got != 0 {
		t.Errorf("the running bridge reconnected %v times", got)
	}
	b.waitReady("")
	b.stop()

	r.password.put(login("S3cr3t-wrong"))
	stdout, stderr, code = command(t, nil, "check", "-c", file, "--json")
	var report struct {
		OK       bool `json:"ok"`
		Sessions []struct {
			SessionID string               `json:"session_id"`
			OK        bool                 `json:"ok"`
			Steps     []gobridge.ProbeStep `json:"steps"`
		} `json:"sessions"`
	}
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || code != 1 {
		t.Fatalf("exit code %d, %v: %s%s", code, err, stdout, stderr)
	}
	if report.OK || len(report.Sessions) != 2 || report.Sessions[0].OK || !report.Sessions[1].OK {
		t.Errorf("got %+v", report)
	}
	if strings.Contains(stdout+stderr, "S3cr3t") || strings.Contains(stdout, "PRIVATE KEY") {
		t.Error("a secret is shown")
	}
}
