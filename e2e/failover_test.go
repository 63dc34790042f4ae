package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/bridgetest"
)

// twins are two instances of one bridge on one exclusive session. Only the addresses
// that they send to differ: out/<name>/...
type twins struct {
	t            *testing.T
	source, dest *bridgetest.Mosquitto
	links        map[string]*bridgetest.Proxy // to the source, by instance
	files        map[string]string
	running      map[string]*bridge

	mu       sync.Mutex
	first    map[string]time.Time // first message of each instance since mark
	last     map[string]time.Time
	received map[string]int
}

// The timing of the twins.
var (
	leaseTTL      = pick(2*time.Second, 5*time.Second)
	stepDownGrace = time.Second
	brokerLoss    = pick(2*time.Second, 5*time.Second)
)

const twinSendTimeout = 2 * time.Second

func startTwins(t *testing.T) *twins {
	t.Helper()
	p := &twins{
		t:      t,
		source: bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{}), dest: bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{}),
		links: map[string]*bridgetest.Proxy{}, files: map[string]string{}, running: map[string]*bridge{},
		first: map[string]time.Time{}, last: map[string]time.Time{}, received: map[string]int{},
	}
	shared := filepath.Join(t.TempDir(), "shared")
	for _, name := range []string{"a", "b"} {
		p.links[name] = bridgetest.NewProxy(t, p.source.Addr())
		cfg := between(t, p.links[name].URL(), p.dest.URL())
		maps.Copy(cfg.bridge, doc{"instance_id": name, "deployment_mode": "clustered"})
		maps.Copy(cfg.sourceSession, doc{"session_mode": "exclusive", "lease": doc{
			"ttl": leaseTTL.String(), "step_down_grace": stepDownGrace.String(), "broker_loss_step_down": brokerLoss.String(),
		}})
		cfg.address = "out/" + name + "/{topic}"
		cfg.policy["send_timeout"] = twinSendTimeout.String()
		file := cfg.file()
		file["stores"] = doc{
			"lease":                 doc{"type": "sqlite", "options": doc{"path": filepath.Join(shared, "leases.db")}},
			"managed_subscriptions": doc{"type": "sqlite", "options": doc{"path": filepath.Join(shared, "subscriptions.db")}},
		}
		p.files[name] = write(t, file)
	}
	return p
}

// run starts an instance and waits until it knows its role.
func (p *twins) run(name string) *bridge {
	p.t.Helper()
	b := run(p.t, p.files[name])
	p.running[name] = b
	b.waitReady("subscribed")
	return b
}

// owner returns the name of the instance that holds the lease, and of the other one.
func (p *twins) owner() (owner, standby string) {
	p.t.Helper()
	if !within(patience, func() bool {
		owner, standby = "", ""
		for name, b := range p.running {
			switch h := b.health(); {
			case h.Role == gobridge.RoleActive && h.Ready && b.sessionHealth("source").HasLease:
				owner = name
			case h.Role == gobridge.RoleStandby && b.sessionHealth("source").State == "standby":
				standby = name
			}
		}
		return owner != "" && standby != ""
	}) {
		p.t.Fatal("there is no owner beside a standby")
	}
	return owner, standby
}

// note hears of every message at the destination.
func (p *twins) note(m *bridgetest.Message) {
	_, rest, _ := strings.Cut(m.Topic, "/")
	name, _, _ := strings.Cut(rest, "/")
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.first[name].IsZero() {
		p.first[name] = m.At
	}
	p.last[name] = m.At
	p.received[name]++
}

// mark forgets the times of messages.
func (p *twins) mark() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.first)
	clear(p.last)
}

// times returns when the first and the last message of an instance came since mark.
func (p *twins) times(name string) (first, last time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.first[name], p.last[name]
}

// takeover waits for the first message of the next owner and returns how long that
// took since the fault.
func (p *twins) takeover(next string, fault time.Time, limit time.Duration) time.Duration {
	p.t.Helper()
	var first time.Time
	if !within(limit+patience, func() bool {
		first, _ = p.times(next)
		return !first.IsZero()
	}) {
		p.t.Fatalf("%s did not take over within %v", next, limit+patience)
	}
	took := first.Sub(fault)
	if took > limit {
		p.t.Errorf("takeover after %v, want at most %v", took, limit)
	}
	return took
}

// fenced fails the test when something of the old owner came too late.
func (p *twins) fenced(old, next string) (late time.Duration) {
	p.t.Helper()
	first, _ := p.times(next)
	_, last := p.times(old)
	if late = max(last.Sub(first), 0); last.IsZero() {
		late = 0
	}
	if late > twinSendTimeout {
		p.t.Errorf("a message of the old owner came %v after the first of the next one", late)
	}
	return late
}

// failover puts one fault after the other upon the owner, under load: in every other
// round while it still works off what the last takeover has left. fault returns how to
// undo it, once the next owner is at work.
func failover(t *testing.T, limit time.Duration, fault func(p *twins, owner string) (undo func())) {
	rounds := pick(3, 20)
	p := startTwins(t)
	col := bridgetest.StartCollector(t, bridgetest.CollectorConfig{Addr: p.dest.Addr(), Filter: "out/#", OnMessage: p.note})
	p.run("a")
	p.run("b")
	p.owner()
	pub := bridgetest.StartPublisher(t, bridgetest.PublisherConfig{
		Addr: p.source.Addr(), Topic: "in/x", N: 1_000_000, QoS: 1, PayloadSize: 100, Rate: 200,
	})
	var took, late []time.Duration
	for i := range rounds {
		owner, next := p.owner()
		if i%2 == 0 && !within(patience, func() bool { return col.Count() > pub.Ledger().Acked-50 }) {
			t.Fatalf("the owner %s does not come up with the load", owner)
		}
		p.mark()
		if !within(patience, func() bool { _, last := p.times(owner); return !last.IsZero() }) {
			t.Fatalf("nothing comes from the owner %s", owner)
		}
		began := time.Now()
		undo := fault(p, owner)
		took = append(took, p.takeover(next, began, limit).Round(time.Millisecond))
		undo()
		if now, _ := p.owner(); now != next {
			t.Errorf("after the fault was healed %s is the owner, want %s", now, next)
		}
		late = append(late, p.fenced(owner, next).Round(time.Millisecond))
	}
	pub.Stop()
	sent := pub.Ledger()
	owner, _ := p.owner()
	mustCount(t, col, sent.Acked, p.running[owner], time.Minute)
	col.WaitQuiet(500*time.Millisecond, patience)
	r := col.Report(sent)
	t.Logf("%v; takeover after %v, limit %v; messages of the old owner after the first of the next: for %v; by instance %v",
		r, took, limit, late, p.received)
	nothingLost(t, r)
	for name, b := range p.running {
		if errs := b.logged("level=ERROR"); len(errs) > 0 {
			t.Errorf("%s logged errors:\n%s", name, strings.Join(errs[:min(5, len(errs))], "\n"))
		}
		b.stop()
	}
}

// Covers: S1-808
func TestKilledOwnerIsFollowed(t *testing.T) {
	t.Parallel()
	failover(t, leaseTTL*3/2, func(p *twins, owner string) func() {
		p.running[owner].Kill9()
		return func() { p.run(owner) }
	})
}

// A stopped owner goes on in the middle of whatever it did, when another one has long
// been at work.
//
// Covers: S1-808
func TestStoppedOwnerIsFollowedAndFenced(t *testing.T) {
	t.Parallel()
	failover(t, leaseTTL*3/2, func(p *twins, owner string) func() {
		p.running[owner].Signal(syscall.SIGSTOP)
		return func() {
			time.Sleep(time.Second) // the next owner is in full flow
			p.running[owner].Signal(syscall.SIGCONT)
		}
	})
}

func TestOwnerCutOffFromItsSourceIsFollowed(t *testing.T) {
	t.Parallel()
	failover(t, brokerLoss+stepDownGrace+leaseTTL, func(p *twins, owner string) func() {
		link := p.links[owner]
		link.Refuse(true)
		link.Cut()
		return func() { link.Refuse(false) }
	})
}

// A clean stop hands over at once.
func TestOwnerThatIsStoppedCleanlyHandsOver(t *testing.T) {
	t.Parallel()
	p := startTwins(t)
	p.run("a")
	p.run("b")
	owner, next := p.owner()
	began := time.Now()
	p.running[owner].stop()
	p.running[next].waitReady("full")
	if took := time.Since(began); took > leaseTTL {
		t.Errorf("handed over after %v, want less than the ttl", took)
	}
	if status, body := p.running[next].get("/readyz"); status != 200 || !strings.Contains(body, `"role": "active"`) {
		t.Errorf("/readyz of the next owner: %d %s", status, body)
	}
	standby := p.run(owner)
	if status, body := standby.get("/readyz?level=subscribed"); status != 200 || !strings.Contains(body, `"role": "standby"`) {
		t.Errorf("/readyz?level=subscribed of the standby: %d %s", status, body)
	}
	if status, body := standby.get("/readyz"); status != 503 || !strings.Contains(body, fmt.Sprintf("standby: %s-", next)) {
		t.Errorf("/readyz of the standby: %d %s", status, body)
	}
}

// The example does what it says, with its own timing.
func TestFailoverExampleHandsOver(t *testing.T) {
	t.Parallel()
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	text, err := os.ReadFile("../examples/failover.yaml")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "failover.yaml")
	config := strings.NewReplacer("tcp://127.0.0.1:1883", source.URL(), "tcp://127.0.0.1:2883", dest.URL()).Replace(string(text))
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	col := collect(t, dest.Addr(), "plant/sensors/#")
	one := run(t, path, "INSTANCE=one", "PORT=0")
	one.waitReady("full")
	two := run(t, path, "INSTANCE=two", "PORT=0")
	two.waitReady("subscribed")
	pub := publishN(t, source.Addr(), "sensors/x", 100)
	mustCount(t, col, 100, one, patience)
	one.stop()
	two.waitReady("full")
	if h := two.health(); h.Role != gobridge.RoleActive || h.InstanceID != "two" {
		t.Errorf("the second instance %s is %s", h.InstanceID, h.Role)
	}
	exactlyOnce(t, finish(t, pub, col, 100, two, patience))
	two.stop()
}
