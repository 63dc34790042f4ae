package engine_test

import (
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/metric"
	storemem "github.com/gobridge/gobridge/store/memory"
	"github.com/gobridge/gobridge/transport/memory"
)

func outboxSpec(change func(r *gobridge.RouteSpec)) *gobridge.Spec {
	return spec(func(r *gobridge.RouteSpec) {
		r.DeliveryMode = gobridge.SharedOutbox
		if change != nil {
			change(r)
		}
	})
}

// Covers: S1-108
func TestOutboxAcknowledgesTheSourceWhileTheDestinationIsDown(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, outboxSpec(nil))
		b.dst.SetDown(true)
		b.publish(500)
		b.wantUnsettled(0)
		if n := b.outbox.Depth("b0"); n != 500 {
			t.Errorf("outbox depth %d, want 500", n)
		}
		if len(b.engine.Ready(gobridge.LevelSubscribed)) > 0 || len(b.engine.Ready(gobridge.LevelFull)) == 0 {
			t.Error("with its destination down a shared_outbox bridge is subscribed, not full")
		}
		b.dst.SetDown(false)
		synctest.Wait()
		b.wantSent(numbers(500))
		if n := b.outbox.Depth("b0"); n != 0 {
			t.Errorf("outbox depth %d after the drain", n)
		}
	})
}

func TestOutboxKeepsOrderBeyondWhatItHoldsInMemory(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, outboxSpec(nil))
		b.dst.SetDown(true)
		payload := func(m *memory.Message) { m.Payload = append(m.Payload, make([]byte, 32<<10)...) }
		b.publish(600, payload)
		b.dst.SetDown(false)
		b.publish(300, func(m *memory.Message) { m.ID += "-later" }, payload)
		wait(time.Minute)
		got := b.dst.Sent()
		if len(got) != 900 {
			t.Fatalf("%d messages sent, want 900", len(got))
		}
		for i, m := range got {
			want := "out/in/" + strconv.Itoa(i%600)
			if i >= 600 {
				want = "out/in/" + strconv.Itoa(i-600)
			}
			if m.Topic != want {
				t.Fatalf("message %d is %s, want %s", i, m.Topic, want)
			}
		}
	})
}

// Covers: S1-405
func TestFullOutboxHoldsTheSourceAndRecoversAt80Percent(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, outboxSpec(func(r *gobridge.RouteSpec) { r.Policy.MaxOutboxDepth, r.Policy.MaxInFlight = 100, 10 }))
		b.dst.SetDown(true)
		b.publish(250)
		if n := b.outbox.Depth("b0"); n != 100 {
			t.Errorf("outbox depth %d, want 100", n)
		}
		b.wantUnsettled(150)
		b.dst.SetDown(false)
		synctest.Wait()
		b.wantSent(numbers(250))
		b.wantUnsettled(0)
		if n := b.count(metric.DLQEntries); n != 0 {
			t.Errorf("a full outbox dead-lettered %d messages", n)
		}
	})
}

// Covers: S1-108, S1-405
func TestFailingOutboxHoldsTheSourceUncharged(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, outboxSpec(nil))
		b.outbox.fail(errStore)
		b.publish(300)
		wait(time.Minute)
		b.wantUnsettled(300)
		b.wantSent(nil)
		if len(b.engine.Ready(gobridge.LevelFull)) == 0 {
			t.Error("ready although the outbox takes nothing")
		}
		b.outbox.fail(nil)
		wait(10 * time.Second)
		b.wantSent(numbers(300))
		b.wantUnsettled(0)
	})
}

// A message that comes in the moment in which the store is given again what it refused
// goes behind that (V4).
func TestRetryOfAFailingOutboxGoesBeforeWhatIsNew(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, outboxSpec(nil))
		b.outbox.fail(errStore)
		b.publish(10)
		wait(10 * time.Millisecond)
		b.outbox.repair(func() {
			b.src.Publish(memory.Message{Topic: "in/new", Payload: []byte("new"), ID: "new", QoS: 1})
			time.Sleep(time.Millisecond)
		})
		wait(10 * time.Second)
		b.wantUnsettled(0)
		if got := b.dst.Sent(); len(got) != 11 || got[10].Topic != "out/in/new" {
			t.Errorf("sent %v, want the new one last of 11", got)
		}
	})
}

// Covers: S2-508
func TestOutboxThatCannotCompleteDoesNotSendTwice(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, outboxSpec(nil))
		b.outbox.failComplete(errStore)
		b.publish(20)
		wait(time.Minute)
		b.wantSent(numbers(20))
		if n := b.outbox.Depth("b0"); n != 20 {
			t.Errorf("outbox depth %d, want 20 records that could not be completed", n)
		}
		b.outbox.failComplete(nil)
		wait(time.Minute)
		b.wantSent(numbers(20))
		if n := b.outbox.Depth("b0"); n != 0 {
			t.Errorf("outbox depth %d after the store healed", n)
		}
	})
}

// Covers: S1-311, S1-313, S1-402, S2-510, G09, G10
func TestDuplicateIdentitiesCollapseAndEqualMessagesWithoutOneDoNot(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, outboxSpec(nil))
		same := func(id, payload string) func(*memory.Message) {
			return func(m *memory.Message) { m.ID, m.Payload = id, []byte(payload) }
		}
		b.publish(1, same("x", "one"))
		b.publish(1, same("x", "one"))
		b.publish(1, same("x", "two"))
		b.publish(2, same("", "equal"))
		b.wantSent([]string{"one", "equal", "equal"})
		b.wantUnsettled(0)
		if n := b.count(metric.OutboxDuplicateSuppressed, "repeat"); n != 1 {
			t.Errorf("OutboxDuplicateSuppressed{repeat} = %d, want 1", n)
		}
		if n := b.count(metric.OutboxDuplicateSuppressed, "identity_conflict"); n != 1 {
			t.Errorf("OutboxDuplicateSuppressed{identity_conflict} = %d, want 1", n)
		}
	})
}

// Covers: S1-317, G12
func TestRecordIsPoisonWhenBothAttemptsAndBudgetAreSpent(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, outboxSpec(func(r *gobridge.RouteSpec) {
			r.Policy.MaxReplayAttempts, r.Policy.ReplayBudget = 3, 10*time.Minute
			r.Policy.Backoff = gobridge.BackoffSpec{InitialInterval: time.Second, MaxInterval: 10 * time.Second, Multiplier: 2}
		}))
		var tries atomic.Int32
		b.dst.SetAnswer(func(*memory.Message) error {
			tries.Add(1)
			return errBlip
		})
		b.publish(1)
		wait(9 * time.Minute)
		if tries.Load() < 20 || len(b.dlq.all()) != 0 {
			t.Errorf("%d tries and %d dead letters before replay_budget was spent", tries.Load(), len(b.dlq.all()))
		}
		wait(2 * time.Minute)
		all := b.dlq.all()
		if len(all) != 1 || all[0].Category != gobridge.CategoryPoison {
			t.Fatalf("dead letters %+v, want one poison message", all)
		}
		if n := b.outbox.Depth("b0"); n != 0 {
			t.Errorf("outbox depth %d after the terminal action", n)
		}
	})
}

// Covers: S1-329, S1-330, G18
func TestRecordStaysUntilItsDeadLetterIsWritten(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, outboxSpec(nil))
		b.dst.SetAnswer(func(*memory.Message) error { return errRefused })
		b.dlq.fail(errStore)
		b.publish(2)
		wait(time.Hour)
		if n := b.outbox.Depth("b0"); n != 2 {
			t.Errorf("outbox depth %d while the dead-letter queue fails, want 2 (G18)", n)
		}
		b.dlq.fail(nil)
		wait(time.Minute)
		if n := b.outbox.Depth("b0"); n != 0 || len(b.dlq.all()) != 2 {
			t.Errorf("outbox depth %d and %d dead letters", n, len(b.dlq.all()))
		}
	})
}

// Covers: S1-408
func TestExpiredRecordIsNotSent(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, outboxSpec(nil))
		b.dst.SetDown(true)
		b.publish(3, func(m *memory.Message) { m.Expires = time.Now().Add(5 * time.Second) })
		wait(10 * time.Second)
		b.dst.SetDown(false)
		synctest.Wait()
		b.wantSent(nil)
		if n := b.count(metric.OutboxExpiredBeforeSend); n != 3 || len(b.dlq.all()) != 3 {
			t.Errorf("OutboxExpiredBeforeSend = %d, %d dead letters, want 3 and 3", n, len(b.dlq.all()))
		}
	})
}

func TestFanOutThroughTheOutboxDrainsEachBindingAlone(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, outboxSpec(func(r *gobridge.RouteSpec) {
			r.DispatchMode = gobridge.DispatchFanOut
			r.Bindings = append(r.Bindings, gobridge.BindingSpec{ID: "b1", SenderID: "out", Address: "copy/{topic}"})
		}))
		b.dst.SetAnswer(func(m *memory.Message) error {
			if m.Topic[:5] == "copy/" {
				return gobridge.ErrConnectionLost
			}
			return nil
		})
		b.publish(50)
		b.wantUnsettled(0)
		if len(b.sent()) != 50 || b.outbox.Depth("b0") != 0 || b.outbox.Depth("b1") != 50 {
			t.Errorf("%d sent, depths %d and %d; want 50, 0 and 50", len(b.sent()), b.outbox.Depth("b0"), b.outbox.Depth("b1"))
		}
		b.dst.SetAnswer(nil)
		wait(time.Minute)
		if len(b.sent()) != 100 || b.outbox.Depth("b1") != 0 {
			t.Errorf("%d sent, depth %d; want 100 and 0", len(b.sent()), b.outbox.Depth("b1"))
		}
	})
}

// Covers: S1-307, S2-508, G05
func TestStopLeavesRecordsInTheOutboxAndTheNextProcessSendsThem(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		store := storemem.NewOutboxStore(time.Hour)
		first := startOn(t, outboxSpec(nil), store)
		first.dst.SetDown(true)
		first.publish(300)
		if err := first.close(); err != nil {
			t.Errorf("Run returned %v: records in a durable outbox are safe", err)
		}
		wait(time.Second)
		second := startOn(t, outboxSpec(nil), store)
		wait(time.Second)
		second.wantSent(numbers(300))
		if n := second.count(metric.OutboxReplays); n != 0 {
			t.Errorf("OutboxReplays = %d: a restart is no failed send", n)
		}
	})
}

// Covers: S1-404, S2-509
func TestFailedPersistAtTheStopLeavesDeliveriesAtTheirSource(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, outboxSpec(nil))
		b.outbox.fail(errStore)
		b.publish(10)
		err := b.close()
		if err == nil {
			t.Fatal("Run returned nil with deliveries left")
		}
		b.wantUnsettled(10)
	})
}
