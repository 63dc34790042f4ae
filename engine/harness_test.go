package engine_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/engine"
	"github.com/gobridge/gobridge/metric"
	storemem "github.com/gobridge/gobridge/store/memory"
	"github.com/gobridge/gobridge/transport/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bridge is a running engine between a source hub and a destination hub.
type bridge struct {
	t      *testing.T
	src    *memory.Hub
	dst    *memory.Hub
	dlq    *faultyDLQ
	outbox *faultyOutbox
	engine *engine.Engine
	env    gobridge.Env // of the source's session
	stop   context.CancelFunc
	done   chan error

	depthAtStart map[string]int
	redriven     bool // outcomes without a receipt: no conservation
}

// faultyDLQ is the memory queue with a switchable fault.
type faultyDLQ struct {
	*storemem.DLQ
	mu  sync.Mutex
	err error
	n   int
}

func (q *faultyDLQ) fail(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.err = err
}

func (q *faultyDLQ) Put(ctx context.Context, d *gobridge.DeadLetter) (bool, error) {
	q.mu.Lock()
	err := q.err
	q.n++
	q.mu.Unlock()
	if err != nil {
		return false, err
	}
	return q.DLQ.Put(ctx, d)
}

func (q *faultyDLQ) Err() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if errors.Is(q.err, gobridge.ErrFull) {
		return nil // bounds are no failure
	}
	return q.err
}

func (q *faultyDLQ) all() []*gobridge.DeadLetter {
	return collect(q.List(context.Background(), gobridge.DLQFilter{}))
}

func collect(seq iter.Seq2[*gobridge.DeadLetter, error]) []*gobridge.DeadLetter {
	var all []*gobridge.DeadLetter
	for d := range seq {
		all = append(all, d)
	}
	return all
}

// faultyOutbox is the memory outbox with switchable faults.
type faultyOutbox struct {
	*storemem.Outbox
	mu                  sync.Mutex
	persistErr, doneErr error
	beforePersist       func()        // called once, by the next Persist that succeeds
	slow                time.Duration // how long a failure takes; set before the first
	told                chan struct{} // closed after the latest failure was reported
}

func (o *faultyOutbox) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.persistErr = err
}

// repair ends the failures; before is called in the next Persist.
func (o *faultyOutbox) repair(before func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.persistErr, o.beforePersist = nil, before
}

func (o *faultyOutbox) failComplete(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.doneErr = err
}

// refuse reports failures in the order of the calls, as a store does. Called with mu
// held.
func (o *faultyOutbox) refuse(records []*gobridge.OutboxRecord, done gobridge.OutboxDone, err error) {
	earlier, told := o.told, make(chan struct{})
	o.told = told
	go func() {
		defer close(told)
		if earlier != nil {
			<-earlier
		}
		time.Sleep(o.slow)
		done.OutboxDone(records, err)
	}()
}

func (o *faultyOutbox) Persist(records []*gobridge.OutboxRecord, done gobridge.OutboxDone) {
	o.mu.Lock()
	err, before := o.persistErr, o.beforePersist
	o.beforePersist = nil
	if err != nil {
		o.refuse(records, done, err)
	}
	o.mu.Unlock()
	if err != nil {
		return
	}
	if before != nil {
		before()
	}
	o.Outbox.Persist(records, done)
}

func (o *faultyOutbox) Complete(records []*gobridge.OutboxRecord, done gobridge.OutboxDone) {
	o.mu.Lock()
	err := o.doneErr
	if err != nil {
		o.refuse(records, done, err)
	}
	o.mu.Unlock()
	if err != nil {
		return
	}
	o.Outbox.Complete(records, done)
}

// spec is one route from hub a to hub b.
func spec(change func(r *gobridge.RouteSpec)) *gobridge.Spec {
	s := &gobridge.Spec{
		Bridge: gobridge.BridgeSpec{ID: "test"},
		Stores: gobridge.StoresSpec{DLQ: gobridge.StoreSpec{Type: "faulty"}, ReplayLedger: gobridge.StoreSpec{Type: "memory"}},
		Sessions: []gobridge.SessionSpec{
			{ID: "a", Transport: "src", Options: &memory.SessionOptions{}},
			{ID: "b", Transport: "dst", Options: &memory.SessionOptions{}},
		},
		Receivers: []gobridge.ReceiverSpec{{
			ID: "in", SessionID: "a", Topics: []gobridge.TopicSpec{{Topic: "in/#"}}, Options: &memory.ReceiverOptions{},
		}},
		Senders: []gobridge.SenderSpec{{ID: "out", SessionID: "b", Options: &memory.SenderOptions{}}},
		Routes: []gobridge.RouteSpec{{
			ID: "r", ReceiverID: "in", Bindings: []gobridge.BindingSpec{{ID: "b0", SenderID: "out", Address: "out/{topic}"}},
		}},
	}
	if change != nil {
		change(&s.Routes[0])
	}
	return s
}

// start runs an engine inside a synctest bubble.
func start(t *testing.T, s *gobridge.Spec) *bridge {
	t.Helper()
	return startOn(t, s, storemem.NewOutboxStore(time.Hour))
}

// startOn runs an engine on an outbox that may have a past.
func startOn(t *testing.T, s *gobridge.Spec, store *storemem.OutboxStore) *bridge {
	t.Helper()
	b := &bridge{t: t, src: memory.NewHub(), dst: memory.NewHub(), done: make(chan error, 1)}
	b.dlq = &faultyDLQ{DLQ: storemem.NewDLQ(0)}
	src, dst := memory.Transport(b.src), memory.Transport(b.dst)
	src.Name, dst.Name = "src", "dst"
	open := src.Open
	src.Open = func(use *gobridge.SessionUse, env gobridge.Env) (gobridge.Session, error) {
		if b.env.Quiesce == nil { // the same for every instance
			b.env = env
		}
		return open(use, env)
	}
	faulty := storemem.DLQKind()
	faulty.Name = "faulty"
	faulty.Open = func(context.Context, *gobridge.BridgeSpec, *gobridge.StoreSpec, gobridge.Env) (gobridge.DLQ, error) {
		return b.dlq, nil
	}
	outbox := storemem.OutboxKind()
	outbox.Open = func(context.Context, *gobridge.BridgeSpec, *gobridge.StoreSpec, gobridge.Env) (gobridge.Outbox, error) {
		b.outbox = &faultyOutbox{Outbox: store.Open()}
		return b.outbox, nil
	}
	e, err := engine.New(s, engine.Options{Kinds: &gobridge.Kinds{
		Transports: []*gobridge.Transport{src, dst},
		Outboxes:   []*gobridge.OutboxKind{outbox},
		DLQs:       []*gobridge.DLQKind{faulty},
		Ledgers:    []*gobridge.LedgerKind{storemem.LedgerKind()},
	}})
	if err != nil {
		t.Fatal(err)
	}
	b.engine = e
	b.depthAtStart = map[string]int{}
	if b.outbox != nil {
		for _, r := range e.Topology().Routes {
			for _, id := range r.BindingIDs {
				b.depthAtStart[id] = b.outbox.Depth(id)
			}
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	b.stop = stop
	go func() { b.done <- e.Run(ctx) }()
	t.Cleanup(func() { b.close() })
	synctest.Wait()
	return b
}

// close stops the bridge and returns what Run returned.
func (b *bridge) close() error {
	b.stop()
	err, ok := <-b.done
	if ok {
		close(b.done)
		b.conserve()
	}
	return err
}

// publish puts n numbered messages with producer ids into the source.
func (b *bridge) publish(n int, change ...func(*memory.Message)) {
	for i := range n {
		m := memory.Message{Topic: "in/" + strconv.Itoa(i), Payload: []byte(strconv.Itoa(i)), ID: fmt.Sprintf("id-%d", i), QoS: 1}
		for _, f := range change {
			f(&m)
		}
		b.src.Publish(m)
	}
	synctest.Wait()
}

// sent returns the payloads confirmed by the destination, in order.
func (b *bridge) sent() []string {
	var all []string
	for _, m := range b.dst.Sent() {
		all = append(all, string(m.Payload))
	}
	return all
}

func numbers(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = strconv.Itoa(i)
	}
	return all
}

// count sums the series of a counter.
func (b *bridge) count(d *metric.Desc, values ...string) int {
	sum := 0.0
	b.engine.Metrics().Each(func(s *metric.Series) {
		if s.Desc != d {
			return
		}
		for _, v := range values {
			if !slices.Contains(s.Values, v) {
				return
			}
		}
		if v, ok := s.Value(); ok {
			sum += v
		}
	})
	return int(sum)
}

// conserve asserts the conservation law for every binding.
func (b *bridge) conserve() {
	if b.redriven {
		return
	}
	b.t.Helper()
	topology := b.engine.Topology()
	for _, r := range topology.Routes {
		for _, id := range r.BindingIDs {
			in := b.count(metric.MessagesReceived, r.ID)
			out := b.count(metric.MessagesSent, id) + b.count(metric.MessagesDropped, id) + b.count(metric.MessagesExpired, id) +
				b.count(metric.DLQEntries, id) + b.count(metric.MessagesReturned, id) + b.count(metric.OutboxDuplicateSuppressed, id)
			if b.outbox != nil {
				out += b.outbox.Depth(id) - b.depthAtStart[id]
			}
			if in != out {
				b.t.Errorf("binding %s: %d admitted, %d outcomes", id, in, out)
			}
		}
	}
}

var errRefused = &gobridge.Error{Code: gobridge.CodeNotAuthorized, Class: gobridge.ClassPermanent, Op: "refused by test"}

var errBlip = &gobridge.Error{Code: gobridge.CodeUnavailable, Class: gobridge.ClassTransient, Op: "blip"}

var errStore = errors.New("store is broken")

func (b *bridge) wantSent(want []string) {
	b.t.Helper()
	if got := b.sent(); !slices.Equal(got, want) {
		b.t.Errorf("sent %v, want %v", got, want)
	}
}

func (b *bridge) wantUnsettled(want int) {
	b.t.Helper()
	if got := b.src.Unsettled(); got != want {
		b.t.Errorf("%d messages unsettled at the source, want %d", got, want)
	}
}

func wait(d time.Duration) {
	time.Sleep(d) // the bubble's clock, not ours
	synctest.Wait()
}
