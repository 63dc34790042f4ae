package e2e

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/eclipse/paho.golang/packets"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/admin"
	"github.com/gobridge/gobridge/bridgetest"
)

// With an id of the producer, what was stored needs its source no more, whatever the
// QoS it came with.
//
// Covers: G05
func TestG05StoredMessagesNeedNoSource(t *testing.T) {
	t.Parallel()
	const n = 50
	for _, qos := range []byte{0, 1} {
		t.Run(fmt.Sprintf("QoS %d", qos), func(t *testing.T) {
			t.Parallel()
			r := newRow(t, gobridge.SharedOutbox)
			r.topics = []doc{{"topic": "in/#", "qos": qos}}
			col := collect(t, r.dest.Addr(), "out/#")
			b := r.startReady(t)
			r.cutOff(b)
			r.send(t, qos, 0, n)
			b.waitDepth(n, patience)
			b.conserved()
			expectAcked(t, r.source, n*int(qos))
			b.Kill9()
			r.source.Stop()
			r.dest.Start()

			b = r.start(t)
			expectLost(t, col, 0, n)
			b.waitDepth(0, patience)
			b.expect(counts{"messages_received": 0, "messages_sent": n, "outbox_completions": n, "outbox_replays": 0})
			b.quietLosses()
			b.conservedSince(n)
			b.stop()
		})
	}
}

// The acknowledgement follows the write: what a crash keeps from being stored comes
// again.
//
// Covers: G06
func TestG06WhatWasNotStoredComesAgain(t *testing.T) {
	t.Parallel()
	const n = 50
	for qos := byte(1); qos <= 2; qos++ {
		t.Run(fmt.Sprintf("QoS %d", qos), func(t *testing.T) {
			t.Parallel()
			r := newRow(t, gobridge.SharedOutbox)
			r.topics = []doc{{"topic": "in/#", "qos": qos}}
			col := collect(t, r.dest.Addr(), "out/#")
			b := r.startReady(t)
			unlock := lockFile(t, r.store())
			r.send(t, qos, 0, n)
			r.held(b, n)
			b.Kill9()
			unlock()

			b = r.startReady(t)
			expectLost(t, col, 0, n)
			expectAcked(t, r.source, n)
			b.waitDepth(0, patience)
			b.expect(counts{"messages_received": n, "messages_sent": n, "outbox_completions": n, "outbox_duplicate_suppressed": 0})
			b.quietLosses()
			b.conserved()
			b.stop()
		})
	}
}

// Covers: G07
func TestG07WhatWasNotStoredIsLostWithoutASession(t *testing.T) {
	t.Parallel()
	const n = 20
	for name, c := range map[string]struct {
		qos     byte
		session doc
		warning string
	}{
		"QoS 0":           {0, doc{}, "QoS 0 is best effort"},
		"ephemeral QoS 1": {1, doc{"session_mode": gobridge.ModeEphemeral}, "session_mode is ephemeral"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRow(t, gobridge.SharedOutbox)
			r.topics, r.sourceSession = []doc{{"topic": "in/#", "qos": c.qos}}, c.session
			col := collect(t, r.dest.Addr(), "out/#")
			b := r.startReady(t)
			b.announced(c.warning, "in/#", "G07")
			unlock := lockFile(t, r.store())
			r.send(t, c.qos, 0, n)
			r.held(b, n)
			b.Kill9()
			unlock()

			b = r.startReady(t)
			r.send(t, c.qos, n, n+1)
			expectLost(t, col, n, n+1)
			b.waitDepth(0, patience)
			b.expect(counts{"messages_received": 1, "messages_sent": 1})
			b.quietLosses()
			b.conserved()
			b.stop()
		})
	}
}

// Covers: G08
func TestG08StoreInMemoryEndsWithItsProcess(t *testing.T) {
	t.Parallel()
	const n = 20
	r := newRow(t, gobridge.SharedOutbox)
	r.stores["outbox"] = doc{"type": gobridge.StoreMemory}
	col := collect(t, r.dest.Addr(), "out/#")
	b := r.startReady(t)
	b.announced("are kept in memory and are lost when the process ends", "stores.outbox", "G08")
	r.cutOff(b)
	r.send(t, 1, 0, n)
	b.waitDepth(n, patience)
	b.conserved()
	expectAcked(t, r.source, n) // nobody will deliver them again
	b.Kill9()
	r.dest.Start()

	b = r.startReady(t)
	r.send(t, 1, n, n+1)
	expectLost(t, col, n, n+1)
	b.waitDepth(0, patience)
	b.expect(counts{"messages_received": 1, "messages_sent": 1})
	b.quietLosses()
	b.conserved()
	b.stop()
}

// A crash between the write and the acknowledgement makes the source deliver again what
// is stored. Equal values without an id of their producer are all kept, and then all
// repeated; with ids the repeats are recognised.
//
// Covers: G05, G09
func TestG09RedeliveriesRepeatWithoutIdsAndNeverCollapse(t *testing.T) {
	t.Parallel()
	const n = 20
	for _, withID := range []bool{false, true} {
		t.Run(map[bool]string{false: "no id", true: "ids"}[withID], func(t *testing.T) {
			t.Parallel()
			r := newRow(t, gobridge.SharedOutbox)
			sub := subscriber(t, r.dest.Addr(), "out/#")
			ids := map[string]bool{}
			arrive := func() {
				t.Helper()
				for range n {
					m := sub.MustReceive(t, patience)
					id, ok := m.UserProperty("mqtt.message-id")
					if string(m.Payload) != "21.5" || !ok || ids[id] {
						t.Errorf("got %q with id %q, want 21.5 with an id of its own", m.Payload, id)
					}
					ids[id] = true
				}
			}
			b := r.startReady(t)
			r.in.BlackHoleOneWay(bridgetest.ToTarget, true) // swallows the acknowledgements
			for i := range n {
				id := ""
				if withID {
					id = fmt.Sprintf("m-%d", i)
				}
				publish(t, r.pub, reading(id, "21.5"))
			}
			arrive()
			b.waitDepth(0, patience)
			b.expect(counts{"messages_received": n, "messages_sent": n, "outbox_duplicate_suppressed": 0})
			expectAcked(t, r.source, 0)
			b.Kill9()
			r.in.BlackHoleOneWay(bridgetest.ToTarget, false)

			b = r.startReady(t)
			want := counts{"messages_received": n, "messages_sent": n, "outbox_duplicate_suppressed": 0}
			if withID {
				want["messages_sent"], want["outbox_duplicate_suppressed"], want["outbox_duplicate_suppressed reason=repeat"] = 0, n, n
			} else {
				arrive()
			}
			b.expect(want)
			expectAcked(t, r.source, n)
			b.waitDepth(0, patience)
			b.quietLosses()
			b.conserved()
			b.stop()
		})
	}
}

// A record that is given up goes when its dead letter is written, which a crash does not
// change, or when its drop is counted.
//
// Covers: G18
func TestG18RecordsGoAfterTheirEnd(t *testing.T) {
	t.Parallel()
	const bad, good = 5, 10
	for _, action := range []string{"dlq", "drop"} {
		t.Run(action, func(t *testing.T) {
			t.Parallel()
			dest, _ := refusing(t)
			r := rowTo(t, gobridge.SharedOutbox, bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{LogPublishes: true}), dest)
			r.policy["on_permanent_failure"] = action
			letters := filepath.Join(t.TempDir(), "dlq.db")
			r.stores["dlq"] = doc{"type": gobridge.StoreSQLite, "options": doc{"path": letters}}
			col := collect(t, dest.Addr(), "out/#")
			b := r.startReady(t)
			unlock := lockFile(t, letters) // no dead letter can be written
			r.sendWith(t, &packets.Publish{Topic: "in/secret", QoS: 1}, 0, bad-1)
			r.sendWith(t, &packets.Publish{Topic: "in/secret", QoS: 0}, bad-1, bad) // stored as well
			r.sendWith(t, &packets.Publish{Topic: "in/open", QoS: 1}, bad, bad+good)
			expectLost(t, col, bad, bad+good)
			expectAcked(t, r.source, bad-1+good)
			if action == "drop" {
				b.waitDepth(0, patience)
				b.expect(counts{
					"messages_received": bad + good, "messages_sent": good, "dlq_entries": 0,
					"messages_dropped": bad, "messages_dropped reason=permanent": bad,
				})
				unlock()
				b.conserved()
				b.stop()
				return
			}
			b.eventually(patience, "dead letters cannot be written", func() bool { return b.counter("dlq_write_failures") > 0 })
			b.waitDepth(bad, patience)
			b.expect(counts{"messages_received": bad + good, "messages_sent": good, "messages_dropped": 0, "dlq_entries": 0})
			b.conserved()
			b.Kill9()
			unlock()
			if left := ask[admin.OutboxStatus](t, "outbox", "list", "-c", r.path); len(left.Records) != bad {
				t.Errorf("%d records are left, want %d", len(left.Records), bad)
			}

			b = r.startReady(t)
			b.waitDepth(0, patience)
			b.expect(counts{"messages_received": 0, "messages_sent": 0, "messages_dropped": 0, "dlq_entries": bad, "dlq_entries category=permanent": bad})
			if page := ask[admin.DLQPage](t, "dlq", "list", "--url", b.url); page.Depth != bad {
				t.Errorf("%d dead letters, want %d", page.Depth, bad)
			}
			expectLost(t, col, bad, bad+good)
			b.conservedSince(bad)
			b.stop()
		})
	}
}
