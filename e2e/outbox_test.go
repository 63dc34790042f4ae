package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/gobridge/gobridge/bridgetest"
)

// stored is a config whose route stores messages in the outbox of its data_dir
// before it acknowledges them.
type stored struct {
	*config
	path string // of the config file, once it was written
}

// viaOutbox is between for a route with delivery_mode: shared_outbox.
func viaOutbox(t *testing.T, source, dest string) *stored {
	return &stored{config: between(t, source, dest)}
}

// file returns the config as a document.
func (c *stored) file() doc {
	f := c.config.file()
	f["routes"].([]doc)[0]["delivery_mode"] = "shared_outbox"
	return f
}

// start writes the config and runs it.
func (c *stored) start(t *testing.T, env ...string) *bridge {
	t.Helper()
	c.path = write(t, c.file())
	return run(t, c.path, env...)
}

// spawn is start that waits for nothing.
func (c *stored) spawn(t *testing.T) *bridgetest.Process {
	t.Helper()
	c.path = write(t, c.file())
	cmd := exec.Command(bridgetest.BuildBinary(t), "run", "-c", c.path)
	cmd.Env = os.Environ()
	return bridgetest.StartCommand(t, cmd)
}

// ask runs a subcommand that prints JSON and must succeed.
func ask[T any](t *testing.T, args ...string) T {
	t.Helper()
	stdout, stderr, code := command(t, nil, append(args, "--json")...)
	var answer T
	if err := json.Unmarshal([]byte(stdout), &answer); err != nil || code != 0 {
		t.Fatalf("gobridge %v: exit code %d, %v\n%s%s", args, code, err, stdout, stderr)
	}
	return answer
}

// depth returns the depth of the outbox as /metrics and deephealth tell it.
func (b *bridge) depth() (metrics, health int) {
	b.t.Helper()
	for _, r := range b.health().Routes {
		health += r.OutboxDepth
	}
	return int(b.metrics().sum("gobridge_outbox_depth")), health
}

// waitDepth waits until both agree on a depth.
func (b *bridge) waitDepth(want int, timeout time.Duration) {
	b.t.Helper()
	var metrics, health int
	if !within(timeout, func() bool { metrics, health = b.depth(); return metrics == want && health == want }) {
		_, ready := b.ready()
		b.t.Fatalf("outbox depth is %d in /metrics and %d in deephealth after %v, want %d; readiness: %+v", metrics, health, timeout, want, ready)
	}
}

// expectAcked waits until the log of a source tells of so many messages acknowledged
// by the bridge, and expects that it tells of no more.
func expectAcked(t *testing.T, source *bridgetest.Mosquitto, want int) {
	t.Helper()
	var tr traffic
	if !within(patience, func() bool { tr = trafficTo(source.Log(), sourceID); return tr.acked >= want }) || tr.acked != want {
		t.Errorf("the source has sent %d and got %d acknowledged, want %d", tr.sent, tr.acked, want)
	}
}

// arrived notes which numbered messages a collector has seen; its note is for
// CollectorConfig.OnMessage.
type arrived struct {
	mu   sync.Mutex
	seen map[string]bool // by mqtt.message-id
}

func (a *arrived) note(m *bridgetest.Message) {
	id, _ := m.UserProperty("mqtt.message-id")
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.seen == nil {
		a.seen = make(map[string]bool)
	}
	a.seen[id] = true
}

func (a *arrived) has(id string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.seen[id]
}
