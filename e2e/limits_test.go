package e2e

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/eclipse/paho.golang/packets"

	"github.com/gobridge/gobridge/bridgetest"
)

// Receive Maximum of the destination: no more than that is open at a time.
func TestReceiveMaximumOfTheDestinationIsHonoured(t *testing.T) {
	t.Parallel()
	const n, window = 500, 5
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	fake := bridgetest.NewFakeBroker(t)
	dest := fake.Auto(bridgetest.AutoConfig{Connack: func(_ *bridgetest.FakeConn, _ *packets.Connect, connack *packets.Connack) {
		connack.Properties.ReceiveMaximum = new(uint16(window))
	}})
	b := between(t, source.URL(), fake.URL()).start(t)
	b.waitReady("")
	pub := publishN(t, source.Addr(), "in/x", n)
	stats := dest.Wait(patience, func(s bridgetest.AutoStats) bool { return s.Received == n })
	pub.Wait(t, patience)
	if stats.PeakOutstanding > window {
		t.Errorf("%d publishes open at a time, want at most %d", stats.PeakOutstanding, window)
	}
	r := dest.Report(pub.Ledger())
	exactlyOnce(t, r)
	if r.OutOfOrder > 0 {
		t.Errorf("%d messages out of order, want 0", r.OutOfOrder)
	}
	b.stop()
}

// Maximum Packet Size of the destination, and a limit that it does not announce: what
// is too large is a dead letter and no reason to reconnect.
func TestMessagesTooLargeForTheDestinationAreDeadLettered(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]bridgetest.MosquittoConfig{
		"announced":     {MaxPacketSize: 1000},
		"not announced": {MessageSizeLimit: 1000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
			dest := bridgetest.StartMosquitto(t, limit)
			b := between(t, source.URL(), dest.URL()).start(t)
			b.waitReady("")
			sub := subscriber(t, dest.Addr(), "out/#")
			pub := client(t, source.Addr())
			for range 3 {
				publish(t, pub, &packets.Publish{Topic: "in/x", QoS: 1, Payload: bytes.Repeat([]byte("x"), 2000)})
			}
			publish(t, pub, &packets.Publish{Topic: "in/x", QoS: 1, Payload: []byte("small")})
			if m := sub.MustReceive(t, patience); string(m.Payload) != "small" {
				t.Errorf("got %d bytes, want the small message", len(m.Payload))
			}
			b.expectCounter(3, "dlq_entries", `category="permanent"`)
			if n := b.counter("mqtt_reconnects"); n != 0 {
				t.Errorf("%v reconnects, want 0", n)
			}
			b.conserved()
			b.stop()
		})
	}
}

// Messages that break a limit of the bridge are acknowledged, dropped and counted;
// one line of the log for each kind.
//
// Covers: S1-201, S1-203, S1-205, S1-206, S1-207, S1-214
func TestMessagesOverTheBridgesLimitsAreDroppedAndCounted(t *testing.T) {
	t.Parallel()
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{LogPublishes: true})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	cfg := between(t, source.URL(), dest.URL())
	cfg.source["max_payload_bytes"] = 1000
	b := cfg.start(t)
	b.waitReady("")
	sub := subscriber(t, dest.Addr(), "out/#")
	pub := client(t, source.Addr())
	users := func(n int) *packets.Properties {
		p := &packets.Properties{}
		for i := range n {
			p.User = append(p.User, packets.User{Key: fmt.Sprint(i), Value: "v"})
		}
		return p
	}
	for range 2 {
		publish(t, pub, &packets.Publish{Topic: "in/x", QoS: 1, Payload: make([]byte, 1001)})
		publish(t, pub, &packets.Publish{Topic: "in/x", QoS: 1, Properties: users(129)})
		publish(t, pub, &packets.Publish{Topic: "in/x", QoS: 1, Properties: users(500)})
	}
	publish(t, pub, &packets.Publish{Topic: "in/x", QoS: 1, Payload: make([]byte, 1000), Properties: users(128)})
	m := sub.MustReceive(t, patience)
	if len(m.Payload) != 1000 || len(m.Properties.User) < 128 {
		t.Errorf("got %d bytes and %d user properties, want 1000 and 128", len(m.Payload), len(m.Properties.User))
	}
	b.expectCounter(6, "mqtt_ingress_poison_dropped", `session_id="source"`)
	b.expectCounter(2, "mqtt_ingress_user_properties_truncated", `session_id="source"`)
	b.settled()
	if tr := trafficTo(source.Log(), sourceID); tr.acked != 7 || tr.connects != 1 {
		t.Errorf("the source got %d acknowledgements over %d connections, want 7 over 1", tr.acked, tr.connects)
	}
	b.conserved()
	b.stop()
	if n := len(b.logged("level=ERROR")); n != 2 {
		t.Errorf("%d error lines, want one for each kind of violation:\n%s", n, b.Stderr())
	}
}

// A destination without retained messages gets none.
func TestRetainIsClearedWhereItIsNotAvailable(t *testing.T) {
	t.Parallel()
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	fake := bridgetest.NewFakeBroker(t)
	dest := fake.Auto(bridgetest.AutoConfig{Connack: func(_ *bridgetest.FakeConn, _ *packets.Connect, connack *packets.Connack) {
		connack.Properties.RetainAvailable = new(byte(0))
	}})
	b := between(t, source.URL(), fake.URL()).start(t)
	b.waitReady("")
	pub := client(t, source.Addr())
	for range 3 {
		publish(t, pub, &packets.Publish{Topic: "in/x", QoS: 1, Retain: true, Payload: []byte("v")})
	}
	dest.Wait(patience, func(s bridgetest.AutoStats) bool { return s.Received == 3 })
	for _, p := range dest.Received() {
		if p.Retain {
			t.Error("retain flag on the wire to a broker without retained messages")
		}
	}
	if n := fake.Connections(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
	b.stop()
	if n := len(b.logged("level=WARN", "retain")); n != 1 {
		t.Errorf("%d warnings about retain, want 1:\n%s", n, b.Stderr())
	}
}

// The destination's Maximum QoS is honoured.
func TestMaximumQoSOfTheDestinationIsHonoured(t *testing.T) {
	t.Parallel()
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	fake := bridgetest.NewFakeBroker(t)
	dest := fake.Auto(bridgetest.AutoConfig{Connack: func(_ *bridgetest.FakeConn, _ *packets.Connect, connack *packets.Connack) {
		connack.Properties.MaximumQOS = new(byte(1))
	}})
	cfg := between(t, source.URL(), fake.URL())
	cfg.topics = []doc{{"topic": "in/#", "qos": 2}}
	cfg.sender["qos"] = "2"
	b := cfg.start(t)
	b.waitReady("")
	pub := client(t, source.Addr())
	for range 3 {
		publish(t, pub, &packets.Publish{Topic: "in/x", QoS: 2, Payload: []byte("v")})
	}
	dest.Wait(patience, func(s bridgetest.AutoStats) bool { return s.Received == 3 })
	for _, p := range dest.Received() {
		if p.QoS != 1 {
			t.Errorf("QoS %d on the wire, want 1", p.QoS)
		}
	}
	b.settled()
	b.conserved()
	b.stop()
	if n := len(b.logged("level=WARN", "QoS")); n != 1 {
		t.Errorf("%d warnings about QoS, want 1:\n%s", n, b.Stderr())
	}
}
