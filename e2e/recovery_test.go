package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/gobridge/gobridge/admin"
	"github.com/gobridge/gobridge/bridgetest"
)

// recoverySpacing is the shortest time between two recoveries of a session.
const recoverySpacing = 30 * time.Second

// poisons are the topics of messages that can never be delivered by the bridge of
// poisoned, by the code of what is wrong with them.
var poisons = map[string]string{
	"NOT_AUTHORIZED":   "in/secret", // the destination refuses it
	"ADDRESS_TEMPLATE": "in",        // it has no level 1
}

// poisoned is a bridge to a destination that takes the messages of in/open alone. Its
// dead letters have a file of their own.
type poisoned struct {
	*config
	source *bridgetest.Mosquitto
	col    *bridgetest.Collector // of in/open
	dlq    string                // path
	sent   int                   // messages of in/open
}

func newPoisoned(t *testing.T, source bridgetest.MosquittoConfig) *poisoned {
	t.Helper()
	source.LogPublishes = true
	from := bridgetest.StartMosquitto(t, source)
	dest, _ := refusing(t)
	p := &poisoned{
		config: between(t, from.URL(), dest.URL()), source: from,
		col: collect(t, dest.Addr(), "out/#"), dlq: filepath.Join(t.TempDir(), "dlq.db"),
	}
	p.address = "out/in/{topic[1]}"
	p.stores["dlq"] = doc{"type": "sqlite", "options": doc{"path": p.dlq}}
	return p
}

// hideDLQ takes the file of the dead letters away, so that none can be written, and
// returns the function that brings it back.
func (p *poisoned) hideDLQ(t *testing.T) (restore func()) {
	t.Helper()
	move := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	move(p.dlq, p.dlq+".away")
	return func() { t.Helper(); move(p.dlq+".away", p.dlq) }
}

// poison publishes one message that cannot be delivered.
func (p *poisoned) poison(t *testing.T, code string, qos byte) {
	t.Helper()
	c := client(t, p.source.Addr())
	defer c.Close()
	publish(t, c, &packets.Publish{Topic: poisons[code], QoS: qos, Payload: []byte("poison")})
}

// good publishes n messages that can be delivered and waits until they were.
func (p *poisoned) good(t *testing.T, b *bridge, n int) {
	t.Helper()
	c := client(t, p.source.Addr())
	defer c.Close()
	for range n {
		publish(t, c, &packets.Publish{Topic: "in/open", QoS: 1, Payload: numbered(p.sent)})
		p.sent++
	}
	mustCount(t, p.col, p.sent, b, patience)
}

// arrivedOnce expects each good message once and in order at the destination.
func (p *poisoned) arrivedOnce(t *testing.T) {
	t.Helper()
	if !p.col.WaitQuiet(500*time.Millisecond, patience) {
		t.Error("messages still arrive")
	}
	r := p.col.Report(bridgetest.Ledger{Sent: p.sent, Acked: p.sent})
	t.Log(r)
	if len(r.Lost)+r.Duplicates+r.OutOfOrder+r.ForeignCount > 0 {
		t.Errorf("want each message once and in order: %v", r)
	}
}

// codes returns the sorted codes of the dead letters of a running bridge.
func (b *bridge) codes() []string {
	b.t.Helper()
	var codes []string
	for _, d := range ask[admin.DLQPage](b.t, "dlq", "list", "--url", b.url).DeadLetters {
		codes = append(codes, string(d.Code))
	}
	slices.Sort(codes)
	return codes
}

// Messages that can never be delivered, ahead of all others: with a dead-letter queue,
// and without one where the loss is permitted, they are settled at once and cost
// nobody else anything.
//
// Covers: S1-322, S1-323, G15
func TestPoisonAtTheHeadOfTheWindowIsGivenUp(t *testing.T) {
	t.Parallel()
	n := pick(100, 2000)
	for _, kept := range []bool{true, false} {
		t.Run(map[bool]string{true: "dead letters", false: "drop"}[kept], func(t *testing.T) {
			t.Parallel()
			p := newPoisoned(t, bridgetest.MosquittoConfig{})
			if !kept {
				p.stores["dlq"] = doc{"type": "none"}
				p.policy["on_permanent_failure"], p.policy["on_expired"] = "drop", "drop"
			}
			b := p.start(t)
			b.waitReady("")
			p.poison(t, "ADDRESS_TEMPLATE", 1)
			p.poison(t, "NOT_AUTHORIZED", 1)
			p.good(t, b, n)
			want := counts{
				"messages_received": float64(n + 2), "messages_sent": float64(n), "messages_returned": 0,
				"dlq_entries": 0, "dlq_write_failures": 0, "messages_dropped": 0,
				"mqtt_session_recovery_recycle": 0, "mqtt_reconnects": 0, "mqtt_receiver_emit_rejected": 0,
			}
			if kept {
				want["dlq_entries"], want["dlq_entries category=permanent"] = 2, 2
			} else {
				want["messages_dropped"], want["messages_dropped reason=permanent"] = 2, 2
			}
			b.expect(want)
			p.arrivedOnce(t)
			expectAcked(t, p.source, n+2)
			if codes := b.codes; kept && !slices.Equal(codes(), []string{"ADDRESS_TEMPLATE", "NOT_AUTHORIZED"}) {
				t.Errorf("dead letters with codes %q", codes())
			}
			b.waitReady("")
			b.conserved()
			b.stop()
		})
	}
}

// While no dead letter can be written, a message that can never be delivered stays with
// its source: the broker is asked for it again and again, with a recovery each time,
// and what comes behind it is delivered and waits for its turn to be acknowledged. The
// dead letter is written once when that is possible again.
//
// Covers: S1-324, S1-325, S2-101, S2-208, S2-301, S2-310, G16
func TestPoisonWithoutItsDeadLetterStaysAtItsSource(t *testing.T) {
	t.Parallel()
	n, failed := pick(100, 150), pick(1, 3) // failed recoveries; n is less than the receive window
	for _, code := range pick([]string{"NOT_AUTHORIZED"}, []string{"NOT_AUTHORIZED", "ADDRESS_TEMPLATE"}) {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			p := newPoisoned(t, bridgetest.MosquittoConfig{})
			b := p.start(t)
			b.waitReady("")
			restore := p.hideDLQ(t)
			p.poison(t, code, 1)
			// The first recovery comes at once. The message then fails again, and the next one
			// has to wait.
			b.expect(counts{"mqtt_session_recovery_recycle": 1, "dlq_write_failures": 2})
			first := time.Now()
			reason, _ := b.waitNotReady("source", patience)
			t.Logf("reason: %s", reason)
			if !strings.Contains(reason, "recovery") {
				t.Errorf("readiness says %q, and nothing of a recovery", reason)
			}
			p.good(t, b, n)
			if took := time.Since(first); took > recoverySpacing/2 {
				t.Errorf("messages behind the poison took %v", took)
			}
			b.expect(counts{
				"messages_received": float64(n + 2), "messages_sent": float64(n), "messages_returned reason=retry": 2,
				"messages_dropped": 0, "dlq_entries": 0, "dlq_write_failures": 2, "mqtt_session_recovery_recycle": 1,
			})
			expectAcked(t, p.source, 0)
			h := b.sessionHealth("source")
			if unsettled := b.metrics().sum("gobridge_mqtt_unsettled", `session_id="source"`); h.UnsettledCount != n+1 || unsettled != float64(n+1) {
				t.Errorf("unsettled: %d in deephealth, %v in /metrics, want %d", h.UnsettledCount, unsettled, n+1)
			}
			if h.RecoveryRecycleCount != 1 || h.OldestUnsettledAgeMS == 0 {
				t.Errorf("health of the source: %+v", h)
			}

			for i := 2; i <= failed; i++ {
				b.eventually(recoverySpacing+patience, "one more recovery", func() bool {
					return b.counter("mqtt_session_recovery_recycle") >= float64(i) && b.counter("dlq_write_failures") >= float64(i+1)
				})
				if took, least := time.Since(first), time.Duration(i-1)*recoverySpacing-time.Second; took < least {
					t.Errorf("recovery %d began %v after the first, want at least %v", i, took, least)
				}
				expectAcked(t, p.source, 0)
			}
			restore()
			b.eventually(recoverySpacing+patience, "the dead letter is written", func() bool { return b.counter("dlq_entries") > 0 })
			took := time.Since(first)
			b.settled()
			expectAcked(t, p.source, n+1)
			t.Logf("dead letter written %v after the first recovery", took.Round(time.Millisecond))
			if least := time.Duration(failed)*recoverySpacing - time.Second; took < least {
				t.Errorf("the last recovery began %v after the first one, want at least %v", took, least)
			}
			b.expect(counts{
				"messages_received": float64(n + failed + 2), "messages_sent": float64(n), "messages_dropped": 0,
				"messages_returned": float64(failed + 1), "messages_returned reason=retry": float64(failed + 1),
				"dlq_write_failures": float64(failed + 1), "dlq_entries": 1, "dlq_entries category=permanent": 1, "dlq_duplicate_suppressed": 0,
				"mqtt_session_recovery_recycle": float64(failed + 1), "mqtt_reconnects": float64(failed + 1),
				"mqtt_session_resume_lost": 0, "session_rebuilds": 0, "mqtt_receiver_emit_rejected": 0, "mqtt_ack_after_reconnect": 0,
			})
			p.arrivedOnce(t)
			if codes := b.codes(); !slices.Equal(codes, []string{code}) {
				t.Errorf("dead letters with codes %q, want one with %s", codes, code)
			}
			b.waitReady("")
			b.conserved()
			b.stop()
		})
	}
}

// G17: nothing can deliver a QoS 0 message again. Without a dead letter it is lost,
// which is counted once and costs no reconnect, also when a QoS 1 filter let it in.
//
// Covers: S1-326, S1-327, S1-328, S2-203, S2-204, S2-205, S2-207, G17
func TestQoS0PoisonWithoutItsDeadLetterIsLostOnce(t *testing.T) {
	t.Parallel()
	const n = 100
	p := newPoisoned(t, bridgetest.MosquittoConfig{})
	b := p.start(t)
	b.waitReady("")
	restore := p.hideDLQ(t)
	p.poison(t, "NOT_AUTHORIZED", 0)
	p.good(t, b, n)
	want := counts{
		"messages_received": n + 1, "messages_sent": n, "messages_returned": 0,
		"messages_dropped": 1, "messages_dropped reason=retry_unsupported_dlq_failed": 1,
		"dlq_write_failures": 1, "dlq_entries": 0,
		"mqtt_session_recovery_recycle": 0, "mqtt_reconnects": 0, "mqtt_receiver_emit_rejected": 0,
	}
	b.expect(want)
	if lines := b.logged("level=ERROR", "message lost", filepath.Base(p.dlq)); len(lines) != 1 {
		t.Errorf("errors that tell of the loss and its cause: %q, want one", lines)
	}
	p.arrivedOnce(t)
	expectAcked(t, p.source, n)
	restore()
	b.waitReady("")
	b.expect(want)
	b.conserved()
	b.stop()
}

// The source is restarted without its memory while a recovery waits: the session ends,
// and the same process builds it anew. What was delivered and not acknowledged was not
// lost with it.
//
// Covers: S2-302, S2-321, S2-326, G02
func TestBrokerForgetsWhileARecoveryIsQueued(t *testing.T) {
	t.Parallel()
	const before, after = 50, 200
	p := newPoisoned(t, bridgetest.MosquittoConfig{Volatile: true})
	b := p.start(t)
	b.waitReady("")
	restore := p.hideDLQ(t)
	p.poison(t, "NOT_AUTHORIZED", 1)
	b.expect(counts{"mqtt_session_recovery_recycle": 1, "dlq_write_failures": 2})
	p.good(t, b, before)
	expectAcked(t, p.source, 0)

	p.source.Restart()
	back := time.Now()
	restore()
	b.expect(counts{"mqtt_session_resume_lost session_id=source": 1, "session_rebuilds session_id=source": 1})
	b.waitReady("")
	took := time.Since(back)
	t.Logf("ready again %v after the restart of the broker", took.Round(time.Millisecond))
	if took > 5*time.Second {
		t.Errorf("flow was back after %v, want it without the time between two recoveries", took)
	}
	p.good(t, b, after)
	p.arrivedOnce(t)
	b.settled()
	if lines := b.logged("level=WARN", `msg="broker no longer had the session`); len(lines) != 1 {
		t.Errorf("warnings that the session is gone: %q, want one", lines)
	}
	if lines := b.logged("level=ERROR", "session_id=source"); len(lines) != 1 {
		t.Errorf("errors that the session ended: %q, want one", lines)
	}
	b.expect(counts{
		"messages_received": before + after + 2, "messages_sent": before + after, "messages_dropped": 0, "dlq_entries": 0,
		"messages_returned": 2, "dlq_write_failures": 2, "mqtt_session_recovery_recycle": 1,
		"mqtt_session_resume_lost": 1, "session_rebuilds": 1,
	})
	b.conserved()
	b.stop()
}
