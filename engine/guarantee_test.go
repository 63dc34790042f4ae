package engine_test

import (
	"testing"
	"time"

	"github.com/gobridge/gobridge/metric"
	storemem "github.com/gobridge/gobridge/store/memory"
	"github.com/gobridge/gobridge/transport/memory"
)

// Rows of the guarantee matrix that permit a loss: it happens, to the messages that the
// row names and to no others.

func bestEffort(m *memory.Message) { m.QoS, m.ID = 0, "best-effort-"+m.ID }

// What publishers send at QoS 0 falls under the rows of QoS 0 although it comes through
// a filter of QoS 1: the source does not have it any more when the bridge ends.
//
// Covers: S1-333, G04
func TestHeldQoS0EndsWithTheProcessAndQoS1StaysAtItsSource(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, spec(nil))
		b.dst.SetDown(true)
		b.publish(3, bestEffort)
		b.publish(2)
		if err := b.close(); err == nil {
			t.Error("Run returned nil with deliveries left")
		}
		b.wantUnsettled(2)
		b.wantSent(nil)
		if n := b.count(metric.MessagesReturned, "shutdown"); n != 5 {
			t.Errorf("MessagesReturned{shutdown} = %d, want 5", n)
		}
	})
}

// Covers: S1-309, G07
func TestQoS0ThatWasNotStoredEndsWithTheProcess(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		store := storemem.NewOutboxStore(time.Hour)
		first := startOn(t, outboxSpec(nil), store)
		first.outbox.slow = time.Millisecond // all are taken before the first is refused
		first.outbox.fail(errStore)
		first.publish(3, bestEffort)
		first.publish(2)
		if err := first.close(); err == nil {
			t.Error("Run returned nil with deliveries left")
		}
		first.wantUnsettled(2) // those of QoS 1 come again, see G06
		second := startOn(t, outboxSpec(nil), store)
		wait(time.Minute)
		second.wantSent(nil)
	})
}
