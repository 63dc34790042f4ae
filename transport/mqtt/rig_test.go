package mqtt

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/metric"
)

// testWait bounds every wait of a test.
const testWait = 30 * time.Second

// testUse is a session with one receiver (without filters: none) and one sender
// named out, its options complete. change may set options before they are checked.
func testUse(url, mode string, topics []gobridge.TopicSpec, change ...func(*SessionSettings, *SenderSettings)) *gobridge.SessionUse {
	options, sending := NewSessionOptions(), NewSenderOptions()
	options.Session.BrokerURL = url
	options.Session.ClientID = "client"
	options.Session.ReconnectDelay = 20 * time.Millisecond
	options.Session.UnmatchedGrace = new(100 * time.Millisecond)
	for _, f := range change {
		f(&options.Session, &sending.Sender)
	}
	use := &gobridge.SessionUse{
		Bridge:  &gobridge.BridgeSpec{ID: "bridge"},
		Session: &gobridge.SessionSpec{ID: "s", Transport: Name, Mode: mode, Options: options},
		Senders: []*gobridge.SenderSpec{{ID: "out", SessionID: "s", Options: sending}},
	}
	if topics != nil {
		use.Receiver = &gobridge.ReceiverSpec{ID: "in", SessionID: "s", Topics: topics, Options: NewReceiverOptions()}
		use.Route = &gobridge.RouteSpec{ID: "r", ReceiverID: "in", Policy: gobridge.PolicySpec{MaxInFlight: 192}}
	}
	return use
}

func topics(qos int, filters ...string) []gobridge.TopicSpec {
	var all []gobridge.TopicSpec
	for _, f := range filters {
		all = append(all, gobridge.TopicSpec{Topic: f, QoS: &qos})
	}
	return all
}

// running is a session under test.
type running struct {
	*session
	metrics *metric.Registry
	stop    func()
}

// startSession checks the options, opens the session and runs it until the end
// of the test.
func startSession(t *testing.T, use *gobridge.SessionUse) *running {
	t.Helper()
	return startManaged(t, use, nil)
}

// startManaged is startSession with a managed subscription history and a dead-letter
// queue.
func startManaged(t *testing.T, use *gobridge.SessionUse, history gobridge.History) *running {
	t.Helper()
	return startWith(t, use, gobridge.Env{History: history, DeadLetters: true})
}

// startWith is startSession with what else the engine gives. The logger defaults to
// that of the test.
func startWith(t *testing.T, use *gobridge.SessionUse, env gobridge.Env) *running {
	t.Helper()
	check(use, func(path, what, _ string) { t.Errorf("check: %s: %s", path, what) })
	metrics := metric.NewRegistry()
	env.Metrics = metrics
	if env.Logger == nil {
		env.Logger = testLogger(t)
	}
	opened, err := openSession(use, env)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- opened.Run(ctx) }()
	r := &running{session: opened.(*session), metrics: metrics}
	r.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(testWait):
			t.Error("Run did not return")
		}
	})
	t.Cleanup(r.stop)
	return r
}

func testLogger(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(testWait)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not in %s: %s", testWait, what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func (r *running) awaitAvailable(t *testing.T) {
	t.Helper()
	eventually(t, "sender is available", func() bool { return r.Sender("out").Available() == nil })
}

func (r *running) awaitReady(t *testing.T) {
	t.Helper()
	eventually(t, "session is ready", func() bool { return r.Health().ServiceLevel == gobridge.LevelFull })
}

// outcomes records completions in order.
type outcomes struct {
	mu      sync.Mutex
	order   []string
	errs    map[string]error
	flushes int
	changed chan struct{}
}

func newOutcomes() *outcomes {
	return &outcomes{errs: map[string]error{}, changed: make(chan struct{}, 1)}
}

func (o *outcomes) message(payload string, qos uint8) *gobridge.Outbound {
	return &gobridge.Outbound{
		Envelope:   &gobridge.Envelope{ID: "id-" + payload, IDOrigin: gobridge.IDProducer, Payload: []byte(payload), QoS: qos},
		Address:    "out/topic",
		Completion: o,
	}
}

func (o *outcomes) Done(m *gobridge.Outbound, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := string(m.Envelope.Payload)
	if _, twice := o.errs[p]; twice {
		err = errors.Join(err, errors.New("completed twice"))
	}
	o.order = append(o.order, p)
	o.errs[p] = err
}

func (o *outcomes) Flush() {
	o.mu.Lock()
	o.flushes++
	o.mu.Unlock()
	select {
	case o.changed <- struct{}{}:
	default:
	}
}

// wait waits for n outcomes and returns the payloads in the order of completion.
func (o *outcomes) wait(t *testing.T, n int) []string {
	t.Helper()
	deadline := time.After(testWait)
	for {
		o.mu.Lock()
		order := append([]string{}, o.order...)
		o.mu.Unlock()
		if len(order) >= n {
			return order
		}
		select {
		case <-o.changed:
		case <-deadline:
			t.Fatalf("%d outcomes within %s, want %d", len(order), testWait, n)
		}
	}
}

func (o *outcomes) err(payload string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.errs[payload]
}

// route is the engine's side of a receiver: it keeps what it takes.
type route struct {
	mu      sync.Mutex
	room    int // deliveries it still takes; negative is no bound
	refuse  error
	got     []*gobridge.Delivery
	changed chan struct{}
}

func newRoute() *route { return &route{room: -1, changed: make(chan struct{}, 1)} }

func (r *route) emit(batch []*gobridge.Delivery) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refuse != nil {
		err := r.refuse
		r.refuse = nil
		return 0, err
	}
	n := len(batch)
	if r.room >= 0 {
		n = min(n, r.room)
		r.room -= n
	}
	r.got = append(r.got, batch[:n]...)
	select {
	case r.changed <- struct{}{}:
	default:
	}
	return n, nil
}

// receive runs the receiver into a new route until stop or the end of the test.
func (r *running) receive(t *testing.T) (to *route, stop func()) {
	t.Helper()
	to = newRoute()
	return to, r.receiveInto(t, to)
}

func (r *running) receiveInto(t *testing.T, to *route) (stop func()) {
	t.Helper()
	return r.receiveEmit(t, to.emit)
}

func (r *running) receiveEmit(t *testing.T, emit gobridge.Emit) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Receiver().Run(ctx, emit) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("receiver: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// wait returns the deliveries once there are n.
func (r *route) wait(t *testing.T, n int) []*gobridge.Delivery {
	t.Helper()
	deadline := time.After(testWait)
	for {
		r.mu.Lock()
		got := append([]*gobridge.Delivery{}, r.got...)
		r.mu.Unlock()
		if len(got) >= n {
			return got
		}
		select {
		case <-r.changed:
		case <-deadline:
			t.Fatalf("%d deliveries within %s, want %d: %v", len(got), testWait, n, payloads(got))
		}
	}
}

// taken returns the deliveries so far.
func (r *route) taken() []*gobridge.Delivery {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*gobridge.Delivery{}, r.got...)
}

func payloads(all []*gobridge.Delivery) []string {
	var p []string
	for _, d := range all {
		p = append(p, string(d.Envelope.Payload))
	}
	return p
}

// value is a counter of the session under test; more are the labels after the
// session.
func (r *running) value(d *metric.Desc, more ...string) uint64 {
	return r.metrics.Counter(d, append([]string{"s"}, more...)...).Value()
}

func (r *running) wantValue(t *testing.T, want uint64, d *metric.Desc, more ...string) {
	t.Helper()
	if got := r.value(d, more...); got != want {
		t.Errorf("%s%v = %d, want %d", d.Name, more, got, want)
	}
}

// send hands messages to the sender and flushes.
func (r *running) send(t *testing.T, o *outcomes, qos uint8, all ...string) {
	t.Helper()
	for _, p := range all {
		if err := r.Sender("out").Send(o.message(p, qos)); err != nil {
			t.Fatalf("send %s: %v", p, err)
		}
	}
	r.Sender("out").Flush()
}
