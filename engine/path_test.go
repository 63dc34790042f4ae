package engine_test

import (
	"context"
	"testing"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/engine"
	storemem "github.com/gobridge/gobridge/store/memory"
)

// pipe is a session without a network: what is offered comes straight back as
// confirmed, so that only the engine is measured.
type pipe struct {
	pending []*gobridge.Outbound
	emit    gobridge.Emit
	running chan struct{}
}

func (p *pipe) Run(ctx context.Context) error { <-ctx.Done(); return nil }
func (p *pipe) Receiver() gobridge.Receiver   { return (*pipeReceiver)(p) }
func (p *pipe) Sender(string) gobridge.Sender { return p }
func (p *pipe) Health() gobridge.SessionHealth {
	return gobridge.SessionHealth{ServiceLevel: gobridge.LevelFull}
}

func (p *pipe) Send(m *gobridge.Outbound) error { p.pending = append(p.pending, m); return nil }
func (p *pipe) Available() error                { return nil }
func (p *pipe) Notify(func())                   {}
func (p *pipe) Flush()                          {}
func (p *pipe) confirm() {
	for _, m := range p.pending {
		m.Completion.Done(m, nil)
	}
	if len(p.pending) > 0 {
		c := p.pending[0].Completion
		p.pending = p.pending[:0]
		c.Flush()
	}
}

type pipeReceiver pipe

func (r *pipeReceiver) Run(ctx context.Context, emit gobridge.Emit) error {
	r.emit = emit
	close(r.running)
	<-ctx.Done()
	return nil
}
func (r *pipeReceiver) Resume() {}
func (r *pipeReceiver) Flush()  {}

type nothing struct{}

func (nothing) Ack()                             {}
func (nothing) Retry(time.Duration, error) error { return nil }
func (nothing) Extend(time.Time) error           { return nil }

func newPipe(tb testing.TB) *pipe {
	p := &pipe{running: make(chan struct{})}
	kind := &gobridge.Transport{
		Name:           "pipe",
		SessionOptions: func() any { return &struct{}{} }, ReceiverOptions: func() any { return &struct{}{} }, SenderOptions: func() any { return &struct{}{} },
		Check:        func(*gobridge.SessionUse, gobridge.Report) {},
		Endpoints:    func(s *gobridge.SessionSpec) []string { return nil },
		CheckAddress: func(string) error { return nil },
		Open:         func(*gobridge.SessionUse, gobridge.Env) (gobridge.Session, error) { return p, nil },
	}
	spec := &gobridge.Spec{
		Bridge:    gobridge.BridgeSpec{ID: "path"},
		Stores:    gobridge.StoresSpec{DLQ: gobridge.StoreSpec{Type: "memory"}, ReplayLedger: gobridge.StoreSpec{Type: "memory"}},
		Sessions:  []gobridge.SessionSpec{{ID: "s", Transport: "pipe", Options: &struct{}{}}},
		Receivers: []gobridge.ReceiverSpec{{ID: "in", SessionID: "s", Topics: []gobridge.TopicSpec{{Topic: "in/#"}}, Options: &struct{}{}}},
		Senders:   []gobridge.SenderSpec{{ID: "out", SessionID: "s", Options: &struct{}{}}},
		Routes: []gobridge.RouteSpec{{
			ID: "r", ReceiverID: "in", Bindings: []gobridge.BindingSpec{{SenderID: "out", Address: "{topic}"}},
			Policy: gobridge.PolicySpec{AllowCycle: true},
		}},
	}
	e, err := engine.New(spec, engine.Options{Kinds: &gobridge.Kinds{
		Transports: []*gobridge.Transport{kind}, DLQs: []*gobridge.DLQKind{storemem.DLQKind()}, Ledgers: []*gobridge.LedgerKind{storemem.LedgerKind()},
	}})
	if err != nil {
		tb.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	tb.Cleanup(func() {
		stop()
		<-done
	})
	<-p.running
	return p
}

// burst makes n deliveries that can be used again and again.
func burst(n int) (batch []*gobridge.Delivery, renew func()) {
	store := make([]gobridge.Delivery, n)
	for i := range store {
		batch = append(batch, &store[i])
	}
	return batch, func() {
		for i := range store {
			store[i] = gobridge.Delivery{
				Envelope:      gobridge.Envelope{ID: "id", IDOrigin: gobridge.IDProducer, Topic: "in/x", QoS: 1},
				Redeliverable: true,
			}
			store[i].SetSettler(nothing{})
		}
	}
}

func TestTheEngineAllocatesNothingPerMessage(t *testing.T) {
	p := newPipe(t)
	batch, renew := burst(100)
	got := testing.AllocsPerRun(50, func() {
		renew()
		if n, err := p.emit(batch); n != len(batch) || err != nil {
			t.Fatalf("emit took %d, %v", n, err)
		}
		p.confirm()
	})
	if per := got / float64(len(batch)); per > 0.01 {
		t.Errorf("%.2f allocations a message between receiver and sender, want none", per)
	}
}

func BenchmarkDirectHold(b *testing.B) {
	p := newPipe(b)
	batch, renew := burst(100)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		renew()
		if _, err := p.emit(batch); err != nil {
			b.Fatal(err)
		}
		p.confirm()
		n += len(batch)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/msg")
}
