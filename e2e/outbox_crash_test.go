package e2e

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gobridge/gobridge/admin"
	"github.com/gobridge/gobridge/bridgetest"
)

// G05, G06: with ids of the producer, a crash repeats what was sent and whose
// completion had not been stored, and nothing else.
//
// Covers: S1-307, S1-308, G05, G06
func TestKilledOutboxRepeatsOnlyWhatWasNotCompleted(t *testing.T) {
	n, kills := pick(4000, 20_000), pick(4, 10)
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	link := bridgetest.NewProxy(t, dest.Addr())
	link.Delay(25 * time.Millisecond) // keeps the window full and records in the outbox
	cfg := viaOutbox(t, source.URL(), link.URL())
	var got arrived
	col := bridgetest.StartCollector(t, bridgetest.CollectorConfig{Addr: dest.Addr(), Filter: "out/#", OnMessage: got.note})
	b := cfg.start(t)
	b.waitReady("")

	began := time.Now()
	pub := bridgetest.StartPublisher(t, bridgetest.PublisherConfig{
		Addr: source.Addr(), Topic: "in/x", N: n, QoS: 1, PayloadSize: 100, MessageIDs: true,
	})
	bound, records := 0, 0 // records: in the outbox when the last process began
	for i := 1; i <= kills; i++ {
		mustCount(t, col, n*i/(kills+1), b, time.Minute)
		b.Kill9()
		published := pub.Ledger().Acked
		// What had left the process may still arrive.
		if !col.WaitQuiet(200*time.Millisecond, patience) {
			t.Fatal("messages still arrive from a killed bridge")
		}
		left := ask[admin.OutboxStatus](t, "outbox", "list", "-c", cfg.path, "--limit", "0")
		repeats := 0
		for _, r := range left.Records {
			if got.has(r.MessageID) {
				repeats++
			}
		}
		bound += repeats
		records = len(left.Records)
		t.Logf("kill %d: %d published, %d arrived, %d in the outbox, %d of these had arrived", i, published, col.Count(), len(left.Records), repeats)
		if len(left.Records) == 0 {
			t.Errorf("kill %d: the outbox is empty", i)
		}
		b = cfg.start(t)
	}
	pub.Wait(t, time.Minute)
	source.Restart()
	dest.Restart()
	b.waitReady("")

	r := finish(t, pub, col, n, b, time.Minute)
	took := time.Since(began)
	b.waitDepth(0, patience)
	t.Logf("%v; %d kills in %v, duplicates at most %d and a window", r, kills, took.Round(time.Millisecond), bound)
	nothingLost(t, r)
	// The restarted destination may get again what it had not acknowledged.
	if bound += 192; r.Unexplained > bound {
		t.Errorf("%d duplicates, want at most %d", r.Unexplained, bound)
	}
	b.quietLosses()
	b.conservedSince(records)
	b.stop()
}

// Kills at any moment, that of starting included, while the destination comes and
// goes: what was acknowledged to the source arrives.
//
// Covers: S1-308, S1-404, G06
func TestKillsAtRandomMomentsLoseNothing(t *testing.T) {
	kills := pick(10, 200)
	const rate = 1000
	n := kills * rate / 3
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	pause := func(limit time.Duration) { time.Sleep(time.Duration(random.Int64N(int64(limit)))) } // the moment is the point
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	cfg := viaOutbox(t, source.URL(), dest.URL())
	for _, s := range []doc{cfg.source, cfg.dest} {
		s["reconnect_delay"], s["reconnect_max_delay"] = "10ms", "100ms"
	}
	cfg.policy["max_outbox_depth"] = 1_000_000
	col := collect(t, dest.Addr(), "out/#")
	b := cfg.start(t)
	b.waitReady("")

	began := time.Now()
	pub := bridgetest.StartPublisher(t, bridgetest.PublisherConfig{
		Addr: source.Addr(), Topic: "in/x", N: n, QoS: 1, PayloadSize: 100, Rate: rate, MessageIDs: true,
	})
	up, flaps, starting := true, 0, 0
	p := b.Process
	for range kills {
		pause(200 * time.Millisecond)
		if random.IntN(3) == 0 {
			flaps++
			if up = !up; up {
				dest.Start()
			} else {
				dest.Stop()
			}
		}
		p.Kill9()
		if random.IntN(3) == 0 {
			starting++
			p = cfg.spawn(t)
			pause(100 * time.Millisecond)
			p.Kill9()
		}
		p = cfg.start(t).Process
	}
	if !up {
		dest.Start()
	}
	p.Kill9()
	b = cfg.start(t)
	r := finish(t, pub, col, n, b, 2*time.Minute)
	b.waitDepth(0, patience)
	t.Logf("%v; %d kills, %d while starting, the destination went or came %d times, in %v",
		r, kills, starting, flaps, time.Since(began).Round(time.Millisecond))
	nothingLost(t, r)
	b.waitReady("")
	b.quietLosses()
	b.stop()
}

// A stop completes what was sent. What waits in the outbox is safe.
func TestStopsOfAnOutboxLoseAndRepeatNothing(t *testing.T) {
	t.Run("under load", func(t *testing.T) {
		n, stops := pick(4000, 20_000), pick(4, 20)
		source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
		dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
		cfg := viaOutbox(t, source.URL(), dest.URL())
		col := collect(t, dest.Addr(), "out/#")
		b := cfg.start(t)
		b.waitReady("")
		pub := publishN(t, source.Addr(), "in/x", n)
		var longest time.Duration
		for i := 1; i <= stops; i++ {
			mustCount(t, col, n*i/(stops+1), b, time.Minute)
			began := time.Now()
			b.stop()
			longest = max(longest, time.Since(began))
			b = cfg.start(t)
		}
		r := finish(t, pub, col, n, b, time.Minute)
		b.waitDepth(0, patience)
		t.Logf("%v; %d stops, the longest took %v", r, stops, longest.Round(time.Millisecond))
		exactlyOnce(t, r)
		if r.OutOfOrder > 0 {
			t.Errorf("%d messages out of order, want 0", r.OutOfOrder)
		}
		b.quietLosses()
		b.stop()
	})
	t.Run("destination down", func(t *testing.T) {
		n := pick(1000, 9000)
		source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{LogPublishes: true})
		dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
		cfg := viaOutbox(t, source.URL(), dest.URL())
		col := collect(t, dest.Addr(), "out/#")
		b := cfg.start(t)
		b.waitReady("")
		dest.Stop()
		b.waitNotReady("destination", patience)
		pub := publishN(t, source.Addr(), "in/x", n)
		pub.Wait(t, patience)
		b.waitDepth(n, patience)
		b.stop()
		expectAcked(t, source, n)
		dest.Start()
		b = cfg.start(t)
		r := finish(t, pub, col, n, b, time.Minute)
		b.waitDepth(0, patience)
		t.Log(r)
		exactlyOnce(t, r)
		if r.OutOfOrder > 0 {
			t.Errorf("%d messages out of order, want 0", r.OutOfOrder)
		}
		if replays := b.counter("outbox_replays"); replays > 0 {
			t.Errorf("%v charged failed sends, want 0: nothing failed", replays)
		}
		b.conservedSince(n)
		b.stop()
	})
}
