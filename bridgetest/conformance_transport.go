package bridgetest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/metric"
)

// TransportHarness ties the transport conformance suite to one transport and one
// broker.
type TransportHarness struct {
	Transport *gobridge.Transport
	// Session returns the options of a session; each call of the suite uses another
	// id.
	Session func(id string) any
	// Publish puts a message into the broker from outside, and returns once the
	// broker has it.
	Publish func(t testing.TB, topic string, payload []byte)
	// Received returns the payloads that arrived at topic from the bridge, in order,
	// once there are n, or what there is when ctx ends.
	Received func(ctx context.Context, t testing.TB, topic string, n int) []string
	// Watch begins to record what arrives at topic.
	Watch func(t testing.TB, topic string)
	// InvalidAddress is one that the transport must refuse.
	InvalidAddress string
}

// conformanceTimeout bounds each wait of the suite.
const conformanceTimeout = 20 * time.Second

// RunTransport runs the conformance suite: what the engine relies on in every
// transport that has sessions.
func RunTransport(t *testing.T, h TransportHarness) {
	tests := []struct {
		name string
		run  func(*testing.T, *conformance)
	}{
		{"deliveries come in order and what is acknowledged does not come again", testOrderAndAck},
		{"what is left unsettled comes again, in order", testRedelivery},
		{"acknowledgements out of order all count", testAckOutOfOrder},
		{"what the route does not take is offered again after Resume", testPartialTake},
		{"after Run of the receiver nothing is offered and settling still works", testStopIntake},
		{"sends are confirmed once each and arrive in order", testSend},
		{"a send without a connection is an outage and Notify tells its end", testSendUnavailable},
		{"when Run returns every message taken has been completed", testRunCompletes},
		{"an invalid address is rejected by Send", testInvalidAddress},
		{"senders are safe for concurrent use", testConcurrentSend},
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.run(t, &conformance{h: h, id: fmt.Sprintf("conf-%d-%d", i, time.Now().UnixNano())})
		})
	}
}

// conformance is one test's own session, topics and clock.
type conformance struct {
	h  TransportHarness
	id string
}

func (c *conformance) topic(s string) string { return c.id + "/" + s }

// instance is one running session instance.
type instance struct {
	gobridge.Session
	stop func() error
}

// open runs a fresh instance of the test's session.
func (c *conformance) open(t *testing.T) *instance {
	t.Helper()
	s := c.session(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	in := &instance{Session: s}
	in.stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(conformanceTimeout):
			return errors.New("session did not end when asked to")
		}
	})
	t.Cleanup(func() {
		if err := in.stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return in
}

func (c *conformance) session(t *testing.T) gobridge.Session {
	t.Helper()
	tr := c.h.Transport
	qos := 1
	spec := &gobridge.Spec{
		Bridge:   gobridge.BridgeSpec{ID: "conformance"},
		Stores:   gobridge.StoresSpec{DLQ: gobridge.StoreSpec{Type: "memory"}},
		Sessions: []gobridge.SessionSpec{{ID: c.id, Transport: tr.Name, Options: c.h.Session(c.id)}},
		Receivers: []gobridge.ReceiverSpec{{
			ID: "in", SessionID: c.id, Topics: []gobridge.TopicSpec{{Topic: c.topic("in/#"), QoS: &qos}}, Options: tr.ReceiverOptions(),
		}},
		Senders: []gobridge.SenderSpec{{ID: "out", SessionID: c.id, Options: tr.SenderOptions()}},
		Routes: []gobridge.RouteSpec{{
			ID: "r", ReceiverID: "in", Bindings: []gobridge.BindingSpec{{ID: "b", SenderID: "out", Address: c.topic("out")}},
		}},
	}
	memoryDLQ := &gobridge.DLQKind{Name: "memory", Options: func() any { return &struct{}{} }}
	memoryLedger := &gobridge.LedgerKind{Name: "memory", Options: func() any { return &struct{}{} }}
	kinds := &gobridge.Kinds{
		Transports: []*gobridge.Transport{tr},
		DLQs:       []*gobridge.DLQKind{memoryDLQ}, Ledgers: []*gobridge.LedgerKind{memoryLedger},
	}
	for _, p := range spec.Check(kinds) {
		if !p.Warning {
			t.Fatalf("spec: %s", p)
		}
	}
	use := &gobridge.SessionUse{
		Bridge: &spec.Bridge, Session: &spec.Sessions[0], Receiver: &spec.Receivers[0],
		Senders: []*gobridge.SenderSpec{&spec.Senders[0]}, Route: &spec.Routes[0],
	}
	s, err := tr.Open(use, gobridge.Env{Logger: slog.New(slog.NewTextHandler(t.Output(), nil)), Metrics: metric.NewRegistry()})
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return s
}

// ready waits until the session can do its whole job.
func (in *instance) ready(t *testing.T) {
	t.Helper()
	eventually(t, "session is ready", func() bool { return in.Health().ServiceLevel == gobridge.LevelFull })
}

// sink is the route's side of a receiver.
type sink struct {
	mu      sync.Mutex
	room    int // how many more it takes; negative is no bound
	got     []*gobridge.Delivery
	changed chan struct{}
	calls   sync.Mutex // held by a call of emit
	overlap atomic.Bool
}

func newSink(room int) *sink { return &sink{room: room, changed: make(chan struct{}, 1)} }

func (k *sink) emit(batch []*gobridge.Delivery) (int, error) {
	if !k.calls.TryLock() {
		k.overlap.Store(true)
		k.calls.Lock()
	}
	defer k.calls.Unlock()
	runtime.Gosched() // so that another call has the time to be caught
	k.mu.Lock()
	n := len(batch)
	if k.room >= 0 {
		n = min(n, k.room)
		k.room -= n
	}
	k.got = append(k.got, batch[:n]...)
	k.mu.Unlock()
	select {
	case k.changed <- struct{}{}:
	default:
	}
	return n, nil
}

func (k *sink) payloads() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var all []string
	for _, d := range k.got {
		all = append(all, string(d.Envelope.Payload))
	}
	return all
}

func (k *sink) take(n int) []*gobridge.Delivery {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.got[:n])
}

// waitFor returns the deliveries once there are n.
func (k *sink) waitFor(t *testing.T, n int) []*gobridge.Delivery {
	t.Helper()
	deadline := time.After(conformanceTimeout)
	for {
		k.mu.Lock()
		have := len(k.got)
		k.mu.Unlock()
		if have >= n {
			return k.take(have)
		}
		select {
		case <-k.changed:
		case <-deadline:
			t.Fatalf("%d deliveries after %s, want %d", have, conformanceTimeout, n)
		}
	}
}

// receive runs the receiver into k and returns a function that stops it.
func (in *instance) receive(t *testing.T, k *sink) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- in.Receiver().Run(ctx, k.emit) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("receiver: %v", err)
		}
		if k.overlap.Load() {
			t.Error("calls of emit overlapped")
		}
	})
	t.Cleanup(stop)
	return stop
}

func numbers(from, to int) []string {
	var all []string
	for i := from; i < to; i++ {
		all = append(all, strconv.Itoa(i))
	}
	return all
}

func (c *conformance) publish(t *testing.T, from, to int) {
	t.Helper()
	for _, p := range numbers(from, to) {
		c.h.Publish(t, c.topic("in/"+p), []byte(p))
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(conformanceTimeout)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not in %s: %s", conformanceTimeout, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func testOrderAndAck(t *testing.T, c *conformance) {
	in := c.open(t)
	k := newSink(-1)
	in.receive(t, k)
	in.ready(t)
	c.publish(t, 0, 50)
	for _, d := range k.waitFor(t, 50) {
		if d.Envelope.Topic != c.topic("in/"+string(d.Envelope.Payload)) {
			t.Errorf("topic %q for payload %q", d.Envelope.Topic, d.Envelope.Payload)
		}
		if !d.Redeliverable || d.ReceivedAt.IsZero() || d.Envelope.ID == "" {
			t.Errorf("delivery is incomplete: %+v", d.Envelope)
		}
		d.Ack()
		d.Ack() // a second settlement does nothing
	}
	in.Receiver().Flush()
	if got := k.payloads(); !slices.Equal(got, numbers(0, 50)) {
		t.Errorf("order %v", got)
	}
	if err := in.stop(); err != nil {
		t.Fatal(err)
	}
	again := c.open(t)
	k = newSink(-1)
	again.receive(t, k)
	again.ready(t)
	c.publish(t, 50, 51)
	k.waitFor(t, 1)
	if got := k.payloads(); !slices.Equal(got, numbers(50, 51)) {
		t.Errorf("after a restart came %v, want only the new message", got)
	}
}

func testRedelivery(t *testing.T, c *conformance) {
	in := c.open(t)
	k := newSink(-1)
	in.receive(t, k)
	in.ready(t)
	c.publish(t, 0, 20)
	for _, d := range k.waitFor(t, 20)[:8] {
		d.Ack()
	}
	in.Receiver().Flush()
	if err := in.stop(); err != nil {
		t.Fatal(err)
	}
	again := c.open(t)
	k = newSink(-1)
	again.receive(t, k)
	for _, d := range k.waitFor(t, 12) {
		d.Ack()
	}
	again.Receiver().Flush()
	if got := k.payloads(); !slices.Equal(got, numbers(8, 20)) {
		t.Errorf("redelivered %v, want 8 to 19", got)
	}
}

func testAckOutOfOrder(t *testing.T, c *conformance) {
	in := c.open(t)
	k := newSink(-1)
	in.receive(t, k)
	in.ready(t)
	c.publish(t, 0, 30)
	all := k.waitFor(t, 30)
	for _, i := range []int{29, 7, 3, 11, 0, 2, 1} {
		all[i].Ack()
	}
	for _, d := range all {
		d.Ack()
	}
	in.Receiver().Flush()
	eventually(t, "nothing is unsettled", func() bool { return in.Health().UnsettledCount == 0 })
	if err := in.stop(); err != nil {
		t.Fatal(err)
	}
	again := c.open(t)
	k = newSink(-1)
	again.receive(t, k)
	again.ready(t)
	c.publish(t, 30, 31)
	k.waitFor(t, 1)
	if got := k.payloads(); !slices.Equal(got, numbers(30, 31)) {
		t.Errorf("after all were acknowledged came %v", got)
	}
}

func testPartialTake(t *testing.T, c *conformance) {
	in := c.open(t)
	k := newSink(5)
	in.receive(t, k)
	in.ready(t)
	c.publish(t, 0, 20)
	first := k.waitFor(t, 5)
	for len(k.payloads()) < 20 {
		n := len(k.payloads())
		k.mu.Lock()
		k.room = 5
		k.mu.Unlock()
		in.Receiver().Resume()
		k.waitFor(t, n+5)
	}
	if got := k.payloads(); !slices.Equal(got, numbers(0, 20)) {
		t.Errorf("order %v", got)
	}
	for _, d := range first {
		d.Ack()
	}
}

func testStopIntake(t *testing.T, c *conformance) {
	in := c.open(t)
	k := newSink(-1)
	stop := in.receive(t, k)
	in.ready(t)
	c.publish(t, 0, 10)
	all := k.waitFor(t, 10)
	stop()
	c.publish(t, 10, 15)
	in.Receiver().Resume()
	for _, d := range all {
		d.Ack()
	}
	in.Receiver().Flush()
	if err := in.stop(); err != nil {
		t.Fatal(err)
	}
	if got := len(k.payloads()); got != 10 {
		t.Errorf("%d deliveries after the receiver was stopped at 10", got)
	}
	again := c.open(t)
	k = newSink(-1)
	again.receive(t, k)
	k.waitFor(t, 5)
	if got := k.payloads(); !slices.Equal(got, numbers(10, 15)) {
		t.Errorf("the next instance received %v, want 10 to 14", got)
	}
}

// sendBound is how long Send may take: it waits for nothing.
const sendBound = 500 * time.Millisecond

// outcomes records completions. Its lock is held around every Send, as an engine
// holds a route's: a Done inside Send would never come back.
type outcomes struct {
	mu      sync.Mutex
	results map[*gobridge.Outbound][]error
	flushes int
	changed chan struct{}
}

func newOutcomes() *outcomes {
	return &outcomes{results: map[*gobridge.Outbound][]error{}, changed: make(chan struct{}, 1)}
}

func (o *outcomes) Done(m *gobridge.Outbound, err error) {
	o.mu.Lock()
	o.results[m] = append(o.results[m], err)
	o.mu.Unlock()
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

// send hands a message over under the lock, and fails the test when that takes
// long, as it would with a Done inside.
func (o *outcomes) send(t *testing.T, s gobridge.Sender, m *gobridge.Outbound) error {
	t.Helper()
	done := make(chan error, 1)
	began := time.Now()
	go func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		done <- s.Send(m)
	}()
	select {
	case err := <-done:
		if took := time.Since(began); took > sendBound {
			t.Errorf("Send took %s", took)
		}
		return err
	case <-time.After(conformanceTimeout):
		t.Fatal("Send did not return: it waits for something, or calls Done")
		return nil
	}
}

func (o *outcomes) message(c *conformance, payload string) *gobridge.Outbound {
	return &gobridge.Outbound{
		Envelope:   &gobridge.Envelope{ID: "id-" + payload, IDOrigin: gobridge.IDProducer, Payload: []byte(payload), QoS: 1},
		Address:    c.topic("out"),
		Timeout:    conformanceTimeout,
		Completion: o,
	}
}

// waitFor waits until n messages are completed and flushed.
func (o *outcomes) waitFor(t *testing.T, n int) {
	t.Helper()
	deadline := time.After(conformanceTimeout)
	for {
		o.mu.Lock()
		have := len(o.results)
		o.mu.Unlock()
		if have >= n {
			return
		}
		select {
		case <-o.changed:
		case <-deadline:
			t.Fatalf("%d outcomes after %s, want %d", have, conformanceTimeout, n)
		}
	}
}

// check asserts one outcome each, and nil where ok.
func (o *outcomes) check(t *testing.T, want error) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	for m, errs := range o.results {
		if len(errs) != 1 || !errors.Is(errs[0], want) {
			t.Errorf("outcomes of %s: %v, want one: %v", m.Envelope.Payload, errs, want)
		}
	}
	if o.flushes == 0 {
		t.Error("completions were never flushed")
	}
}

func testSend(t *testing.T, c *conformance) {
	c.h.Watch(t, c.topic("out"))
	in := c.open(t)
	in.ready(t)
	o := newOutcomes()
	s := in.Sender("out")
	for _, p := range numbers(0, 500) {
		if err := o.send(t, s, o.message(c, p)); err != nil {
			t.Fatalf("send %s: %v", p, err)
		}
	}
	s.Flush()
	o.waitFor(t, 500)
	o.check(t, nil)
	ctx, cancel := context.WithTimeout(context.Background(), conformanceTimeout)
	defer cancel()
	if got := c.h.Received(ctx, t, c.topic("out"), 500); !slices.Equal(got, numbers(0, 500)) {
		t.Errorf("the broker received %d messages, or in another order", len(got))
	}
}

func testSendUnavailable(t *testing.T, c *conformance) {
	s := c.session(t)
	snd := s.Sender("out")
	o := newOutcomes()
	if err := o.send(t, snd, o.message(c, "early")); err == nil || !gobridge.AsError(err).Outage {
		t.Errorf("Send before Run: %v, want an outage", err)
	}
	if err := snd.Available(); err == nil {
		t.Error("Available before Run")
	}
	available := make(chan struct{}, 1)
	snd.Notify(func() {
		select {
		case available <- struct{}{}:
		default:
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	select {
	case <-available:
	case <-time.After(conformanceTimeout):
		t.Fatal("Notify was not called")
	}
	if err := o.send(t, snd, o.message(c, "now")); err != nil {
		t.Errorf("Send after Notify: %v", err)
	}
	snd.Flush()
	o.waitFor(t, 1)
	o.check(t, nil)
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
	if err := o.send(t, snd, o.message(c, "late")); err == nil || !gobridge.AsError(err).Outage {
		t.Errorf("Send after Run: %v, want an outage", err)
	}
}

func testRunCompletes(t *testing.T, c *conformance) {
	in := c.open(t)
	in.ready(t)
	o := newOutcomes()
	s := in.Sender("out")
	taken := 0
	for _, p := range numbers(0, 300) {
		if o.send(t, s, o.message(c, p)) == nil {
			taken++
		}
	}
	s.Flush()
	if err := in.stop(); err != nil {
		t.Fatal(err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if taken == 0 {
		t.Error("a ready session took no message")
	}
	if len(o.results) != taken {
		t.Errorf("%d of %d messages were completed when Run returned", len(o.results), taken)
	}
	for m, errs := range o.results {
		if len(errs) != 1 {
			t.Errorf("%d outcomes of %s", len(errs), m.Envelope.Payload)
		}
		if errs[0] != nil && !gobridge.AsError(errs[0]).Outage {
			t.Errorf("outcome of %s: %v, want nil or an outage", m.Envelope.Payload, errs[0])
		}
	}
}

func testInvalidAddress(t *testing.T, c *conformance) {
	in := c.open(t)
	in.ready(t)
	o := newOutcomes()
	m := o.message(c, "x")
	m.Address = c.h.InvalidAddress
	err := in.Sender("out").Send(m)
	if err == nil || gobridge.AsError(err).Class != gobridge.ClassRejected {
		t.Errorf("Send to %q: %v, want a rejection", m.Address, err)
	}
	if h := in.Health(); !h.Connected {
		t.Error("an invalid address cost the connection")
	}
}

func testConcurrentSend(t *testing.T, c *conformance) {
	in := c.open(t)
	in.ready(t)
	o := newOutcomes()
	s := in.Sender("out")
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 50 {
				if err := s.Send(o.message(c, fmt.Sprintf("%d-%d", g, i))); err != nil {
					t.Errorf("send: %v", err)
				}
				s.Flush()
			}
		})
	}
	wg.Wait()
	o.waitFor(t, 400)
	o.check(t, nil)
}
