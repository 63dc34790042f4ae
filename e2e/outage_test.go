package e2e

import (
	"testing"
	"time"

	"github.com/gobridge/gobridge/bridgetest"
)

func TestOutageOfTheDestinationHoldsMessagesAtTheSource(t *testing.T) {
	// What waits would show in the memory of the bridge if the bridge kept it: the
	// second part is more than twice the permitted growth.
	first, second := pick(500, 2000), pick(3500, 18_000)
	size := pick(12_000, 2000)
	const growth = 16 << 20
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	early, late := collect(t, dest.Addr(), "out/in/early"), bridgetest.StartCollector(t, bridgetest.CollectorConfig{
		Addr: dest.Addr(), Filter: "out/in/late", ClientID: "late",
	})
	b := between(t, source.URL(), dest.URL()).start(t)
	b.waitReady("")
	dest.Stop()
	b.waitNotReady("destination", patience)

	send := func(topic string, n int) *bridgetest.Publisher {
		pub := bridgetest.StartPublisher(t, bridgetest.PublisherConfig{Addr: source.Addr(), Topic: topic, ClientID: topic, N: n, QoS: 1, PayloadSize: size})
		pub.Wait(t, time.Minute)
		return pub
	}
	earlyPub := send("in/early", first)
	b.eventually(patience, "a full route", func() bool { return b.metrics().sum("gobridge_messages_in_flight") >= 192 })
	before, _ := b.RSS()
	latePub := send("in/late", second)
	after, _ := b.RSS()
	if n := b.metrics().sum("gobridge_dlq_depth") + b.counter("messages_dropped"); n != 0 {
		t.Errorf("%v messages given up during the outage", n)
	}

	dest.Start()
	back := time.Now()
	earlyReport := finish(t, earlyPub, early, first, b, time.Minute)
	lateReport := finish(t, latePub, late, second, b, time.Minute)
	took := time.Since(back)
	end, peak := b.RSS()
	t.Logf("early: %v", earlyReport)
	t.Logf("late: %v", lateReport)
	t.Logf("RSS with %d waiting %s, with %d waiting %s, after delivery %s, peak %s; delivered within %v of the return",
		first, megabytes(before), first+second, megabytes(after), megabytes(end), megabytes(peak), took.Round(time.Millisecond))
	exactlyOnce(t, earlyReport)
	exactlyOnce(t, lateReport)
	if after > before+growth {
		t.Errorf("memory grew by %s while messages waited at the source, want at most %s", megabytes(after-before), megabytes(growth))
	}
	b.quietLosses()
	b.conserved()
	b.stop()
}

// What is published while the link is dead, and nobody knows yet, is not lost.
func TestSilentOutageLosesNothing(t *testing.T) {
	t.Parallel()
	seconds := pick(8, 90)
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	link := bridgetest.NewProxy(t, dest.Addr())
	cfg := between(t, source.URL(), link.URL())
	cfg.dest["keep_alive"] = 2
	cfg.dest["connect_timeout"] = "2s"
	col := collect(t, dest.Addr(), "out/#")
	b := cfg.start(t)
	b.waitReady("")

	n := seconds * 10
	link.BlackHole(true)
	pub := bridgetest.StartPublisher(t, bridgetest.PublisherConfig{Addr: source.Addr(), Topic: "in/x", N: n, QoS: 1, Rate: 10})
	pub.Wait(t, time.Duration(seconds)*time.Second+patience)
	b.eventually(patience, "the route holds as much as it may", func() bool {
		return b.metrics().sum("gobridge_messages_in_flight") == float64(min(n, 192))
	})
	link.BlackHole(false)
	r := finish(t, pub, col, n, b, time.Minute)
	t.Log(r)
	nothingLost(t, r)
	if r.Unexplained > 2*192 {
		t.Errorf("%d duplicates, want at most %d", r.Unexplained, 2*192)
	}
	b.quietLosses()
	b.conserved()
	if n := b.metrics().sum("gobridge_messages_in_flight"); n != 0 {
		t.Errorf("%v messages in flight at the end", n)
	}
	b.stop()
}

// A destination that does not answer must not cost the connection to the source.
//
// Covers: S1-601
func TestHangingDestinationDoesNotDisconnectTheSource(t *testing.T) {
	const keepAlive = 5
	hang, n := time.Duration(pick(12, 60))*time.Second, pick(1000, 5000)
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{LogPublishes: true})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	link := bridgetest.NewProxy(t, dest.Addr())
	cfg := between(t, source.URL(), link.URL())
	cfg.source["keep_alive"], cfg.dest["keep_alive"] = keepAlive, keepAlive
	cfg.dest["connect_timeout"] = "5s"
	col := collect(t, dest.Addr(), "out/#")
	b := cfg.start(t)
	b.waitReady("")

	pub := bridgetest.StartPublisher(t, bridgetest.PublisherConfig{Addr: source.Addr(), Topic: "in/x", N: n, QoS: 1, Rate: float64(n) / hang.Seconds(), PayloadSize: 100})
	mustCount(t, col, n/20, b, patience)
	link.BlackHole(true)
	over := time.NewTimer(hang)
	defer over.Stop()
	select {
	case <-over.C: // the behaviour under test takes this long
	case <-b.Exited():
		t.Fatal("the bridge ended")
	}
	link.BlackHole(false)

	r := finish(t, pub, col, n, b, time.Minute)
	tr := trafficTo(source.Log(), sourceID)
	t.Logf("%v; connects at the source %d, most outstanding %d", r, tr.connects, tr.peak)
	nothingLost(t, r)
	if r.Unexplained > 2*192 {
		t.Errorf("%d duplicates, want at most %d", r.Unexplained, 2*192)
	}
	if tr.connects != 1 {
		t.Errorf("the source saw %d connects, want 1", tr.connects)
	}
	if n := b.counter("mqtt_reconnects", `session_id="source"`); n != 0 {
		t.Errorf("%v reconnects of the source session, want 0", n)
	}
	b.quietLosses()
	b.conserved()
	b.stop()
}

// The same with a destination that lives and holds its acknowledgements back.
func TestSlowAcknowledgementsAreWaitedFor(t *testing.T) {
	t.Parallel()
	const n = 300
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{LogPublishes: true})
	fake := bridgetest.NewFakeBroker(t)
	dest := fake.Auto(bridgetest.AutoConfig{AckDelay: time.Duration(pick(6, 25)) * time.Second})
	cfg := between(t, source.URL(), fake.URL())
	cfg.source["keep_alive"], cfg.dest["keep_alive"] = 2, 2
	b := cfg.start(t)
	b.waitReady("")
	pub := publishN(t, source.Addr(), "in/x", n)
	pub.Wait(t, patience)
	dest.Wait(2*time.Minute, func(s bridgetest.AutoStats) bool { return s.Received == n })
	b.eventually(time.Minute, "all sent", func() bool { return b.counter("messages_sent") == n })
	r := dest.Report(pub.Ledger())
	t.Log(r)
	exactlyOnce(t, r)
	if c := fake.Connections(); c != 1 {
		t.Errorf("the destination saw %d connections, want 1", c)
	}
	b.settled()
	if tr := trafficTo(source.Log(), sourceID); tr.connects != 1 {
		t.Errorf("the source saw %d connects, want 1", tr.connects)
	}
	b.conserved()
	b.stop()
}
