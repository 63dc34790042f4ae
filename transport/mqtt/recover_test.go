package mqtt

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/bridgetest"
	"github.com/gobridge/gobridge/metric"
)

// recovering is a persistent session whose recoveries are watched.
type recovering struct {
	*running
	ended    chan error // what Run returned
	drains   atomic.Int64
	hold     chan struct{} // the route is empty once it is closed
	messages *lines
}

// startRecovering runs a session that may die. The route of it is empty at once;
// after holdDrain it is when release is closed.
func startRecovering(t *testing.T, use *gobridge.SessionUse, env gobridge.Env, change ...func(*recovering)) *recovering {
	t.Helper()
	check(use, func(path, what, _ string) { t.Errorf("check: %s: %s", path, what) })
	r := &recovering{ended: make(chan error, 1), messages: &lines{Handler: testLogger(t).Handler()}, hold: make(chan struct{})}
	close(r.hold)
	env.Logger = slog.New(r.messages)
	if env.Metrics == nil {
		env.Metrics = metric.NewRegistry()
	}
	env.Quiesce = func(ctx context.Context) error {
		r.drains.Add(1)
		select {
		case <-r.hold:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	opened, err := openSession(use, env)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	r.running = &running{session: opened.(*session), metrics: env.Metrics}
	r.spacing = time.Millisecond
	for _, f := range change {
		f(r)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.ended <- opened.Run(ctx)
	}()
	r.running.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case <-done:
		case <-time.After(testWait):
			t.Error("Run did not return")
		}
	})
	t.Cleanup(r.running.stop)
	return r
}

// lines counts what is logged.
type lines struct {
	slog.Handler
	mu  sync.Mutex
	all []string
}

func (l *lines) Handle(ctx context.Context, r slog.Record) error {
	l.mu.Lock()
	l.all = append(l.all, r.Level.String()+" "+r.Message)
	l.mu.Unlock()
	return l.Handler.Handle(ctx, r)
}

func (l *lines) count(with string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, line := range l.all {
		if strings.Contains(line, with) {
			n++
		}
	}
	return n
}

// subscribed is startRecovering with a scripted broker and its first connection.
func subscribed(t *testing.T, env gobridge.Env, change ...func(*recovering)) (*recovering, *bridgetest.FakeBroker, *bridgetest.FakeConn) {
	t.Helper()
	fb := bridgetest.NewFakeBroker(t)
	r := startRecovering(t, testUse(fb.URL(), gobridge.ModePersistent, topics(2, "in/#")), env, change...)
	c := fb.Accept()
	c.Handshake(nil)
	c.Grant(c.ExpectSubscribe())
	r.awaitReady(t)
	return r, fb, c
}

// impatient makes the recovery bound short.
func impatient(r *recovering) { r.bound = 300 * time.Millisecond }

// queuedOnly lets recoveries wait long, as right after another one.
func queuedOnly(r *recovering) {
	r.spacing = time.Hour
	r.carried.recovered()
}

func holdDrain(r *recovering) { r.hold = make(chan struct{}) }

// leaves plays the broker's part when the session disconnects.
func leaves(c *bridgetest.FakeConn) {
	c.ExpectDisconnect()
	c.Close()
}

// wantDead waits for Run and checks that it ended as it should have.
func (r *recovering) wantDead(t *testing.T, why string) {
	t.Helper()
	select {
	case err := <-r.ended:
		if !errors.Is(err, gobridge.ErrSessionUnrecoverable) || !strings.Contains(err.Error(), why) {
			t.Fatalf("Run: %v, want %q", err, why)
		}
	case <-time.After(testWait):
		t.Fatal("the session lives")
	}
	if n := r.messages.count("WARN session cannot go on"); n != 1 {
		t.Errorf("%d terminal warnings logged, want 1", n)
	}
	h := r.Health()
	if h.State != "failed" || h.ServiceLevel != gobridge.LevelNone || !strings.Contains(h.LastError, why) {
		t.Errorf("health: %s, %s, %q", h.State, h.ServiceLevel, h.LastError)
	}
}

// Covers: S2-101, S2-102, S2-103, S2-106, S2-301, S2-316
func TestRetryMakesTheBrokerSendAgain(t *testing.T) {
	r, fb, c := subscribed(t, gobridge.Env{})
	to, _ := r.receive(t)
	p, q := publish(1, 1, "given back"), publish(2, 2, "settled")
	c.Send(p, q)
	got := to.wait(t, 2)
	got[1].Ack() // its turn comes after the first
	r.in.mu.Lock()
	first := *r.in.at(r.in.tail)
	r.in.mu.Unlock()
	if err := got[0].Retry(time.Hour, errors.New("dead letters full")); err != nil {
		t.Fatalf("Retry: %v", err)
	}
	if level := r.Health().ServiceLevel; level == gobridge.LevelFull {
		t.Error("readiness is full right after Retry")
	}
	got[0].Ack() // too late
	first.Ack()  // the settler itself is as strict
	if err := got[0].Retry(0, nil); err != nil {
		t.Errorf("second Retry: %v", err)
	}
	r.Receiver().Flush()
	leaves(c)
	c = fb.Accept()
	connect := c.Handshake(present())
	if connect.CleanStart || connect.ClientID != "client" || *connect.Properties.SessionExpiryInterval != 86400 {
		t.Errorf("CONNECT: %v", connect)
	}
	c.Send(again(p), again(q))
	got = to.wait(t, 3)
	if n := len(got); n != 3 || string(got[2].Envelope.Payload) != "given back" {
		t.Fatalf("dispatched %v", payloads(got))
	}
	c.ExpectNothing(20 * time.Millisecond)
	got[2].Ack()
	r.Receiver().Flush()
	expectPuback(t, c, 1)
	c.Expect(packets.PUBREC) // what was settled before is not dispatched twice (B7)
	r.awaitReady(t)
	r.wantValue(t, 1, metric.MQTTSessionRecoveryRecycle)
	r.wantValue(t, 0, metric.MQTTAckAfterReconnect)
	if n := r.Health().RecoveryRecycleCount; n != 1 {
		t.Errorf("recovery_recycle_count %d, want 1", n)
	}
	if n := r.drains.Load(); n != 1 {
		t.Errorf("%d drains, want 1", n)
	}
}

// Covers: S2-304
func TestHundredRetriesAreOneRecycle(t *testing.T) {
	const n = 100
	r, fb, c := subscribed(t, gobridge.Env{}, holdDrain)
	to, _ := r.receive(t)
	for i := range n {
		c.Send(publish(uint16(i+1), 1, fmt.Sprint(i)))
	}
	var all sync.WaitGroup
	for _, d := range to.wait(t, n) {
		all.Go(func() {
			if err := d.Retry(0, nil); err != nil {
				t.Errorf("Retry: %v", err)
			}
		})
	}
	all.Wait()
	close(r.hold)
	leaves(c)
	c = fb.Accept()
	c.Handshake(present())
	for i := range n {
		c.Send(again(publish(uint16(i+1), 1, fmt.Sprint(i))))
	}
	for _, d := range to.wait(t, 2*n)[n:] {
		d.Ack()
	}
	r.Receiver().Flush()
	r.awaitReady(t)
	r.wantValue(t, 1, metric.MQTTSessionRecoveryRecycle)
	if fb.Connections() != 2 {
		t.Errorf("%d connections, want 2", fb.Connections())
	}
	if n := r.messages.count("WARN recovery queued"); n != 1 {
		t.Errorf("%d warnings, want 1", n)
	}
}

// Covers: S2-310
func TestRecoveriesKeepTheirDistanceAcrossInstances(t *testing.T) {
	t.Parallel()
	const spacing = 300 * time.Millisecond
	env := gobridge.Env{Carried: newCarried()}
	r, fb, c := subscribed(t, env, func(r *recovering) { r.spacing = spacing })
	to, _ := r.receive(t)
	recoverOnce := func(n int) {
		t.Helper()
		p := publish(1, 1, "a")
		if n > 1 {
			p = again(p)
		}
		c.Send(p)
		if err := to.wait(t, n)[n-1].Retry(0, nil); err != nil {
			t.Fatalf("Retry: %v", err)
		}
		leaves(c)
		c = fb.Accept()
		c.Handshake(present())
		r.awaitReady(t)
	}
	recoverOnce(1)
	var ended time.Time
	eventually(t, "the end is noted", func() bool {
		r.carried.mu.Lock()
		defer r.carried.mu.Unlock()
		ended = r.carried.recoveredAt
		return !ended.IsZero()
	})
	recoverOnce(2)
	if took := time.Since(ended); took < spacing {
		t.Errorf("the second recovery was over %s after the first, want at least %s between them", took, spacing)
	}
	r.wantValue(t, 2, metric.MQTTSessionRecoveryRecycle)
	fb.CutAll()
	r.stop()

	next := startRecovering(t, testUse(fb.URL(), gobridge.ModePersistent, topics(2, "in/#")), env,
		func(r *recovering) { r.spacing = time.Hour })
	c = fb.Accept()
	c.Handshake(present())
	c.Grant(c.ExpectSubscribe())
	next.awaitReady(t)
	to, _ = next.receive(t)
	c.Send(publish(1, 1, "b"))
	if err := to.wait(t, 1)[0].Retry(0, nil); err != nil {
		t.Fatalf("Retry: %v", err)
	}
	c.ExpectNothing(50 * time.Millisecond)
	if n := next.Health().RecoveryRecycleCount; n != 2 {
		t.Errorf("recovery_recycle_count %d, want the 2 of the instance before", n)
	}
}

// What nobody has taken when the recovery begins, and what comes while it drains, is
// counted; QoS 1 and 2 come again. What is settled meanwhile is acknowledged.
//
// Covers: S2-305, S2-308
func TestDrainOfARecovery(t *testing.T) {
	r, fb, c := subscribed(t, gobridge.Env{}, holdDrain)
	to := newRoute()
	to.room = 2
	r.receiveInto(t, to)
	c.Send(publish(1, 1, "settles"), publish(2, 1, "given back"), publish(3, 1, "waits"), publish(0, 0, "zero waits"))
	unmatched := publish(4, 1, "unmatched")
	unmatched.Topic = "elsewhere"
	c.Send(unmatched)
	got := to.wait(t, 2)
	eventually(t, "all arrived", func() bool { return r.Health().UnsettledCount == 4 })
	if err := got[1].Retry(0, nil); err != nil {
		t.Fatalf("Retry: %v", err)
	}
	eventually(t, "it drains", func() bool { return r.drains.Load() == 1 })
	r.recycle("another reason") // does not fight
	r.Receiver().Resume()       // offers nothing
	c.Send(publish(5, 1, "black hole"), publish(0, 0, "zero black hole"))
	eventually(t, "router is purged", func() bool { return r.value(metric.MQTTRouterStalePurged) == 5 })
	got[0].Ack()
	close(r.hold)
	expectPuback(t, c, 1)
	to.mu.Lock()
	to.room = -1
	to.mu.Unlock()
	leaves(c)
	c = fb.Accept()
	c.Handshake(present())
	c.Send(again(publish(2, 1, "given back")), again(publish(3, 1, "waits")), again(publish(5, 1, "black hole")))
	got = to.wait(t, 5)
	if want := []string{"settles", "given back", "given back", "waits", "black hole"}; !slices.Equal(payloads(got), want) {
		t.Errorf("dispatched %v, want %v", payloads(got), want)
	}
	for _, d := range got[2:] {
		d.Ack()
	}
	r.Receiver().Flush()
	expectPuback(t, c, 2, 3, 5)
	r.awaitReady(t)
	r.wantValue(t, 5, metric.MQTTRouterStalePurged)
	r.in.mu.Lock()
	defer r.in.mu.Unlock()
	if r.in.held != 0 {
		t.Errorf("%d bytes are still accounted for", r.in.held)
	}
}

// A request that comes while the next connection is being resumed is about that
// connection, and gets an attempt of its own.
func TestRetryAfterTheDisconnectIsTheNextRecovery(t *testing.T) {
	h := newFakeHistory()
	r, fb, c := subscribed(t, gobridge.Env{History: h})
	to, _ := r.receive(t)
	c.Send(publish(1, 1, "a"))
	if err := to.wait(t, 1)[0].Retry(0, nil); err != nil {
		t.Fatalf("Retry: %v", err)
	}
	h.mu.Lock()
	hold := make(chan struct{})
	h.hold = hold
	h.mu.Unlock()
	r.managed.entries = nil // everything is written again, and the reconcile waits for it
	for i := range r.filters {
		r.filters[i].granted = false
	}
	clear(h.entries[testKey])
	leaves(c)
	c = fb.Accept()
	c.Handshake(present())
	c.Send(again(publish(1, 1, "a")))
	if err := to.wait(t, 2)[1].Retry(0, nil); err != nil {
		t.Fatalf("Retry: %v", err)
	}
	r.wantValue(t, 1, metric.MQTTSessionRecoveryRecycle)
	close(hold)
	c.Grant(c.ExpectSubscribe())
	leaves(c)
	c = fb.Accept()
	c.Handshake(present())
	r.awaitReady(t)
	r.wantValue(t, 2, metric.MQTTSessionRecoveryRecycle)
}

// Covers: S2-302, S2-321, S2-324, S2-327, S2-406
func TestSessionLostWhileARecoveryIsQueued(t *testing.T) {
	h := newFakeHistory()
	env := gobridge.Env{Carried: newCarried(), Metrics: metric.NewRegistry(), History: h}
	r, fb, c := subscribed(t, env, queuedOnly)
	to, _ := r.receive(t)
	c.Send(publish(1, 1, "a"), publish(2, 1, "b"))
	got := to.wait(t, 2)
	if err := got[0].Retry(0, nil); err != nil {
		t.Fatalf("Retry: %v", err)
	}
	c.Reset()
	c = fb.Accept()
	c.Handshake(nil) // the broker has forgotten
	leaves(c)        // without a SUBSCRIBE
	r.wantDead(t, "queued: broker no longer had the session")
	r.wantValue(t, 0, metric.MQTTSessionRecoveryRecycle)
	r.wantValue(t, 1, metric.MQTTSessionResumeLost)
	if n := r.drains.Load(); n != 1 {
		t.Errorf("%d drains, want 1", n)
	}
	if err := got[1].Retry(0, nil); !errors.Is(err, gobridge.ErrSessionUnrecoverable) {
		t.Errorf("Retry on a dead instance: %v", err)
	}
	if n := r.messages.count("WARN broker no longer had the session"); n != 1 {
		t.Errorf("%d warnings of the loss, want 1", n)
	}

	// The connect of the dead instance has left an empty session at the broker. The
	// history tells of filters that it does not have.
	next := startRecovering(t, testUse(fb.URL(), gobridge.ModePersistent, topics(2, "in/#")), env)
	c = fb.Accept()
	c.Handshake(present())
	c.Grant(c.ExpectSubscribe())
	next.awaitReady(t)
	next.wantValue(t, 1, metric.MQTTSessionResumeLost)
	if n := next.messages.count("WARN broker no longer had"); n != 0 {
		t.Errorf("the loss was told again %d times", n)
	}
	c.Reset()
	fb.Accept().Handshake(present())
	next.awaitReady(t) // the session is its own now: nothing is subscribed to again
}

func TestClosingDuringARecoveryIsNoFailure(t *testing.T) {
	for name, change := range map[string]func(*recovering){"queued": queuedOnly, "draining": holdDrain} {
		t.Run(name, func(t *testing.T) {
			r, _, c := subscribed(t, gobridge.Env{}, change)
			to, _ := r.receive(t)
			c.Send(publish(1, 1, "a"))
			if err := to.wait(t, 1)[0].Retry(0, nil); err != nil {
				t.Fatalf("Retry: %v", err)
			}
			if name == "draining" {
				eventually(t, "it drains", func() bool { return r.drains.Load() == 1 })
			}
			var gone sync.WaitGroup
			gone.Go(func() { leaves(c) })
			r.stop()
			gone.Wait()
			if err := <-r.ended; err != nil {
				t.Errorf("Run: %v", err)
			}
			if n := r.messages.count("ERROR"); n != 0 {
				t.Errorf("%d errors logged", n)
			}
			if state := r.Health().State; state != "closed" {
				t.Errorf("state %s", state)
			}
		})
	}
}

// A delivery whose connection is gone comes again with the next connection anyway; one
// that the broker has given up never does.
func TestRetryWithoutAConnection(t *testing.T) {
	r, fb, c := subscribed(t, gobridge.Env{})
	to, _ := r.receive(t)
	p := publish(1, 1, "a")
	c.Send(p)
	d := to.wait(t, 1)[0]
	c.Reset()
	c = fb.Accept()
	eventually(t, "link is down", func() bool { return !r.Health().Connected })
	if err := d.Retry(0, nil); err != nil {
		t.Errorf("Retry: %v", err)
	}
	c.Handshake(present())
	c.Send(again(p))
	d = to.wait(t, 2)[1]
	r.awaitReady(t)
	r.wantValue(t, 0, metric.MQTTSessionRecoveryRecycle)

	c.Reset()
	c = fb.Accept()
	c.Handshake(nil) // no recovery is wanted: an ordinary loss
	c.Grant(c.ExpectSubscribe())
	r.awaitReady(t)
	if err := d.Retry(0, nil); !errors.Is(err, gobridge.ErrNotSupported) {
		t.Errorf("Retry of a message that the broker has lost: %v", err)
	}
	d.Ack()
	r.wantValue(t, 1, metric.MQTTAckAfterReconnect)
}
