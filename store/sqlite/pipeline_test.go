package sqlite

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/engine"
	"github.com/gobridge/gobridge/metric"
	storemem "github.com/gobridge/gobridge/store/memory"
	"github.com/gobridge/gobridge/transport/memory"
)

// runRoute runs a shared_outbox route from hub src to hub dst on an outbox with these
// settings, until the test ends.
func runRoute(t *testing.T, s settings, src, dst *memory.Hub) *engine.Engine {
	t.Helper()
	from, to := memory.Transport(src), memory.Transport(dst)
	from.Name, to.Name = "src", "dst"
	outbox := OutboxKind()
	outbox.Open = func(ctx context.Context, _ *gobridge.BridgeSpec, _ *gobridge.StoreSpec, env gobridge.Env) (gobridge.Outbox, error) {
		s.log, s.metrics = env.Logger, env.Metrics
		return attach(s, func(d *database) (*Outbox, error) { return newOutbox(ctx, d, time.Hour, maxDone) })
	}
	e, err := engine.New(&gobridge.Spec{
		Bridge: gobridge.BridgeSpec{ID: "test"},
		Stores: gobridge.StoresSpec{
			Outbox: gobridge.StoreSpec{Type: kindName}, DLQ: gobridge.StoreSpec{Type: "memory"}, ReplayLedger: gobridge.StoreSpec{Type: "memory"},
		},
		Sessions: []gobridge.SessionSpec{
			{ID: "a", Transport: "src", Options: &memory.SessionOptions{}},
			{ID: "b", Transport: "dst", Options: &memory.SessionOptions{}},
		},
		Receivers: []gobridge.ReceiverSpec{{
			ID: "in", SessionID: "a", Topics: []gobridge.TopicSpec{{Topic: "in/#"}}, Options: &memory.ReceiverOptions{},
		}},
		Senders: []gobridge.SenderSpec{{ID: "out", SessionID: "b", Options: &memory.SenderOptions{}}},
		Routes: []gobridge.RouteSpec{{
			ID: "r", ReceiverID: "in", DeliveryMode: gobridge.SharedOutbox,
			Bindings: []gobridge.BindingSpec{{ID: "b", SenderID: "out", Address: "out/{topic}"}},
		}},
	}, engine.Options{Kinds: &gobridge.Kinds{
		Transports: []*gobridge.Transport{from, to}, Outboxes: []*gobridge.OutboxKind{outbox},
		DLQs: []*gobridge.DLQKind{storemem.DLQKind()}, Ledgers: []*gobridge.LedgerKind{storemem.LedgerKind()},
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	waitFor(t, "the route is ready", func() bool { return len(e.Ready(gobridge.LevelFull)) == 0 })
	return e
}

// A disk whose every sync takes a fifth of a second: the groups grow, no message is
// acknowledged before the sync of its own has ended, each arrives once and in its
// place, and nobody is alarmed.
func TestSlowSyncHoldsTheSourceAndLosesNothing(t *testing.T) {
	t.Parallel()
	const n, wait = 1500, 200 * time.Millisecond
	s, v := faultySettings(t)
	src, dst := memory.NewHub(), memory.NewHub()
	e := runRoute(t, s, src, dst)

	var published atomic.Bool
	var syncs, early atomic.Int32
	v.onSync.Store(new(func() {
		all, before := published.Load(), src.Unsettled()
		time.Sleep(wait)
		syncs.Add(1)
		if all && src.Unsettled() != before {
			early.Add(1)
		}
	}))
	defer v.onSync.Store(nil)
	for i := range n {
		src.Publish(memory.Message{Topic: "in/x", Payload: []byte(strconv.Itoa(i)), QoS: 1})
	}
	if left := src.Unsettled(); left != n {
		t.Errorf("%d of %d messages are unsettled before the first sync has ended", left, n)
	}
	published.Store(true)

	began := time.Now()
	for len(dst.Sent()) < n || src.Unsettled() > 0 {
		if reasons := e.Ready(gobridge.LevelFull); len(reasons) > 0 {
			t.Fatalf("not ready on a slow disk: %+v", reasons)
		}
		if time.Since(began) > 30*time.Second {
			t.Fatalf("%d of %d messages arrived, %d unsettled", len(dst.Sent()), n, src.Unsettled())
		}
		time.Sleep(5 * time.Millisecond)
	}
	for i, m := range dst.Sent() {
		if string(m.Payload) != strconv.Itoa(i) {
			t.Fatalf("message %s arrived as number %d", m.Payload, i)
		}
	}
	t.Logf("%d messages in %v with %d syncs", n, time.Since(began).Round(time.Millisecond), syncs.Load())
	if got := early.Load(); got > 0 {
		t.Errorf("messages were acknowledged during %d syncs", got)
	}
	// A window of 192 goes into one group, with the completions of the one before.
	if got, most := int(syncs.Load()), 3*n/192; got > most {
		t.Errorf("%d syncs for %d messages, want at most %d", got, n, most)
	}
	if got := counted(e, metric.DLQEntries, metric.MessagesDropped, metric.OutboxReplays, metric.OutboxDuplicateSuppressed, metric.SendRetries); got != 0 {
		t.Errorf("%v messages given up, repeated or charged", got)
	}
}

// counted sums the series of counters.
func counted(e *engine.Engine, descs ...*metric.Desc) (sum float64) {
	e.Metrics().Each(func(s *metric.Series) {
		for _, d := range descs {
			if v, ok := s.Value(); ok && s.Desc == d {
				sum += v
			}
		}
	})
	return sum
}
