package e2e

import (
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/bridgetest"
)

// Covers: S1-110, S1-301, G01
func TestKilledBridgeLosesNothing(t *testing.T) {
	n, kills := pick(4000, 20_000), pick(4, 10)
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{LogPublishes: true})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	link := bridgetest.NewProxy(t, dest.Addr())
	link.Delay(25 * time.Millisecond) // keeps the window full and a queue at the source
	cfg := between(t, source.URL(), link.URL())
	col := collect(t, dest.Addr(), "out/#")
	b := cfg.start(t)
	b.waitReady("")

	began := time.Now()
	pub := publishN(t, source.Addr(), "in/x", n)
	for i := 1; i <= kills; i++ {
		mustCount(t, col, n*i/(kills+1), b, time.Minute)
		b.Kill9()
		if queued := pub.Ledger().Acked - trafficTo(source.Log(), sourceID).acked; queued <= 0 {
			t.Errorf("kill %d: the queue of the source is empty", i)
		}
		b = cfg.start(t)
	}
	pub.Wait(t, time.Minute)
	mustCount(t, col, n*kills/(kills+1)+n/(4*(kills+1)), b, time.Minute) // the last one is at work
	source.Restart()
	dest.Restart()
	b.waitReady("")

	r := finish(t, pub, col, n, b, time.Minute)
	took := time.Since(began)
	b.settled()
	tr := trafficTo(source.Log(), sourceID)
	// What the bridge had delivered and the source had not seen acknowledged is all
	// that a crash may repeat; the restarted destination may get again what was open.
	bound := sum(tr.openAtEnd) + tr.peakOfLast
	t.Logf("%v; %d kills in %v, duplicates at most %d, unacknowledged at each end of a connection %v, most outstanding %d",
		r, kills, took.Round(time.Millisecond), bound, tr.openAtEnd, tr.peak)
	nothingLost(t, r)
	if r.Unexplained > bound {
		t.Errorf("%d duplicates, want at most %d", r.Unexplained, bound)
	}
	if tr.connects < kills+2 {
		t.Errorf("the source saw %d connects, want at least %d", tr.connects, kills+2)
	}
	b.quietLosses()
	b.conserved()
	b.stop()
}

// Covers: S1-301, G01
func TestKilledBridgeRepeatsAtMostItsWindow(t *testing.T) {
	n, kills := pick(4000, 20_000), pick(4, 10)
	const maxInFlight = 192
	fake := bridgetest.NewFakeBroker(t)
	source := fake.Auto(bridgetest.AutoConfig{
		DropRecords: true, Source: &bridgetest.SourceConfig{N: n, Topic: "in/x", QoS: 1},
	})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	cfg := between(t, fake.URL(), dest.URL())
	cfg.policy["max_in_flight"] = maxInFlight
	col := collect(t, dest.Addr(), "out/#")
	b := cfg.start(t)
	for i := 1; i <= kills; i++ {
		mustCount(t, col, n*i/(kills+1), b, time.Minute)
		b.Kill9()
		if s := source.Stats(); s.SourceAcked >= n {
			t.Errorf("kill %d: the source had nothing left to deliver", i)
		}
		b = cfg.start(t)
	}
	stats := source.Wait(time.Minute, func(s bridgetest.AutoStats) bool { return s.SourceAcked == n })
	mustCount(t, col, n, b, time.Minute)
	col.WaitQuiet(500*time.Millisecond, patience)

	r := col.Report(source.Ledger())
	t.Logf("%v; %d kills, source resent %d, most outstanding %d", r, kills, stats.SourceResent, stats.PeakOpen)
	nothingLost(t, r)
	if bound := 2 * maxInFlight * kills; r.Duplicates > bound {
		t.Errorf("%d duplicates, want at most %d", r.Duplicates, bound)
	}
	if stats.AcksOutOfOrder > 0 || stats.AcksUnknown > 0 || stats.SourceLost > 0 || stats.SourceRefused > 0 {
		t.Errorf("the source saw a broken protocol: %+v", stats)
	}
	b.quietLosses()
	b.conserved()
	b.stop()
}

// An acknowledgement at the source is the destination's confirmation.
//
// Covers: S1-107, S1-414, S2-507
func TestNothingIsAcknowledgedWhileTheDestinationIsDown(t *testing.T) {
	t.Parallel()
	const n = 500
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{LogPublishes: true})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	cfg := between(t, source.URL(), dest.URL())
	col := collect(t, dest.Addr(), "out/#")
	b := cfg.start(t)
	b.waitReady("")
	dest.Stop()
	b.waitNotReady("destination", patience)

	pub := publishN(t, source.Addr(), "in/x", n)
	pub.Wait(t, patience)
	b.eventually(patience, "messages in flight", func() bool { return b.metrics().sum("gobridge_messages_in_flight") > 0 })
	if tr := trafficTo(source.Log(), sourceID); tr.acked > 0 || tr.sent == 0 {
		t.Errorf("destination down: the source has sent %d and got %d acknowledged, want some and none", tr.sent, tr.acked)
	}
	b.Kill9()
	dest.Start()
	b = cfg.start(t)
	r := finish(t, pub, col, n, b, patience)
	t.Log(r)
	exactlyOnce(t, r)
	b.quietLosses()
	b.conserved()
	b.stop()
}

// A stopped bridge has a queue at its source.
//
// Covers: S2-503
func TestMessagesForAStoppedBridgeWait(t *testing.T) {
	t.Parallel()
	const n = 10
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	cfg := between(t, source.URL(), dest.URL())
	col := collect(t, dest.Addr(), "out/#")
	b := cfg.start(t)
	b.waitReady("")
	b.stop()
	pub := publishN(t, source.Addr(), "in/x", n)
	pub.Wait(t, patience)
	b = cfg.start(t)
	exactlyOnce(t, finish(t, pub, col, n, b, patience))
	b.stop()
}

// What the broker of the source drops while the bridge is away is lost, and the bridge
// cannot know: it delivers the rest and counts no loss.
//
// Covers: S1-316, G11
func TestWhatTheSourceBrokerDropsIsLostUnknown(t *testing.T) {
	t.Parallel()
	const n, kept = 200, 50
	expiring := func(i int) *packets.Properties {
		if i < kept {
			return nil
		}
		return &packets.Properties{MessageExpiry: new(uint32(1))}
	}
	for name, c := range map[string]struct {
		source     bridgetest.MosquittoConfig
		properties func(int) *packets.Properties
		wait       time.Duration
	}{
		"capacity": {bridgetest.MosquittoConfig{MaxQueuedMessages: kept}, nil, 0},
		"expiry":   {bridgetest.MosquittoConfig{}, expiring, 2 * time.Second}, // whole seconds
	} {
		for _, mode := range []string{gobridge.DirectHold, gobridge.SharedOutbox} {
			t.Run(name+" "+mode, func(t *testing.T) {
				t.Parallel()
				r := rowTo(t, mode, bridgetest.StartMosquitto(t, c.source), bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{}))
				col := collect(t, r.dest.Addr(), "out/#")
				b := r.startReady(t)
				b.stop()
				pub := bridgetest.StartPublisher(t, bridgetest.PublisherConfig{
					Addr: r.source.Addr(), Topic: "in/x", N: n, QoS: 1, Properties: c.properties,
				})
				pub.Wait(t, patience)
				time.Sleep(c.wait) // the rest expires
				b = r.start(t)
				got := finish(t, pub, col, kept, b, patience)
				if len(got.Lost) == 0 || len(got.Lost) > n-kept || got.Acked != n || got.Duplicates > 0 {
					t.Errorf("want up to %d of %d confirmed messages lost: %v", n-kept, n, got)
				}
				arrived := float64(got.Received)
				b.expect(counts{"messages_received": arrived, "messages_sent": arrived, "mqtt_session_resume_lost": 0})
				b.quietLosses()
				b.conserved()
				b.stop()
			})
		}
	}
}

// A broker takes a QoS 2 publish whose packet identifier it still holds for a repeat
// of the first one (MQTT v5 section 4.3.3): a new process must not lose messages over
// the identifiers of the one before it.
func TestKilledBridgeDoesNotReuseOpenQoS2Identifiers(t *testing.T) {
	for name, ackDelay := range map[string]time.Duration{"fast": 0, "slow": 5 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			n, kills := pick(2000, 10_000), pick(4, 10)
			source := bridgetest.NewFakeBroker(t)
			src := source.Auto(bridgetest.AutoConfig{
				DropRecords: true, Source: &bridgetest.SourceConfig{N: n, Topic: "in/x", QoS: 2},
			})
			fake := bridgetest.NewFakeBroker(t)
			dest := fake.Auto(bridgetest.AutoConfig{AckDelay: ackDelay})
			cfg := between(t, source.URL(), fake.URL())
			cfg.topics = []doc{{"topic": "in/#", "qos": 2}}
			cfg.sender["qos"] = "2"
			cfg.destSession["session_mode"] = "persistent"
			b := cfg.start(t)
			for i := 1; i <= kills; i++ {
				dest.Wait(time.Minute, func(s bridgetest.AutoStats) bool { return s.Received >= n*i/(kills+1) })
				b.Kill9()
				b = cfg.start(t)
			}
			src.Wait(time.Minute, func(s bridgetest.AutoStats) bool { return s.SourceAcked == n })
			b.settled()
			r := dest.Report(src.Ledger())
			t.Logf("%v; %d kills; repeats that the destination did not take: %d", r, kills, dest.Stats().ReceivedRepeats)
			nothingLost(t, r)
			b.stop()
		})
	}
}

// Both ways over the same two sessions, which receive and send: nothing is lost in a
// crash and through cuts, and nothing goes in a circle.
func TestTwoWayBridgeLosesNothing(t *testing.T) {
	n := pick(1500, 10_000)
	left := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	right := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	leftLink, rightLink := bridgetest.NewProxy(t, left.Addr()), bridgetest.NewProxy(t, right.Addr())
	cfg := between(t, leftLink.URL(), rightLink.URL())
	file := cfg.file()
	route := func(id, from, to string) doc {
		return doc{
			"id": id, "receiver": doc{"session_id": from, "topics": []doc{{"topic": id + "/#"}}},
			"bindings": []doc{{"address": "{topic}", "sender": doc{"session_id": to}}},
		}
	}
	file["routes"] = []doc{route("up", "source", "destination"), route("down", "destination", "source")}
	path := write(t, file)
	up, down := collect(t, right.Addr(), "up/#"), collect(t, left.Addr(), "down/#")
	b := run(t, path)
	b.waitReady("")

	upPub, downPub := publishN(t, left.Addr(), "up/x", n), publishN(t, right.Addr(), "down/x", n)
	for i, fault := range []func(){
		func() { leftLink.Cut() },
		func() { rightLink.Cut() },
		func() { b.Kill9(); b = run(t, path) },
	} {
		mustCount(t, up, n*(i+1)/4, b, time.Minute)
		fault()
	}
	for _, way := range []struct {
		pub *bridgetest.Publisher
		col *bridgetest.Collector
	}{{upPub, up}, {downPub, down}} {
		r := finish(t, way.pub, way.col, n, b, time.Minute)
		t.Log(r)
		nothingLost(t, r)
	}
	b.quietLosses()
	b.conserved()
	b.stop()
}
