package e2e

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/google/go-cmp/cmp"

	"github.com/gobridge/gobridge/bridgetest"
)

// What a publisher sent is what a subscriber sees.
func TestPropertiesPassThrough(t *testing.T) {
	t.Parallel()
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	b := between(t, source.URL(), dest.URL()).start(t)
	b.waitReady("")
	sub := subscriber(t, dest.Addr(), "out/#")
	pub := client(t, source.Addr())

	binary := []byte{0x00, 0xFF, 0x80, '\n', 0xC3, 0x28}
	for name, test := range map[string]struct {
		sent packets.Properties
		id   string // what the bridge takes for the identity
	}{
		"producer id": {packets.Properties{
			PayloadFormat: new(byte(1)), ContentType: "text/plain", ResponseTopic: "answers/1", CorrelationData: binary,
			User: []packets.User{{Key: "k", Value: "1"}, {Key: "other", Value: ""}, {Key: "k", Value: "3"}, {Key: "mqtt.message-id", Value: "id-7"}},
		}, "id-7"},
		"correlation data": {packets.Properties{CorrelationData: []byte("c-1"), User: []packets.User{{Key: "k", Value: "ä 漢"}}}, "c-1"},
		"no identity":      {packets.Properties{}, ""},
	} {
		payload := append([]byte(name), binary...)
		sent := test.sent
		publish(t, pub, &packets.Publish{Topic: "in/p", QoS: 1, Payload: payload, Properties: &sent})
		m := sub.MustReceive(t, patience)

		want := withoutOurs(test.sent)
		got := withoutOurs(*m.Properties)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: properties (-sent +received):\n%s", name, diff)
		}
		if string(m.Payload) != string(payload) || m.Topic != "out/in/p" || m.QoS != 1 || m.Retain {
			t.Errorf("%s: got %q on %q at QoS %d, retain %t", name, m.Payload, m.Topic, m.QoS, m.Retain)
		}
		id, _ := m.UserProperty("mqtt.message-id")
		if id == "" || test.id != "" && id != test.id {
			t.Errorf("%s: mqtt.message-id %q, want %q", name, id, test.id)
		}
		if hops, _ := m.UserProperty("gobridge-hops"); hops != "1" {
			t.Errorf("%s: gobridge-hops %q, want 1", name, hops)
		}
		if n := len(m.Properties.User) - len(got.User); n != 2 {
			t.Errorf("%s: %d properties of the bridge's own, want mqtt.message-id and gobridge-hops: %v", name, n, m.Properties.User)
		}
	}
	b.quietLosses()
	b.conserved()
	b.stop()
}

// withoutOurs returns the properties that a publisher can set, without those that the
// bridge adds.
func withoutOurs(p packets.Properties) packets.Properties {
	kept := packets.Properties{
		PayloadFormat: p.PayloadFormat, ContentType: p.ContentType, ResponseTopic: p.ResponseTopic, CorrelationData: p.CorrelationData,
	}
	for _, u := range p.User {
		if u.Key != "mqtt.message-id" && u.Key != "gobridge-hops" {
			kept.User = append(kept.User, u)
		}
	}
	return kept
}

// The expiry interval goes on running while a message waits, and an expired
// message is not delivered.
func TestExpiryRunsWhileAMessageWaits(t *testing.T) {
	t.Parallel()
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	b := between(t, source.URL(), dest.URL()).start(t)
	b.waitReady("")
	dest.Stop()
	b.waitNotReady("destination", patience)
	pub := client(t, source.Addr())
	publish(t, pub, &packets.Publish{Topic: "in/short", QoS: 1, Properties: &packets.Properties{MessageExpiry: new(uint32(1))}})
	publish(t, pub, &packets.Publish{Topic: "in/long", QoS: 1, Properties: &packets.Properties{MessageExpiry: new(uint32(1000))}})
	b.expectCounter(1, "dlq_entries", `category="expired"`)
	dest.Start()
	sub := subscriber(t, dest.Addr(), "out/#")
	m := sub.MustReceive(t, patience)
	if m.Topic != "out/in/long" {
		t.Fatalf("got %q, want out/in/long", m.Topic)
	}
	if e := m.Properties.MessageExpiry; e == nil || *e >= 1000 || *e < 900 {
		t.Errorf("expiry %v after a wait, want a little less than 1000", e)
	}
	b.conserved()
	b.stop()
}

// Properties survive several bridges in order, repeats included, and nothing is
// added but the identity and the hop count.
func TestPropertiesSurviveThreeHops(t *testing.T) {
	t.Parallel()
	one := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	two := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	hop := func(id string, from, to *bridgetest.Mosquitto, filter, address string) doc {
		cfg := between(t, from.URL(), to.URL())
		cfg.bridge["id"] = id
		cfg.source["client_id"], cfg.dest["client_id"] = id+"-in", id+"-out"
		cfg.topics = []doc{{"topic": filter}}
		cfg.address = address
		return cfg.file()
	}
	for _, file := range []doc{
		hop("h1", one, two, "start/#", "hop1/{topic[1:]}"),
		hop("h2", two, one, "hop1/#", "hop2/{topic[1:]}"),
		hop("h3", one, two, "hop2/#", "end/{topic[1:]}"),
	} {
		run(t, write(t, file)).waitReady("")
	}
	sub := subscriber(t, two.Addr(), "end/#")
	sent := []packets.User{{Key: "a", Value: "1"}, {Key: "b", Value: "2"}, {Key: "a", Value: "3"}}
	publish(t, client(t, one.Addr()), &packets.Publish{
		Topic: "start/x/y", QoS: 1, Payload: []byte("p"),
		Properties: &packets.Properties{User: append([]packets.User{{Key: "mqtt.message-id", Value: "id-1"}}, sent...)},
	})
	m := sub.MustReceive(t, patience)
	var own []packets.User
	var passed []packets.User
	for _, u := range m.Properties.User {
		if u.Key == "mqtt.message-id" || u.Key == "gobridge-hops" {
			own = append(own, u)
		} else {
			passed = append(passed, u)
		}
	}
	if diff := cmp.Diff(sent, passed); diff != "" {
		t.Errorf("user properties (-sent +received):\n%s", diff)
	}
	want := map[string]string{"mqtt.message-id": "id-1", "gobridge-hops": "3"}
	got := make(map[string]string)
	for _, u := range own {
		got[u.Key] = u.Value
	}
	if diff := cmp.Diff(want, got); diff != "" || len(own) != 2 {
		t.Errorf("properties of the bridge (-want +got):\n%s\n%v", diff, own)
	}
	if m.Topic != "end/x/y" {
		t.Errorf("topic %q, want end/x/y", m.Topic)
	}
}

// A publication that the broker refuses is a dead letter, not a success, at QoS 2
// too.
func TestRefusedPublicationsAreDeadLettered(t *testing.T) {
	t.Parallel()
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{LogPublishes: true})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{ACL: "topic readwrite allowed/#\n"})
	cfg := between(t, source.URL(), dest.URL())
	cfg.topics = []doc{{"topic": "in/#", "qos": 2}}
	cfg.sender["qos"] = "preserve"
	cfg.address = "{topic[1:]}"
	b := cfg.start(t)
	b.waitReady("")
	sub := subscriber(t, dest.Addr(), "allowed/#")
	pub := client(t, source.Addr())
	for qos := range byte(3) {
		publish(t, pub, &packets.Publish{Topic: "in/denied/x", QoS: qos, Payload: []byte{'0' + qos}})
	}
	publish(t, pub, &packets.Publish{Topic: "in/allowed/x", QoS: 2, Payload: []byte("good")})
	if m := sub.MustReceive(t, patience); string(m.Payload) != "good" {
		t.Errorf("got %q, want the message that is allowed", m.Payload)
	}
	b.expectCounter(2, "dlq_entries", `category="permanent"`)
	b.settled()
	s := b.metrics()
	for series, want := range map[string]float64{
		"gobridge_dlq_depth":           2,
		"gobridge_messages_sent_total": 2, // QoS 0, about which nobody can know, and the good one
	} {
		if got := s.sum(series); got != want {
			t.Errorf("%s = %v, want %v", series, got, want)
		}
	}
	if n := s.sum("gobridge_mqtt_publish_failures_total", `code="NOT_AUTHORIZED"`); n != 2 {
		t.Errorf("publish failures with NOT_AUTHORIZED = %v, want 2", n)
	}
	if lines := b.logged("dead-lettered", "0x87"); len(lines) != 2 {
		t.Errorf("%d log lines name reason 0x87, want 2:\n%s", len(lines), b.Stderr())
	}
	if tr := trafficTo(source.Log(), sourceID); tr.acked != 3 {
		t.Errorf("the source got %d acknowledgements, want 3", tr.acked)
	}
	if n := b.counter("mqtt_reconnects"); n != 0 {
		t.Errorf("%v reconnects, want 0", n)
	}
	b.conserved()
	b.stop()
}

// A topic that the broker would close the connection over never reaches it.
func TestIllegalRewrittenTopicsAreDeadLettered(t *testing.T) {
	t.Parallel()
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{LogPublishes: true})
	cfg := between(t, source.URL(), dest.URL())
	cfg.address = "{payload:to}"
	b := cfg.start(t)
	b.waitReady("")
	sub := subscriber(t, dest.Addr(), "fine/#")
	pub := client(t, source.Addr())
	reasons := map[string]string{ // topic and what the log must say
		"a+b":                       "wildcard",
		"a/#":                       "wildcard",
		"a\tb":                      "control character",
		"a\x00b":                    "NUL",
		"":                          "empty",
		strings.Repeat("x", 70_000): "65535",
		"$SYS/x":                    "$",
	}
	for topic, reason := range reasons {
		payload, err := json.Marshal(map[string]string{"to": topic})
		if err != nil {
			t.Fatal(err)
		}
		before := len(b.logged("dead-lettered", reason))
		publish(t, pub, &packets.Publish{Topic: "in/x", QoS: 1, Payload: payload})
		b.eventually(patience, "a dead letter because of "+reason, func() bool { return len(b.logged("dead-lettered", reason)) > before })
	}
	publish(t, pub, &packets.Publish{Topic: "in/x", QoS: 1, Payload: []byte("no JSON")})
	publish(t, pub, &packets.Publish{Topic: "in/x", QoS: 1, Payload: []byte(`{"to":"fine/x"}`)})
	sub.MustReceive(t, patience)
	b.expectCounter(float64(len(reasons)+1), "dlq_entries", `category="permanent"`)
	if n := b.counter("mqtt_reconnects"); n != 0 {
		t.Errorf("%v reconnects, want 0", n)
	}
	if n := strings.Count(dest.Log(), " as "+destID+" "); n != 1 {
		t.Errorf("the destination saw %d connects, want 1", n)
	}
	b.conserved()
	b.stop()
}

// Topics that start with $ do not cross.
func TestDollarTopicsDoNotCross(t *testing.T) {
	t.Parallel()
	fake := bridgetest.NewFakeBroker(t)
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	cfg := between(t, fake.URL(), dest.URL())
	cfg.topics = []doc{{"topic": "#", "qos": 1}}
	cfg.source["unmatched_grace"] = "200ms"
	b := cfg.start(t)
	conn := fake.Accept()
	conn.Handshake(nil)
	conn.Grant(conn.ExpectSubscribe())
	b.waitReady("")
	sub := subscriber(t, dest.Addr(), "out/#")
	// Some brokers deliver these for #.
	conn.Send(
		&packets.Publish{Topic: "$SYS/broker/uptime", QoS: 1, PacketID: 1, Payload: []byte("internal")},
		&packets.Publish{Topic: "$SYS/broker/load", QoS: 0, Payload: []byte("internal")},
		&packets.Publish{Topic: "in/x", QoS: 1, PacketID: 2, Payload: []byte("good")},
	)
	for id := uint16(1); id <= 2; id++ {
		if p := conn.Expect(packets.PUBACK); p.PacketID() != id {
			t.Errorf("PUBACK for %d, want %d", p.PacketID(), id)
		}
	}
	if m := sub.MustReceive(t, patience); string(m.Payload) != "good" {
		t.Errorf("got %q on %q, want the message that is not the broker's own", m.Payload, m.Topic)
	}
	b.expectCounter(2, "mqtt_router_unmatched_dropped", `session_id="source"`)
	if n := b.counter("messages_received"); n != 1 {
		t.Errorf("%v messages reached the route, want 1", n)
	}
	b.conserved()
}

// A destination that has them keeps them; deleting one crosses too.
func TestRetainedMessagesAndTheirRemovalCross(t *testing.T) {
	t.Parallel()
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	b := between(t, source.URL(), dest.URL()).start(t)
	b.waitReady("")
	pub := client(t, source.Addr())
	publish(t, pub, &packets.Publish{Topic: "in/kept", QoS: 1, Retain: true, Payload: []byte("v1")})
	publish(t, pub, &packets.Publish{Topic: "in/removed", QoS: 1, Retain: true, Payload: []byte("v1")})
	b.expectCounter(2, "messages_sent")
	dest.Stop()
	b.waitNotReady("destination", patience)
	publish(t, pub, &packets.Publish{Topic: "in/removed", QoS: 1, Retain: true})
	dest.Start()
	b.expectCounter(3, "messages_sent")
	sub := subscriber(t, dest.Addr(), "out/#")
	if m := sub.MustReceive(t, patience); m.Topic != "out/in/kept" || !m.Retain {
		t.Errorf("got %q, retain %t; want the retained out/in/kept", m.Topic, m.Retain)
	}
	publish(t, pub, &packets.Publish{Topic: "in/last", QoS: 1, Payload: []byte("v1")})
	if m := sub.MustReceive(t, patience); m.Topic != "out/in/last" || m.Retain {
		t.Errorf("got %q, retain %t; want out/in/last and nothing retained before it", m.Topic, m.Retain)
	}
	b.stop()
}

// A message that always fails is given up after its attempts, and the others do
// not wait for ever.
//
// Covers: S1-320, S2-201, G13
func TestAMessageThatAlwaysFailsDoesNotStopTheOthers(t *testing.T) {
	t.Parallel()
	const n, bad = 100, 3
	source := bridgetest.NewFakeBroker(t)
	src := source.Auto(bridgetest.AutoConfig{Source: &bridgetest.SourceConfig{
		N: n, Topic: "in/x", QoS: 1,
		Properties: func(i int) *packets.Properties {
			return &packets.Properties{User: []packets.User{{Key: "mqtt.message-id", Value: "m-" + string(rune('A'+i))}}}
		},
	}})
	fake := bridgetest.NewFakeBroker(t)
	dest := fake.Auto(bridgetest.AutoConfig{PubAck: func(p *packets.Publish) (byte, bool) {
		if string(p.Payload) == "3" {
			return packets.PubackUnspecifiedError, false
		}
		return 0, false
	}})
	cfg := between(t, source.URL(), fake.URL())
	cfg.source["receive_maximum"] = 10
	cfg.policy = doc{
		"send_timeout": "500ms", "send_retry_budget": "500ms", "max_replay_attempts": 3,
		"backoff": doc{"initial_interval": "50ms", "max_interval": "100ms"},
	}
	b := cfg.start(t)
	began := time.Now()
	stats := src.Wait(30*time.Second, func(s bridgetest.AutoStats) bool { return s.SourceAcked == n })
	t.Logf("all settled after %v; the destination saw %d publishes", time.Since(began).Round(time.Millisecond), dest.Stats().Received)
	if stats.AcksOutOfOrder > 0 || stats.AcksUnknown > 0 {
		t.Errorf("the source saw a broken protocol: %+v", stats)
	}
	seen := make(map[string]int)
	for _, p := range dest.Received() {
		seen[string(p.Payload)]++
	}
	if len(seen) != n || dest.Stats().Received != n-1+seen["3"] || seen["3"] < 2 {
		t.Errorf("the destination saw %d different messages, the bad one %d times, %d in all", len(seen), seen["3"], dest.Stats().Received)
	}
	b.expectCounter(1, "dlq_entries")
	b.expectCounter(n-1, "messages_sent")
	b.expectCounter(0, "mqtt_receiver_emit_rejected", `session_id="source"`)
	b.conserved()
	if code := b.Term(patience); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}
