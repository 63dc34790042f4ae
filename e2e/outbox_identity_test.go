package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/gobridge/gobridge/admin"
	"github.com/gobridge/gobridge/bridgetest"
)

// reading is a message with an id of its producer; "" is none.
func reading(id, payload string) *packets.Publish {
	p := &packets.Publish{Topic: "in/x", QoS: 1, Payload: []byte(payload), Properties: &packets.Properties{}}
	if id != "" {
		p.Properties.User = []packets.User{{Key: "mqtt.message-id", Value: id}}
	}
	return p
}

// G09: equal values are different messages unless their producer says otherwise.
//
// Covers: S1-311, S1-402, S2-510, G09
func TestEqualMessagesWithoutIdsBothArrive(t *testing.T) {
	t.Parallel()
	const n = 50
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	cfg := viaOutbox(t, source.URL(), dest.URL())
	sub := subscriber(t, dest.Addr(), "out/#")
	b := cfg.start(t)
	b.waitReady("")
	pub := client(t, source.Addr())
	for range n {
		publish(t, pub, reading("", "21.5"))
	}
	ids := map[string]bool{}
	for range n {
		m := sub.MustReceive(t, patience)
		id, ok := m.UserProperty("mqtt.message-id")
		if string(m.Payload) != "21.5" || !ok || ids[id] {
			t.Errorf("got %q with id %q, want 21.5 with an id of its own", m.Payload, id)
		}
		ids[id] = true
	}
	if got := b.counter("outbox_duplicate_suppressed"); got != 0 {
		t.Errorf("%v duplicates suppressed, want 0", got)
	}
	b.waitDepth(0, patience)
	b.quietLosses()
	b.conservedSince(0)
	b.stop()
}

// G10, decision F3: a reused id collapses, waiting and completed, before and after a
// restart; two payloads under one id are counted apart.
//
// Covers: S1-313, S1-315, G10
func TestReusedIdsCollapseAndAreCounted(t *testing.T) {
	t.Parallel()
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{LogPublishes: true})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	cfg := viaOutbox(t, source.URL(), dest.URL())
	sub := subscriber(t, dest.Addr(), "out/#")
	b := cfg.start(t)
	b.waitReady("")
	pub := client(t, source.Addr())
	suppressed := func(reason string, want float64) {
		t.Helper()
		b.expectCounter(want, "outbox_duplicate_suppressed", `binding_id="b"`, `reason="`+reason+`"`)
	}

	publish(t, pub, reading("a", "one"))
	publish(t, pub, reading("a", "one"))
	publish(t, pub, reading("a", "two"))
	publish(t, pub, reading("a", "three"))
	publish(t, pub, reading("b", "one"))
	suppressed("repeat", 1)
	suppressed("identity_conflict", 2)
	if lines := b.logged("level=WARN", "two different payloads"); len(lines) != 1 {
		t.Errorf("%d warnings about the reused id, want 1: %q", len(lines), lines)
	}
	for _, want := range []string{"a one", "b one"} {
		m := sub.MustReceive(t, patience)
		if id, _ := m.UserProperty("mqtt.message-id"); id+" "+string(m.Payload) != want {
			t.Errorf("got %s %s, want %s", id, m.Payload, want)
		}
	}
	b.waitDepth(0, patience)
	b.conservedSince(0)
	b.Kill9()

	b = cfg.start(t) // the evidence is durable
	b.waitReady("")
	publish(t, pub, reading("a", "one"))
	publish(t, pub, reading("b", "two"))
	publish(t, pub, reading("c", "last"))
	suppressed("repeat", 1)
	suppressed("identity_conflict", 1)
	if m := sub.MustReceive(t, patience); string(m.Payload) != "last" {
		t.Errorf("got %q, want nothing but the last message", m.Payload)
	}
	b.waitDepth(0, patience)
	b.settled()
	expectAcked(t, source, 8)
	b.quietLosses()
	b.conservedSince(0)
	b.stop()
}

// An expired record is not sent: it ends as on_expired says, also in a process that
// found it on disk.
//
// Covers: S1-318, S1-408, G12
func TestRecordsThatExpireInTheOutboxAreNotSent(t *testing.T) {
	t.Parallel()
	const expiring, lasting = 900, 30 // more than the route has slots for, and than one page from disk
	for _, action := range []string{"dlq", "drop"} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s restart=%t", action, restart), func(t *testing.T) {
				t.Parallel()
				source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
				dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
				cfg := viaOutbox(t, source.URL(), dest.URL())
				cfg.policy["on_expired"] = action
				col := collect(t, dest.Addr(), "out/in/lasting")
				dead := bridgetest.StartCollector(t, bridgetest.CollectorConfig{Addr: dest.Addr(), Filter: "out/in/expiring", ClientID: "dead"})
				b := cfg.start(t)
				b.waitReady("")
				dest.Stop()
				b.waitNotReady("destination", patience)
				short := bridgetest.StartPublisher(t, bridgetest.PublisherConfig{
					Addr: source.Addr(), Topic: "in/expiring", ClientID: "short", N: expiring, QoS: 1,
					Properties: func(int) *packets.Properties { return &packets.Properties{MessageExpiry: new(uint32(3))} },
				})
				long := publishN(t, source.Addr(), "in/lasting", lasting)
				short.Wait(t, patience)
				published := time.Now()
				long.Wait(t, patience)
				if restart {
					b.waitDepth(expiring+lasting, 2*time.Second) // before they expire
					b.stop()
				}
				time.Sleep(time.Until(published.Add(3100 * time.Millisecond))) // they expire
				dest.Start()
				before := 0
				if restart {
					before = expiring + lasting
					b = cfg.start(t)
				}
				r := finish(t, long, col, lasting, b, time.Minute)
				t.Log(r)
				exactlyOnce(t, r)
				b.waitDepth(0, patience)
				b.expectCounter(expiring, "outbox_expired_before_send", `binding_id="b"`)
				if got := dead.Count(); got != 0 {
					t.Errorf("%d expired messages were sent", got)
				}
				letters := ask[admin.DLQPage](t, "dlq", "list", "--url", b.url, "--category", "expired", "--limit", "1")
				switch {
				case action == "dlq" && (letters.Depth != expiring || letters.DeadLetters[0].Code != "MESSAGE_EXPIRED"):
					t.Errorf("%d dead letters, first %+v, want %d with code MESSAGE_EXPIRED", letters.Depth, letters.DeadLetters, expiring)
				case action == "drop" && letters.Depth != 0:
					t.Errorf("%d dead letters, want none", letters.Depth)
				}
				if action == "drop" {
					b.expectCounter(expiring, "messages_expired", `binding_id="b"`)
				} else {
					b.expectCounter(expiring, "dlq_entries", `category="expired"`)
				}
				b.conservedSince(before)
				b.stop()
			})
		}
	}
}
