package e2e

import (
	"testing"
	"time"

	"github.com/gobridge/gobridge/bridgetest"
)

func TestOrderIsKeptThroughLinkCuts(t *testing.T) {
	n := pick(4000, 20_000)
	const window = 192
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{LogPublishes: true})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	in, out := bridgetest.NewProxy(t, source.Addr()), bridgetest.NewProxy(t, dest.Addr())
	out.Delay(10 * time.Millisecond) // keeps the window full
	cfg := between(t, in.URL(), out.URL())
	cfg.policy["max_in_flight"] = window
	col := collect(t, dest.Addr(), "out/#")
	b := cfg.start(t)
	b.waitReady("")

	began := time.Now()
	pub := publishN(t, source.Addr(), "in/x", n)
	for i, cut := range []func(){
		func() { out.Cut() },
		func() { in.Cut() },
		func() { in.Cut(); out.Cut() },
	} {
		mustCount(t, col, n*(i+1)/4, b, time.Minute)
		cut()
	}
	r := finish(t, pub, col, n, b, time.Minute)
	tr := trafficTo(source.Log(), sourceID)
	t.Logf("%v; in %v, connects at the source %d, most outstanding %d", r, time.Since(began).Round(time.Millisecond), tr.connects, tr.peak)
	nothingLost(t, r)
	if r.OutOfOrder > 0 {
		t.Errorf("%d messages out of order, want 0", r.OutOfOrder)
	}
	if tr.peak < window || tr.connects < 3 {
		t.Errorf("most outstanding %d, connects %d: want at least %d and 3, or the test proves nothing", tr.peak, tr.connects, window)
	}
	b.quietLosses()
	b.conserved()
	b.stop()
}

func TestQoS2IsExactlyOnceAndInOrderThroughLinkCuts(t *testing.T) {
	n, cuts := pick(3000, 20_000), pick(4, 10)
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{LogPublishes: true})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	in, out := bridgetest.NewProxy(t, source.Addr()), bridgetest.NewProxy(t, dest.Addr())
	cfg := between(t, in.URL(), out.URL())
	cfg.topics = []doc{{"topic": "in/#", "qos": 2}}
	cfg.sender["qos"] = "2"
	cfg.destSession["session_mode"] = "persistent"
	col := collect(t, dest.Addr(), "out/#")
	b := cfg.start(t)
	b.waitReady("")

	began := time.Now()
	pub := bridgetest.StartPublisher(t, bridgetest.PublisherConfig{Addr: source.Addr(), Topic: "in/x", N: n, QoS: 2, PayloadSize: 100})
	for i := 1; i <= cuts; i++ {
		mustCount(t, col, n*i/(cuts+1), b, time.Minute)
		switch i % 3 {
		case 0:
			in.Cut()
			out.Cut()
		case 1:
			out.Cut()
		case 2:
			in.Cut()
		}
	}
	r := finish(t, pub, col, n, b, time.Minute)
	t.Logf("%v; %d cuts, in %v, %v reconnects", r, cuts, time.Since(began).Round(time.Millisecond), b.counter("mqtt_reconnects"))
	exactlyOnce(t, r)
	if r.OutOfOrder > 0 {
		t.Errorf("%d messages out of order, want 0", r.OutOfOrder)
	}
	for _, id := range []string{"source", "destination"} {
		if !b.sessionHealth(id).SessionPresent {
			t.Errorf("session %s was not resumed", id)
		}
		if b.counter("mqtt_reconnects", `session_id="`+id+`"`) < 1 {
			t.Errorf("session %s never reconnected, or the test proves nothing", id)
		}
	}
	b.quietLosses()
	b.conserved()
	b.stop()
}

// V1: mosquitto 2.0.11 sends far more than the window once acknowledgements follow a
// backlog.
//
// Covers: S1-612
func TestBacklogPastTheReceiveMaximumIsKept(t *testing.T) {
	const n, window = 6000, 192
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{LogPublishes: true})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	cfg := between(t, source.URL(), dest.URL())
	col := collect(t, dest.Addr(), "out/#")
	b := cfg.start(t)
	b.waitReady("")
	b.stop()
	pub := publishN(t, source.Addr(), "in/x", n)
	pub.Wait(t, time.Minute)

	b = cfg.start(t)
	began := time.Now()
	r := finish(t, pub, col, n, b, time.Minute)
	took := time.Since(began)
	b.settled()
	tr := trafficTo(source.Log(), sourceID)
	exceeded := b.counter("mqtt_receive_window_exceeded", `session_id="source"`)
	_, peak := b.RSS()
	t.Logf("%v; %v until quiet, most outstanding %d, past the window %v, peak RSS %s", r, took.Round(time.Millisecond), tr.peak, exceeded, megabytes(peak))
	exactlyOnce(t, r)
	if r.OutOfOrder > 0 {
		t.Errorf("%d messages out of order, want 0", r.OutOfOrder)
	}
	switch {
	case tr.peak <= window:
		t.Logf("this broker honours the window (most outstanding %d): nothing was exceeded", tr.peak)
	case exceeded == 0:
		t.Errorf("the broker had %d outstanding at a window of %d, and the bridge counted none of them", tr.peak, window)
	}
	if tr.connects != 2 { // before and after the stop
		t.Errorf("the source saw %d connects, want 2", tr.connects)
	}
	b.quietLosses()
	b.conserved()
	b.stop()
}

// Two destinations, one of them away: both get every message once, in order.
func TestFanOutServesEveryBinding(t *testing.T) {
	t.Parallel()
	n := pick(1500, 10_000)
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	one := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	two := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	file := between(t, source.URL(), one.URL()).file()
	second := between(t, source.URL(), two.URL())
	file["sessions"] = append(file["sessions"].([]doc), session("second", nil, second.dest))
	route := file["routes"].([]doc)[0]
	route["dispatch_mode"] = "fan_out"
	route["bindings"] = append(route["bindings"].([]doc), doc{"id": "b2", "address": "copy/{topic}", "sender": doc{"session_id": "second"}})
	colOne := collect(t, one.Addr(), "out/#")
	colTwo := collect(t, two.Addr(), "copy/#")
	b := run(t, write(t, file))
	b.waitReady("")

	two.Stop()
	b.waitNotReady("second", patience)
	pub := publishN(t, source.Addr(), "in/x", n)
	pub.Wait(t, patience)
	mustCount(t, colOne, 192, b, patience) // as many as the route holds for the other binding
	two.Start()
	for _, col := range []*bridgetest.Collector{colOne, colTwo} {
		r := finish(t, pub, col, n, b, time.Minute)
		t.Log(r)
		exactlyOnce(t, r)
		if r.OutOfOrder > 0 {
			t.Errorf("%d messages out of order, want 0", r.OutOfOrder)
		}
	}
	b.quietLosses()
	b.conserved()
	if received, sent := b.counter("messages_received"), b.counter("messages_sent"); received != float64(n) || sent != float64(2*n) {
		t.Errorf("received %v and sent %v, want %d and %d", received, sent, n, 2*n)
	}
	b.stop()
}
