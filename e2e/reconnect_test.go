package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/gobridge/gobridge/bridgetest"
)

// What a resumed session delivers before SUBACK has somewhere to go.
//
// Covers: S1-609
func TestResumedSessionDeliversBeforeSuback(t *testing.T) {
	t.Parallel()
	const n = 50
	fake := bridgetest.NewFakeBroker(t)
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	cfg := between(t, fake.URL(), dest.URL())
	cfg.source["unmatched_grace"] = "300ms"
	col := collect(t, dest.Addr(), "out/#")
	b := cfg.start(t)
	var subscribes []*packets.Subscribe
	conn := fake.Accept()
	conn.Handshake(&packets.Connack{})
	b.eventually(patience, "the SUBSCRIBE of the new session", func() bool {
		subscribes = received[*packets.Subscribe](fake)
		return len(subscribes) > 0
	})
	conn.Close() // the broker has the session, its answer to the SUBSCRIBE is lost
	conn = fake.Accept()
	conn.Handshake(&packets.Connack{SessionPresent: true})
	for i := range n {
		conn.Send(&packets.Publish{Topic: "in/x", QoS: 1, PacketID: uint16(i + 1), Payload: fmt.Append(nil, i)})
	}
	mustCount(t, col, n, b, patience) // all of them before SUBACK
	b.settled()
	b.eventually(patience, "a SUBSCRIBE", func() bool {
		subscribes = received[*packets.Subscribe](fake)
		return len(subscribes) > 1
	})
	if rh := subscribes[1].Subscriptions[0].RetainHandling; rh != 1 {
		t.Errorf("retain handling %d on a resumed session, want 1", rh)
	}
	conn.Grant(subscribes[1])
	b.waitReady("")

	// A topic that no filter covers any more must not block the window.
	for i := range n {
		conn.Send(&packets.Publish{Topic: "gone/x", QoS: 1, PacketID: uint16(n + 1 + i), Payload: []byte("old filter")})
	}
	b.expectCounter(n, "mqtt_router_unmatched_dropped", `session_id="source"`)
	conn.Send(&packets.Publish{Topic: "in/x", QoS: 1, PacketID: 2*n + 1, Payload: fmt.Append(nil, n)})
	mustCount(t, col, n+1, b, patience)
	b.settled()
	pubacks := received[*packets.Puback](fake)
	if len(pubacks) != 2*n+1 {
		t.Errorf("%d acknowledgements, want %d", len(pubacks), 2*n+1)
	}
	for i, p := range pubacks {
		if int(p.PacketID) != i+1 {
			t.Fatalf("acknowledgement %d is for packet %d: not in the order of receipt", i, p.PacketID)
		}
	}
	if r := col.Report(bridgetest.Ledger{Sent: n + 1, Acked: n + 1}); r.Duplicates > 0 || r.OutOfOrder > 0 {
		t.Errorf("got %v", r)
	}
	b.conserved()
}

// received returns the packets of one type that a fake broker got, in order.
func received[P any](fake *bridgetest.FakeBroker) []P {
	var all []P
	for _, r := range fake.Records() {
		if p, ok := r.Packet.Content.(P); ok {
			all = append(all, p)
		}
	}
	return all
}

// Retained values cross once, not once for each reconnect.
//
// Covers: S1-534
func TestReconnectsDoNotReplayRetainedMessages(t *testing.T) {
	t.Parallel()
	const n, bounces = 100, 5
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{LogPublishes: true})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	link := bridgetest.NewProxy(t, source.Addr())
	cfg := between(t, link.URL(), dest.URL())
	col := collect(t, dest.Addr(), "out/#")
	c := client(t, source.Addr())
	for i := range n {
		publish(t, c, &packets.Publish{Topic: fmt.Sprintf("in/%d", i), QoS: 1, Retain: true, Payload: fmt.Append(nil, i)})
	}
	b := cfg.start(t)
	mustCount(t, col, n, b, patience)
	// What a cut keeps from being acknowledged comes again for that reason.
	b.eventually(patience, "the source knows that all is acknowledged", func() bool {
		return trafficTo(source.Log(), sourceID).acked == n
	})
	for i := 1; i <= bounces; i++ {
		b.waitReady("")
		link.Cut()
		b.expectCounter(float64(i), "mqtt_reconnects", `session_id="source"`)
	}
	b.waitReady("")
	b.stop()
	b = cfg.start(t) // a new process resumes the session too
	b.waitReady("")
	if !col.WaitQuiet(time.Second, patience) {
		t.Error("messages still arrive")
	}
	r := col.Report(bridgetest.Ledger{Sent: n, Acked: n})
	t.Log(r)
	if len(r.Lost) > 0 || r.Duplicates > 0 || r.ForeignCount > 0 {
		t.Errorf("want each retained message once: %v", r)
	}
	b.stop()
}

// Two bridges with one client id do not fight for ever. Their sessions keep nothing in
// the broker: a persistent one would not even begin to, because its history does not know
// the session of the other.
//
// Covers: S1-807, S1-812
func TestSharedClientIDBacksOff(t *testing.T) {
	t.Parallel()
	wait := pick(6*time.Second, 30*time.Second)
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	start := func(destClient string) *bridge {
		cfg := between(t, source.URL(), dest.URL())
		cfg.source["reconnect_delay"], cfg.source["reconnect_max_delay"] = "300ms", pick("8s", "2m")
		cfg.topics = []doc{{"topic": "in/#", "qos": 0}}
		cfg.dest["client_id"] = destClient
		return cfg.start(t)
	}
	first := start("d1")
	first.waitReady("")
	began := time.Now()
	second := start("d2")
	taken := func(b *bridge) float64 {
		return b.counter("mqtt_session_takeover", `session_id="source"`, `reason="inferred"`)
	}
	first.eventually(30*time.Second, "a takeover is reported", func() bool { return taken(first)+taken(second) > 0 })
	took := time.Since(began)
	fight := trafficTo(source.Log(), sourceID).connects

	loser := first
	if taken(first) == 0 {
		loser = second
	}
	reason, _ := loser.waitNotReady("source", 5*time.Second)
	if !strings.Contains(reason, "client id") {
		t.Errorf("the reason of the one that waits is %q, and does not tell of the client id", reason)
	}
	if len(loser.logged("level=ERROR", "client_id="+sourceID)) == 0 {
		t.Errorf("no error line names the client id:\n%s", loser.Stderr())
	}
	quiet := time.NewTimer(wait)
	defer quiet.Stop()
	<-quiet.C // the bridge is to do nothing, or little, for so long
	later := trafficTo(source.Log(), sourceID).connects - fight
	t.Logf("takeover reported after %v and %d connects; %d more in the next %v; reason: %s", took.Round(time.Millisecond), fight, later, wait, reason)
	if fight > 10 {
		t.Errorf("%d connects before a takeover was noticed, want at most 10", fight)
	}
	if later > 3 {
		t.Errorf("%d connects in %v after it, want at most 3", later, wait)
	}
}

// A broker that forgot the session is subscribed to again, and it is told.
//
// Covers: S1-302, S1-528, G02
func TestForgottenSessionIsSubscribedAgain(t *testing.T) {
	t.Parallel()
	const bounces, n = 3, 100
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{Volatile: true})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	cfg := between(t, source.URL(), dest.URL())
	col := collect(t, dest.Addr(), "out/#")
	b := cfg.start(t)
	b.waitReady("")
	sent := 0
	send := func() {
		c := client(t, source.Addr())
		for range n {
			publish(t, c, &packets.Publish{Topic: "in/x", QoS: 1, Payload: fmt.Append(nil, sent)})
			sent++
		}
		c.Close()
		mustCount(t, col, sent, b, patience)
	}
	send()
	for i := 1; i <= bounces; i++ {
		b.settled()
		source.Restart()
		back := time.Now()
		b.expectCounter(float64(i), "mqtt_session_resume_lost", `session_id="source"`)
		b.waitReady("")
		took := time.Since(back)
		send()
		t.Logf("restart %d: subscribed again after %v", i, took.Round(time.Millisecond))
		if limit := 500*time.Millisecond + time.Second; took > limit { // reconnect_max_delay and a second
			t.Errorf("flow was back after %v, want %v", took, limit)
		}
	}
	r := col.Report(bridgetest.Ledger{Sent: sent, Acked: sent})
	t.Log(r)
	if len(r.Lost) > 0 || r.Duplicates > 0 {
		t.Errorf("got %v", r)
	}
	b.expectCounter(bounces, "mqtt_session_resume_lost")
	b.expectCounter(0, "session_rebuilds")
	if lines := b.logged("level=WARN", `msg="broker no longer had the session`); len(lines) != bounces {
		t.Errorf("%d warnings that the session is gone, want %d:\n%s", len(lines), bounces, b.Stderr())
	}
	b.conserved()
	b.stop()
}

// Brokers that are not there yet are waited for.
func TestBrokersMayComeUpAfterTheBridge(t *testing.T) {
	t.Parallel()
	const n = 50
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	col := collect(t, dest.Addr(), "out/#")
	source.Stop()
	dest.Stop()
	b := between(t, source.URL(), dest.URL()).start(t)
	b.waitNotReady("source", patience)
	b.waitNotReady("destination", patience)
	if status, body := b.get("/livez"); status != 200 {
		t.Errorf("/livez answers %d %s while brokers are away", status, body)
	}
	b.eventually(patience, "several attempts", func() bool {
		return b.counter("mqtt_connect_failures", `session_id="source"`) >= 2
	})
	source.Start()
	b.eventually(patience, "the source is connected", func() bool { return b.sessionHealth("source").Connected })
	b.waitNotReady("destination", patience)
	dest.Start()
	b.waitReady("")
	pub := publishN(t, source.Addr(), "in/x", n)
	exactlyOnce(t, finish(t, pub, col, n, b, patience))
	b.stop()
}

// A broker that accepts and closes is not hammered.
func TestAcceptAndCloseIsNotHammered(t *testing.T) {
	t.Parallel()
	watch, limit := pick(8*time.Second, 2*time.Minute), 12
	fake := bridgetest.NewFakeBroker(t)
	fake.Auto(bridgetest.AutoConfig{Connack: func(conn *bridgetest.FakeConn, _ *packets.Connect, _ *packets.Connack) {
		time.AfterFunc(50*time.Millisecond, conn.Reset)
	}})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	cfg := between(t, fake.URL(), dest.URL())
	cfg.source["reconnect_delay"], cfg.source["reconnect_max_delay"] = pick("100ms", "1s"), "2m"
	b := cfg.start(t)
	timer := time.NewTimer(watch)
	defer timer.Stop()
	select {
	case <-timer.C: // the bridge is to do little for so long
	case <-b.Exited():
		t.Fatal("the bridge ended")
	}
	attempts := fake.Connections()
	t.Logf("%d attempts in %v", attempts, watch)
	if attempts > limit || attempts < 3 {
		t.Errorf("%d attempts in %v, want 3 to %d", attempts, watch, limit)
	}
	if code := b.Term(patience); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

// A link without answers is found dead within one and a half keep-alives.
func TestBlackHoleIsDetected(t *testing.T) {
	t.Parallel()
	const keepAlive = 2 * time.Second
	const n = 200
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	link := bridgetest.NewProxy(t, dest.Addr())
	cfg := between(t, source.URL(), link.URL())
	cfg.dest["keep_alive"] = keepAlive.String()
	cfg.dest["connect_timeout"] = "2s"
	col := collect(t, dest.Addr(), "out/#")
	b := cfg.start(t)
	b.waitReady("")
	pub := bridgetest.StartPublisher(t, bridgetest.PublisherConfig{Addr: source.Addr(), Topic: "in/x", N: n, QoS: 1, Rate: 50})
	mustCount(t, col, n/10, b, patience)
	began := time.Now()
	link.BlackHole(true)
	b.eventually(10*time.Second, "the dead link is noticed", func() bool { return !b.sessionHealth("destination").Connected })
	took := time.Since(began)
	// A poll of the health takes a moment.
	if limit := keepAlive*3/2 + 250*time.Millisecond; took > limit {
		t.Errorf("noticed after %v, want at most %v", took, limit)
	}
	pub.Wait(t, patience)
	// Nothing counts as sent that did not arrive.
	if sent := b.counter("messages_sent"); sent > float64(col.Count()) {
		t.Errorf("%v counted as sent, %d arrived", sent, col.Count())
	}
	link.BlackHole(false)
	r := finish(t, pub, col, n, b, patience)
	t.Logf("%v; noticed after %v", r, took.Round(time.Millisecond))
	nothingLost(t, r)
	if r.Unexplained > 192 {
		t.Errorf("%d duplicates, want at most 192", r.Unexplained)
	}
	b.quietLosses()
	b.conserved()
	b.stop()
}
