package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/engine"
	"github.com/gobridge/gobridge/metric"
	storemem "github.com/gobridge/gobridge/store/memory"
	"github.com/gobridge/gobridge/transport/memory"
)

// cluster is what instances of one bridge share: brokers and leases.
type cluster struct {
	src, dst *memory.Hub
	leases   *storemem.Leases

	mu     sync.Mutex
	events []string
}

func newCluster() *cluster {
	return &cluster{src: memory.NewHub(), dst: memory.NewHub(), leases: storemem.NewLeases()}
}

func (c *cluster) note(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = append(c.events, fmt.Sprintf(format, args...))
}

func (c *cluster) log() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.events)
}

// member is one running instance.
type member struct {
	*engine.Engine
	name    string
	cutOff  atomic.Bool // from the source
	slow    time.Duration
	metrics *metric.Registry
	stop    context.CancelFunc
	done    chan error
	env     gobridge.Env // of the source's session
}

// watched is a session that tells when it runs and may be cut off from its broker.
type watched struct {
	gobridge.Session
	m    *member
	c    *cluster
	what string
}

func (w *watched) Run(ctx context.Context) error {
	w.c.note("%s %s runs", w.m.name, w.what)
	defer w.c.note("%s %s closed", w.m.name, w.what)
	return w.Session.Run(ctx)
}

// Sender returns one whose confirmations take a while where the member says so.
func (w *watched) Sender(id string) gobridge.Sender {
	return &slowSender{w.Session.Sender(id), w.m}
}

type slowSender struct {
	gobridge.Sender
	m *member
}

func (s *slowSender) Send(m *gobridge.Outbound) error {
	if _, slow := m.Completion.(*slowDone); !slow && s.m.slow > 0 {
		m.Completion = &slowDone{m.Completion, s.m.slow}
	}
	return s.Sender.Send(m)
}

type slowDone struct {
	to   gobridge.Completion
	wait time.Duration
}

func (s *slowDone) Done(m *gobridge.Outbound, err error) {
	time.AfterFunc(s.wait, func() {
		s.to.Done(m, err)
		s.to.Flush()
	})
}

func (s *slowDone) Flush() {}

func (w *watched) Health() gobridge.SessionHealth {
	h := w.Session.Health()
	if w.m.cutOff.Load() && w.what == "src" {
		h.Connected = false
	}
	return h
}

// watchedLeases tell of releases.
type watchedLeases struct {
	gobridge.LeaseStore
	m *member
	c *cluster
}

func (l *watchedLeases) Take(ctx context.Context, seen gobridge.LeaseRecord, holder string, ttl time.Duration) (gobridge.LeaseRecord, error) {
	rec, err := l.LeaseStore.Take(ctx, seen, holder, ttl)
	if err == nil {
		l.c.note("%s takes", l.m.name)
	}
	return rec, err
}

func (l *watchedLeases) Release(ctx context.Context, held gobridge.LeaseRecord) error {
	err := l.LeaseStore.Release(ctx, held)
	l.c.note("%s releases", l.m.name)
	return err
}

func exclusiveSpec(change func(r *gobridge.RouteSpec)) *gobridge.Spec {
	s := spec(change)
	s.Sessions[0].Mode = gobridge.ModeExclusive
	s.Sessions[0].Lease = gobridge.LeaseSpec{TTL: 2 * time.Second, StepDownGrace: time.Second}
	s.Stores.DLQ.Type = "memory"
	return s
}

// join starts an instance.
func (c *cluster) join(t *testing.T, name string, s *gobridge.Spec) *member {
	t.Helper()
	m := &member{name: name, metrics: metric.NewRegistry(), done: make(chan error, 1)}
	s.Bridge.InstanceID = name
	watch := func(what string, h *memory.Hub) *gobridge.Transport {
		tr := memory.Transport(h)
		tr.Name = what
		open := tr.Open
		tr.Open = func(use *gobridge.SessionUse, env gobridge.Env) (gobridge.Session, error) {
			if what == "src" {
				m.env = env
			}
			session, err := open(use, env)
			return &watched{session, m, c, what}, err
		}
		return tr
	}
	leases := storemem.LeaseKind()
	leases.Open = func(context.Context, *gobridge.BridgeSpec, *gobridge.StoreSpec, gobridge.Env) (gobridge.LeaseStore, error) {
		return &watchedLeases{c.leases, m, c}, nil
	}
	e, err := engine.New(s, engine.Options{Metrics: m.metrics, Kinds: &gobridge.Kinds{
		Transports: []*gobridge.Transport{watch("src", c.src), watch("dst", c.dst)},
		Outboxes:   []*gobridge.OutboxKind{storemem.OutboxKind()},
		DLQs:       []*gobridge.DLQKind{storemem.DLQKind()},
		Ledgers:    []*gobridge.LedgerKind{storemem.LedgerKind()},
		Leases:     []*gobridge.LeaseKind{leases},
	}})
	if err != nil {
		t.Fatal(err)
	}
	m.Engine = e
	ctx, stop := context.WithCancel(context.Background())
	m.stop = stop
	go func() {
		m.done <- e.Run(ctx)
		close(m.done)
	}()
	t.Cleanup(m.leave)
	synctest.Wait()
	return m
}

func (m *member) leave() {
	m.stop()
	<-m.done
}

func (m *member) session(id string) gobridge.SessionStatus {
	for _, s := range m.Health().Sessions {
		if s.ID == id {
			return s
		}
	}
	return gobridge.SessionStatus{}
}

func (c *cluster) publish(from, n int) {
	for i := range n {
		c.src.Publish(memory.Message{Topic: "in/x", Payload: fmt.Append(nil, from+i), ID: fmt.Sprint(from + i), QoS: 1})
	}
	synctest.Wait()
}

// received counts what the destination got, by payload.
func (c *cluster) received() map[string]int {
	got := map[string]int{}
	for _, m := range c.dst.Sent() {
		got[string(m.Payload)]++
	}
	return got
}

func (c *cluster) wantAll(t *testing.T, n, repeats int) {
	t.Helper()
	got, more := c.received(), 0
	for i := range n {
		k := fmt.Sprint(i)
		if got[k] == 0 {
			t.Errorf("message %d is lost", i)
		}
		more += max(got[k]-1, 0)
	}
	if more > repeats {
		t.Errorf("%d repeated messages, want at most %d", more, repeats)
	}
}

func TestOneInstanceIsActive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		a := c.join(t, "a", exclusiveSpec(nil))
		b := c.join(t, "b", exclusiveSpec(nil))
		c.publish(0, 50)
		wait(time.Minute)
		if want := []string{"a takes", "a dst runs", "a src runs"}; !slices.Equal(slices.Sorted(slices.Values(c.log())), slices.Sorted(slices.Values(want))) {
			t.Errorf("events %q, want %q", c.log(), want)
		}
		if h := a.Health(); h.Role != gobridge.RoleActive || !a.session("a").HasLease || !h.Ready {
			t.Errorf("the owner: role %q, lease %t, ready %t", h.Role, a.session("a").HasLease, h.Ready)
		}
		if h := b.Health(); h.Role != gobridge.RoleStandby || h.Ready || h.ServiceLevel != gobridge.BridgeDegraded {
			t.Errorf("the standby: role %q, ready %t, level %s", h.Role, h.Ready, h.ServiceLevel)
		}
		for _, id := range []string{"a", "b"} {
			if s := b.session(id); s.State != "standby" || s.HasLease || s.ServiceLevel != gobridge.LevelSubscribed || s.Connected {
				t.Errorf("session %s of the standby: %+v", id, s)
			}
		}
		if reasons := b.Ready(gobridge.LevelSubscribed); len(reasons) > 0 {
			t.Errorf("the standby is not at level subscribed: %v", reasons)
		}
		if err := b.DrainSession(t.Context(), "a"); !errors.Is(err, gobridge.ErrLeaseLost) {
			t.Errorf("drain on the standby: %v", err)
		}
		if err := b.SeedSubscriptions(t.Context(), "a", true); !errors.Is(err, gobridge.ErrLeaseLost) {
			t.Errorf("seed on the standby: %v", err)
		}
		if err := b.RetrySession("a"); err != nil {
			t.Errorf("retry on the standby: %v", err)
		}
		reasons := b.Ready(gobridge.LevelFull)
		if len(reasons) == 0 || !strings.HasPrefix(reasons[0].Reason, "standby: a-") {
			t.Errorf("the standby is full, or does not say why it is not: %v", reasons)
		}
		a.leave()
		wait(time.Second)
		c.publish(50, 50)
		if h := b.Health(); h.Role != gobridge.RoleActive || !h.Ready {
			t.Errorf("after the owner left: role %q, %v", h.Role, b.Ready(gobridge.LevelFull))
		}
		c.wantAll(t, 100, 0)
	})
}

// The order of a step-down: the sessions are closed, then the lease is released, then
// another instance begins.
//
// Covers: S2-325
func TestOwnerCutOffFromItsBrokerStepsDown(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{gobridge.DirectHold, gobridge.SharedOutbox} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := newCluster()
				route := func(r *gobridge.RouteSpec) { r.DeliveryMode = mode }
				a := c.join(t, "a", exclusiveSpec(route))
				b := c.join(t, "b", exclusiveSpec(route))
				c.publish(0, 50)
				a.cutOff.Store(true)
				wait(6 * time.Second) // twice the ttl, and the time to look
				want := []string{"a dst closed", "a src closed", "a releases", "b takes", "b dst runs", "b src runs"}
				events := c.log()[3:]
				if len(events) != 6 {
					t.Fatalf("events %q, want %q", events, want)
				}
				slices.Sort(events[:2]) // no order among the sessions
				slices.Sort(events[4:])
				if !slices.Equal(events, want) {
					t.Errorf("events %q, want %q", events, want)
				}
				c.publish(50, 50)
				c.wantAll(t, 100, 0)
				a.cutOff.Store(false)
				b.leave()
				wait(time.Second)
				c.publish(100, 50) // a is the owner again, with fresh sessions
				if a.Health().Role != gobridge.RoleActive {
					t.Errorf("a did not take the lease again: %v", a.Ready(gobridge.LevelFull))
				}
				c.wantAll(t, 150, 0)
				if n := a.metrics.Counter(metric.LeaseTransfers, "a").Value(); n != 2 {
					t.Errorf("%d lease transfers of a, want 2", n)
				}
			})
		})
	}
}

// What only waits goes back to the source, uncharged, and is sent by the next owner.
func TestStepDownLeavesWhatIsHeldToTheNextOwner(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		a := c.join(t, "a", exclusiveSpec(nil))
		c.join(t, "b", exclusiveSpec(nil))
		c.dst.SetDown(true)
		c.publish(0, 50) // held by a
		a.cutOff.Store(true)
		wait(6 * time.Second)
		if n := a.Health().Routes[0].InFlight; n != 0 {
			t.Errorf("a still holds %d messages", n)
		}
		if n := int(a.metrics.Counter(metric.MessagesReturned, "r", "b0", metric.ReturnStepDown).Value()); n != 50 {
			t.Errorf("%d messages returned by the step-down, want 50", n)
		}
		c.dst.SetDown(false)
		wait(time.Second)
		c.wantAll(t, 50, 0)
	})
}

// What is under way when the step-down begins is settled before the source is closed,
// and is not received by the next owner; what takes longer than the grace is.
func TestStepDownAwaitsWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		takes   time.Duration
		repeats int
	}{{500 * time.Millisecond, 0}, {1500 * time.Millisecond, 10}} {
		t.Run(tc.takes.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := newCluster()
				a := c.join(t, "a", exclusiveSpec(nil))
				c.join(t, "b", exclusiveSpec(nil))
				a.slow = tc.takes
				began := time.Now()
				a.cutOff.Store(true)
				wait(3900 * time.Millisecond) // the step-down comes after 4 s and the time to look
				c.publish(0, 10)
				wait(4 * time.Second)
				events := c.log()
				if !slices.Contains(events, "b takes") {
					t.Fatalf("after %v: events %q", time.Since(began), events)
				}
				c.wantAll(t, 10, tc.repeats)
				if got := len(c.dst.Sent()); got != 10+tc.repeats {
					t.Errorf("the destination received %d messages, want %d", got, 10+tc.repeats)
				}
			})
		})
	}
}

func TestNothingIsSentOnceTheLeaseIsLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		a := c.join(t, "a", exclusiveSpec(nil))
		seen, _ := c.leases.Read(t.Context(), "test/a")
		if _, err := c.leases.Take(t.Context(), seen, "somebody", time.Hour); err != nil {
			t.Fatal(err)
		}
		a.env.Doubt() // as after a connection that another one ended
		synctest.Wait()
		c.publish(0, 10)
		wait(10 * time.Second)
		if got := c.received(); len(got) > 0 {
			t.Errorf("%d messages were sent without the lease", len(got))
		}
		if a.env.Fence.Open(time.Now()) || a.Health().Role != gobridge.RoleStandby {
			t.Error("a still takes itself for the owner")
		}
		if seen, _ := c.leases.Read(t.Context(), "test/a"); seen.Holder != "somebody" {
			t.Errorf("the lease is %+v", seen)
		}
	})
}

// Covers: S2-325
func TestOwnerLeavesWithTheLeaseReleased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		a := c.join(t, "a", exclusiveSpec(nil))
		c.publish(0, 50)
		a.stop()
		if err := <-a.done; err != nil {
			t.Errorf("Run returned %v", err)
		}
		events := c.log()
		if last := events[len(events)-1]; last != "a releases" {
			t.Errorf("events %q, want the release last", events)
		}
		c.wantAll(t, 50, 0)
	})
}
