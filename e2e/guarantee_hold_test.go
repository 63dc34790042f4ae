package e2e

import (
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/admin"
	"github.com/gobridge/gobridge/bridgetest"
)

// Covers: G01
func TestG01CrashWithinTheSessionExpiryLosesNothing(t *testing.T) {
	t.Parallel()
	const n = 50
	for _, c := range []struct {
		mode string // session_mode
		qos  byte
	}{
		{gobridge.ModePersistent, 1},
		{gobridge.ModePersistent, 2},
		{gobridge.ModeExclusive, 1},
	} {
		t.Run(fmt.Sprintf("%s QoS %d", c.mode, c.qos), func(t *testing.T) {
			t.Parallel()
			r := newRow(t, gobridge.DirectHold)
			r.sourceSession["session_mode"] = c.mode
			r.topics = []doc{{"topic": "in/#", "qos": c.qos}}
			col := collect(t, r.dest.Addr(), "out/#")
			b := r.startReady(t)
			r.out.BlackHoleOneWay(bridgetest.ToClient, true) // sends arrive and stay in flight
			r.send(t, c.qos, 0, n)
			mustArrive(t, col, n)
			r.held(b, n)
			b.Kill9()
			r.out.BlackHoleOneWay(bridgetest.ToClient, false)

			b = r.startReady(t)
			b.expect(counts{"messages_received": n, "messages_sent": n, "mqtt_session_resume_lost": 0})
			got := report(t, col, n)
			if nothingLost(t, got); got.Duplicates != n {
				t.Errorf("%d repeats, want the %d sends that were in flight", got.Duplicates, n)
			}
			expectAcked(t, r.source, n)
			b.quietLosses()
			b.conserved()
			b.stop()
		})
	}
}

// The session of a bridge that stays away for longer than its expiry is gone, with all
// that waited. The bridge cannot get it back; it says so.
//
// Covers: G02
func TestG02LateResumeLosesTheQueueAndSaysSo(t *testing.T) {
	t.Parallel()
	const before, lost, after = 5, 20, 5
	r := newRow(t, gobridge.DirectHold)
	r.config.source["session_expiry_interval"] = 1
	col := collect(t, r.dest.Addr(), "out/#")
	b := r.startReady(t)
	r.send(t, 1, 0, before)
	mustArrive(t, col, before)
	b.settled()
	b.Kill9()
	r.send(t, 1, before, before+lost)
	if !within(patience, func() bool { return strings.Contains(r.source.Log(), "Expiring client "+sourceID) }) {
		t.Fatal("the broker has not expired the session")
	}

	r.in.Delay(300 * time.Millisecond) // so that the moment before the subscription can be seen
	b = r.start(t)
	var told string
	b.eventually(patience, "last_error tells of the lost session", func() bool {
		told = b.sessionHealth("source").LastError
		return told != ""
	})
	t.Logf("last_error: %s", told)
	b.waitReady("")
	if s := b.sessionHealth("source"); s.LastError != "" || s.SessionPresent {
		t.Errorf("after the reconcile: %+v, want no error and a new session", s)
	}
	b.announced("broker no longer had the session")
	r.send(t, 1, before+lost, before+lost+after)
	mustArrive(t, col, before+after)
	if got := report(t, col, before+lost+after); len(got.Lost) != lost || got.Duplicates > 0 {
		t.Errorf("want the %d messages of the queue lost: %v", lost, got)
	}
	b.expect(counts{"mqtt_session_resume_lost session_id=source": 1, "messages_received": after, "messages_sent": after})
	b.quietLosses()
	b.conserved()
	b.stop()
}

// Covers: G03
func TestG03CleanStartCannotHold(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		session, options doc
		field, fix       string
	}{
		"ephemeral": {doc{"session_mode": gobridge.ModeEphemeral}, doc{}, "session_mode", "write session_mode: persistent"},
		"persistent with clean start": {
			doc{"session_mode": gobridge.ModePersistent}, doc{"clean_start": true}, "options.session.clean_start", "remove clean_start",
		},
		"exclusive with clean start": {
			doc{"session_mode": gobridge.ModeExclusive}, doc{"clean_start": true}, "options.session.clean_start", "remove clean_start",
		},
	} {
		for qos := 1; qos <= 2; qos++ {
			t.Run(fmt.Sprintf("%s QoS %d", name, qos), func(t *testing.T) {
				t.Parallel()
				in := bridgetest.NewProxy(t, "127.0.0.1:1") // nothing is to come so far
				r := &row{config: between(t, in.URL(), "tcp://127.0.0.1:1"), mode: gobridge.DirectHold, in: in}
				r.topics = []doc{{"topic": "in/#", "qos": qos}}
				r.sourceSession = c.session
				maps.Copy(r.config.source, c.options)
				r.refused(t, "sessions[0]."+c.field+": ", `of "in/#" that are not settled when the bridge stops would be lost (G03)`, c.fix)
			})
		}
	}
}

// Covers: G04
func TestG04QoS0IsLostWithItsProcess(t *testing.T) {
	t.Parallel()
	const n = 20
	for name, topics := range map[string][]doc{
		"alone":        {{"topic": "in/live", "qos": 0}},
		"beside QoS 1": {{"topic": "in/live", "qos": 0}, {"topic": "in/x", "qos": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRow(t, gobridge.DirectHold)
			r.topics = topics
			col := collect(t, r.dest.Addr(), "out/#")

			r.stores["dlq"] = doc{"type": "none"}
			r.policy["on_permanent_failure"], r.policy["on_expired"] = "drop", "drop"
			r.refused(t, "routes[0].policy.allow_retry_drop", "in/live", "there is no dead-letter queue", "write allow_retry_drop: true")
			delete(r.stores, "dlq")
			clear(r.policy)

			b := r.startReady(t)
			b.announced("QoS 0 is best effort", "in/live", "G04")
			r.cutOff(b)
			r.sendWith(t, &packets.Publish{Topic: "in/live", QoS: 0}, 0, n)
			total := n
			if len(topics) > 1 {
				r.send(t, 1, n, 2*n)
				total = 2 * n
			}
			r.held(b, total)
			b.Kill9()
			r.dest.Start()
			b = r.startReady(t)
			// Live again: the next one arrives.
			r.sendWith(t, &packets.Publish{Topic: "in/live", QoS: 0}, total, total+1)
			expectLost(t, col, n, total+1)
			again := float64(total + 1 - n)
			b.expect(counts{"messages_received": again, "messages_sent": again})
			b.quietLosses()
			b.conserved()
			b.stop()
		})
	}
}

// refusingOne is a destination that answers messages of out/in/bad with a failure that
// may pass, and never does.
func refusingOne(t *testing.T) (dest *bridgetest.FakeBroker, received *bridgetest.Auto, tries *atomic.Int32) {
	dest, tries = bridgetest.NewFakeBroker(t), new(atomic.Int32)
	received = dest.Auto(bridgetest.AutoConfig{PubAck: func(p *packets.Publish) (byte, bool) {
		if p.Topic == "out/in/bad" {
			tries.Add(1)
			return packets.PubackUnspecifiedError, false
		}
		return 0, false
	}})
	return dest, received, tries
}

// A message that always fails is given up after max_replay_attempts spent budgets when
// its id lets them be counted, over a crash too, and after the first one when it has
// none.
//
// Covers: G13, G14
func TestG13G14AttemptsAreCountedByIDOrNotAtAll(t *testing.T) {
	t.Parallel()
	const attempts, good = 4, 20
	for _, c := range []struct {
		id     string
		budget time.Duration
	}{
		{"p-1", 600 * time.Millisecond},
		{"", 400 * time.Millisecond},
		{"", 0}, // the first failure
	} {
		id, budget := c.id, c.budget
		t.Run(fmt.Sprintf("id %q, budget %v", id, budget), func(t *testing.T) {
			t.Parallel()
			source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{LogPublishes: true})
			fake, dest, tries := refusingOne(t)
			cfg := between(t, source.URL(), fake.URL())
			cfg.policy = doc{
				"send_timeout": "300ms", "send_retry_budget": budget.String(), "max_replay_attempts": attempts,
				"backoff": doc{"initial_interval": "50ms", "max_interval": "100ms"},
			}
			b := cfg.start(t)
			b.waitReady("")
			pub := client(t, source.Addr())
			bad := reading(id, "bad")
			bad.Topic = "in/bad"
			began := time.Now()
			publish(t, pub, bad)
			category, budgets := "unstable_identity", 1
			if id != "" {
				category, budgets = "poison", attempts
				b.eventually(patience, "two spent budgets", func() bool { return b.counter("send_retry_budget_exhausted") >= 2 })
				b.expect(counts{"messages_received": 1, "dlq_entries": 0})
				expectAcked(t, source, 0)
				b.Kill9()
				b = cfg.start(t)
				b.waitReady("")
			}
			for range good { // the others do not wait
				publish(t, pub, reading("", "good"))
			}
			b.expect(counts{
				"messages_received": good + 1, "messages_sent": good, "messages_dropped": 0,
				"dlq_entries": 1, "dlq_entries category=" + category: 1,
			})
			took := time.Since(began)
			letter := ask[admin.DLQPage](t, "dlq", "list", "--url", b.url).DeadLetters[0]
			spent := b.counter("send_retry_budget_exhausted")
			t.Logf("given up after %v, %d tries, %v budgets spent in the last process: %s", took.Round(time.Millisecond), tries.Load(), spent, letter.LastError)
			if letter.Topic != "in/bad" || letter.MessageID != id && id != "" || !strings.Contains(letter.LastError, "0x80") {
				t.Errorf("dead letter %+v", letter)
			}
			if least := time.Duration(budgets) * budget / 2; took < least { // a wait that would outlast a budget ends it
				t.Errorf("given up after %v, want at least %v", took, least)
			}
			if id == "" && spent != 1 || budget == 0 && tries.Load() != 1 {
				t.Errorf("%v budgets of %v spent with %d tries, want the first one only", spent, budget, tries.Load())
			}
			if id != "" && (spent > attempts-2 || !strings.Contains(letter.LastError, fmt.Sprintf("after %d attempts", attempts))) {
				t.Errorf("%v budgets spent after the crash, want at most %d, since two were counted before it; error: %s", spent, attempts-2, letter.LastError)
			}
			if got := dest.Stats().Received - int(tries.Load()); got != good {
				t.Errorf("%d good messages arrived, want %d", got, good)
			}
			expectAcked(t, source, good+1)
			b.conserved()
			b.stop()
		})
	}
}

// Covers: G15
func TestG15GivenUpMessagesAreKeptOrCounted(t *testing.T) {
	t.Parallel()
	const n = 10
	for _, cause := range []string{"permanent", "expired"} {
		for _, action := range []string{"dlq", "drop"} {
			t.Run(cause+" "+action, func(t *testing.T) {
				t.Parallel()
				source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{LogPublishes: true})
				var dest *bridgetest.Mosquitto
				if cause == "permanent" {
					dest, _ = refusing(t)
				} else {
					dest = bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
				}
				r := rowTo(t, gobridge.DirectHold, source, dest)
				r.policy["on_permanent_failure"], r.policy["on_expired"] = action, action
				col := collect(t, dest.Addr(), "out/#")
				b := r.startReady(t)
				bad := &packets.Publish{Topic: "in/secret", QoS: 1}
				if cause == "expired" {
					bad.Topic, bad.Properties = "in/open", &packets.Properties{MessageExpiry: new(uint32(2))}
					r.cutOff(b)
				}
				r.sendWith(t, bad, 0, n)
				want := counts{"messages_received": n, "messages_sent": 0, "messages_dropped": 0, "messages_expired": 0, "dlq_entries": 0}
				letters := 0
				switch {
				case action == "dlq":
					want["dlq_entries"], want["dlq_entries category="+cause] = n, n
					letters = n
				case cause == "expired":
					want["messages_expired"] = n
				default:
					want["messages_dropped"], want["messages_dropped reason=permanent"] = n, n
				}
				b.expect(want)
				expectAcked(t, source, n) // the source is rid of them
				if page := ask[admin.DLQPage](t, "dlq", "list", "--url", b.url); page.Depth != letters {
					t.Errorf("%d dead letters, want %d", page.Depth, letters)
				}
				if cause == "expired" {
					dest.Start()
				}
				r.sendWith(t, &packets.Publish{Topic: "in/open", QoS: 1}, n, n+1)
				expectLost(t, col, n, n+1)
				b.conserved()
				b.stop()
			})
		}
	}
}
