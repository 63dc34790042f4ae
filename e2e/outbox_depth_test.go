package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gobridge/gobridge/bridgetest"
)

// The outbox takes what comes while the destination is down, and hands it over in
// order when it is back.
func TestOutageOfTheDestinationFillsTheOutbox(t *testing.T) {
	n := pick(4000, 20_000)
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{LogPublishes: true})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	cfg := viaOutbox(t, source.URL(), dest.URL())
	cfg.policy["max_outbox_depth"] = 50_000
	col := collect(t, dest.Addr(), "out/#")
	b := cfg.start(t)
	b.waitReady("")
	dest.Stop()
	b.waitNotReady("destination", patience)

	began := time.Now()
	pub := publishN(t, source.Addr(), "in/x", n)
	pub.Wait(t, time.Minute)
	b.waitDepth(n, time.Minute)
	stored := time.Since(began)
	b.settled()
	expectAcked(t, source, n) // its queue is empty
	if status, body := b.get("/readyz?level=subscribed"); status != 200 {
		t.Errorf("level subscribed answers %d %s", status, body)
	}
	after, _ := b.RSS()

	dest.Start()
	began = time.Now()
	r := finish(t, pub, col, n, b, time.Minute)
	drained := time.Since(began)
	b.waitDepth(0, patience)
	t.Logf("%v; stored in %v, RSS with the outbox full %s, delivered and quiet %v after the return",
		r, stored.Round(time.Millisecond), megabytes(after), drained.Round(time.Millisecond))
	exactlyOnce(t, r)
	if r.OutOfOrder > 0 {
		t.Errorf("%d messages out of order, want 0", r.OutOfOrder)
	}
	b.waitReady("")
	b.quietLosses()
	b.conservedSince(0)
	b.stop()
}

// Decision C5: a full outbox holds the source, says so, and takes more when it has
// been drained to 80 %.
//
// Covers: S1-405, S1-407
func TestFullOutboxHoldsTheRestAtTheSource(t *testing.T) {
	n := pick(4000, 20_000)
	limit := n / 2
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{LogPublishes: true})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	cfg := viaOutbox(t, source.URL(), dest.URL())
	if limit != 10_000 { // the default
		cfg.policy["max_outbox_depth"] = limit
	}
	col := collect(t, dest.Addr(), "out/#")
	b := cfg.start(t)
	b.waitReady("")
	dest.Stop()
	b.waitNotReady("destination", patience)

	pub := publishN(t, source.Addr(), "in/x", n)
	pub.Wait(t, time.Minute)
	b.waitDepth(limit, time.Minute)
	b.eventually(patience, "readiness says that the outbox is full", func() bool {
		_, r := b.ready()
		return strings.Contains(fmt.Sprint(r.Reasons), "outbox is full")
	})
	expectAcked(t, source, limit)
	if n := b.metrics().sum("gobridge_dlq_depth"); n != 0 {
		t.Errorf("%v dead letters", n)
	}

	dest.Start()
	began := time.Now()
	deepest := 0
	for !col.WaitFor(n, 20*time.Millisecond) {
		metrics, health := b.depth()
		deepest = max(deepest, metrics, health)
		if time.Since(began) > time.Minute {
			break
		}
	}
	r := finish(t, pub, col, n, b, time.Second)
	b.waitDepth(0, patience)
	t.Logf("%v; delivered %v after the return, deepest %d at a limit of %d", r, time.Since(began).Round(time.Millisecond), deepest, limit)
	exactlyOnce(t, r)
	if r.OutOfOrder > 0 {
		t.Errorf("%d messages out of order, want 0", r.OutOfOrder)
	}
	if deepest > limit {
		t.Errorf("the outbox was %d deep, want at most %d", deepest, limit)
	}
	// A fifth of the depth lies between a line and the next one.
	filled, emptied := len(b.logged("outbox is full")), len(b.logged("outbox has room again"))
	if filled == 0 || filled != emptied || filled > 1+(n-limit)/(limit/5) {
		t.Errorf("the log tells %d times of a full outbox and %d times of its end", filled, emptied)
	}
	b.waitReady("")
	b.quietLosses()
	b.conservedSince(0)
	b.stop()
}

// G05: what is stored needs neither its source nor the process that took it.
//
// Covers: S1-307, S1-404, G05
func TestStoredMessagesOutliveSourceAndCrash(t *testing.T) {
	n := pick(2000, 20_000)
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{LogPublishes: true})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	cfg := viaOutbox(t, source.URL(), dest.URL())
	cfg.policy["max_outbox_depth"] = 50_000
	col := collect(t, dest.Addr(), "out/#")
	b := cfg.start(t)
	b.waitReady("")
	dest.Stop()
	b.waitNotReady("destination", patience)
	pub := publishN(t, source.Addr(), "in/x", n)
	pub.Wait(t, time.Minute)
	if !within(time.Minute, func() bool { return trafficTo(source.Log(), sourceID).acked == n }) {
		t.Fatalf("the source got %d of %d acknowledged", trafficTo(source.Log(), sourceID).acked, n)
	}
	b.Kill9() // right after the last acknowledgement
	source.Stop()
	dest.Start()

	began := time.Now()
	b = cfg.start(t)
	r := finish(t, pub, col, n, b, time.Minute)
	t.Logf("%v; delivered and quiet %v after the start", r, time.Since(began).Round(time.Millisecond))
	exactlyOnce(t, r)
	if r.OutOfOrder > 0 {
		t.Errorf("%d messages out of order, want 0", r.OutOfOrder)
	}
	b.waitDepth(0, patience)
	b.quietLosses()
	b.conservedSince(n)
	b.stop()
}

// Cuts of both links while messages pass through memory and disk by turns.
func TestOutboxKeepsOrderThroughLinkCuts(t *testing.T) {
	n := pick(4000, 20_000)
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	in, out := bridgetest.NewProxy(t, source.Addr()), bridgetest.NewProxy(t, dest.Addr())
	cfg := viaOutbox(t, in.URL(), out.URL())
	col := collect(t, dest.Addr(), "out/#")
	b := cfg.start(t)
	b.waitReady("")
	pub := bridgetest.StartPublisher(t, bridgetest.PublisherConfig{
		Addr: source.Addr(), Topic: "in/x", N: n, QoS: 1, PayloadSize: 100, MessageIDs: true,
	})
	cuts := []func(){
		func() { out.Cut() }, func() { in.Cut() }, func() { in.Cut(); out.Cut() },
	}
	for i, cut := range cuts {
		mustCount(t, col, n*(i+1)/(len(cuts)+1), b, time.Minute)
		cut()
	}
	r := finish(t, pub, col, n, b, time.Minute)
	b.waitDepth(0, patience)
	t.Logf("%v; repeats suppressed %v", r, b.counter("outbox_duplicate_suppressed"))
	nothingLost(t, r)
	// Only a cut of the destination's link may repeat what was open on it.
	if bound := 2 * 192; r.Unexplained > bound {
		t.Errorf("%d duplicates, want at most %d", r.Unexplained, bound)
	}
	if r.OutOfOrder > 0 {
		t.Errorf("%d messages out of order, want 0", r.OutOfOrder)
	}
	b.quietLosses()
	b.conservedSince(0)
	b.stop()
}

// A slow destination makes records go over the disk, and a fast one through memory
// again, while messages keep coming: each goes out once, in its place.
func TestOutboxChangesBetweenMemoryAndDisk(t *testing.T) {
	const size, rate = 40_000, 700 // 8 MB wait in memory before the disk takes over
	stalls := pick(3, 40)
	n := stalls * rate * 3 / 4
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	link := bridgetest.NewProxy(t, dest.Addr())
	cfg := viaOutbox(t, source.URL(), link.URL())
	col := collect(t, dest.Addr(), "out/#")
	b := cfg.start(t)
	b.waitReady("")
	pub := bridgetest.StartPublisher(t, bridgetest.PublisherConfig{
		Addr: source.Addr(), Topic: "in/x", N: n, QoS: 1, PayloadSize: size, Rate: rate, MessageIDs: true,
	})
	deepest := 0
	for i := 1; i <= stalls; i++ {
		mustCount(t, col, n*i/(stalls+2), b, time.Minute)
		link.Stall(true)
		within(400*time.Millisecond, func() bool { // so long the destination takes nothing
			metrics, _ := b.depth()
			deepest = max(deepest, metrics)
			return metrics*size > 16<<20
		})
		link.Stall(false)
	}
	r := finish(t, pub, col, n, b, time.Minute)
	b.waitDepth(0, patience)
	t.Logf("%v; %d stalls, deepest %d", r, stalls, deepest)
	exactlyOnce(t, r)
	if r.OutOfOrder > 0 {
		t.Errorf("%d messages out of order, want 0", r.OutOfOrder)
	}
	if deepest*size < 8<<20 {
		t.Errorf("at most %d messages waited: the disk was not needed, or the test proves nothing", deepest)
	}
	b.quietLosses()
	b.conservedSince(0)
	b.stop()
}
