package engine_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/metric"
	"github.com/gobridge/gobridge/transport/memory"
)

var errRemoved = &gobridge.Error{Code: gobridge.CodeSubscriptionRemoved, Class: gobridge.ClassPermanent, Op: "in/# has left the config"}

func unwanted(m *memory.Message) { m.Unwanted = errRemoved }

var bothModes = []string{gobridge.DirectHold, gobridge.SharedOutbox}

func TestAnUnwantedMessageIsDeadLetteredForEachBindingAndNeverSent(t *testing.T) {
	for _, mode := range bothModes {
		t.Run(mode, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				b := start(t, spec(func(r *gobridge.RouteSpec) {
					r.DeliveryMode = mode
					fanOut(r)
				}))
				if !b.env.DeadLetters {
					t.Error("the transport is told that there are no dead letters")
				}
				b.dlq.fail(gobridge.ErrFull)
				b.publish(1, unwanted)
				b.wantUnsettled(1) // until the letters are written
				b.dlq.fail(nil)
				wait(time.Minute)
				b.wantUnsettled(0)
				b.wantSent(nil)
				b.want(2, "one for each binding", metric.DLQEntries, string(gobridge.CategorySubscriptionRemoved))
				all := b.dlq.all()
				if len(all) != 2 || all[0].Code != gobridge.CodeSubscriptionRemoved || all[0].BindingID == all[1].BindingID || all[0].Attempts != 0 {
					t.Fatalf("dead letters %+v", all)
				}
				b.publish(1, func(m *memory.Message) { m.ID, m.Payload = "wanted", []byte("wanted") })
				b.wantSent([]string{"wanted", "wanted"})

				b.redriven = true
				if err := b.engine.Redrive(context.Background(), all[0].ID); err != nil {
					t.Errorf("redrive returned %v", err)
				}
				if sent := b.dst.Sent(); len(sent) != 3 || sent[2].Topic != all[0].Address {
					t.Errorf("sent %+v, want the letter at its binding %s", sent, all[0].Address)
				}
			})
		})
	}
}

func TestAnUnwantedMessageIsDroppedWhereThePolicySaysSo(t *testing.T) {
	for _, mode := range bothModes {
		t.Run(mode, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				b := start(t, spec(func(r *gobridge.RouteSpec) {
					r.DeliveryMode = mode
					r.Policy.OnPermanentFailure = gobridge.ActionDrop
				}))
				b.publish(1, unwanted)
				b.publish(2)
				b.want(1, "dropped", metric.MessagesDropped, metric.DropSubscriptionRemoved)
				b.wantSent(numbers(2))
				b.wantUnsettled(0)
			})
		})
	}
}

// A policy that drops is no permission: without a queue no other one is accepted.
func TestWithoutADeadLetterQueueTheTransportIsTold(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := spec(func(r *gobridge.RouteSpec) {
			r.Policy = gobridge.PolicySpec{OnPermanentFailure: gobridge.ActionDrop, OnExpired: gobridge.ActionDrop}
		})
		s.Stores.DLQ.Type = gobridge.StoreNone
		if b := start(t, s); b.env.DeadLetters {
			t.Error("the transport is told that there are dead letters")
		}
	})
}

func TestAnUnwantedMessageWhoseDeadLetterFailsComesAgain(t *testing.T) {
	for _, mode := range bothModes {
		t.Run(mode, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				b := start(t, spec(func(r *gobridge.RouteSpec) { r.DeliveryMode = mode }))
				b.dlq.fail(errStore)
				b.publish(1, unwanted)
				b.publish(1, unwanted, func(m *memory.Message) { m.QoS = 0 })
				synctest.Wait()
				b.want(1, "given back", metric.MessagesReturned, metric.ReturnRetry)
				b.want(1, "nothing delivers it again", metric.MessagesDropped, metric.DropRetryUnsupportedDLQFailed)
				b.wantUnsettled(1)
				b.dlq.fail(nil)
				wait(time.Minute)
				b.want(1, "dead-lettered", metric.DLQEntries)
				b.wantUnsettled(0)
			})
		})
	}
}

func TestQuiesceEmptiesTheIntakeOfUnwantedMessages(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, spec(func(r *gobridge.RouteSpec) { r.DeliveryMode = gobridge.SharedOutbox }))
		b.dlq.fail(gobridge.ErrFull)
		b.publish(1, unwanted)
		if n := b.inFlight(); n != 1 {
			t.Errorf("in flight %d, want 1", n)
		}
		b.quiesce()
		b.want(1, "given back", metric.MessagesReturned, metric.ReturnRecovering)
		if n := b.inFlight(); n != 0 {
			t.Errorf("in flight %d, want 0", n)
		}
		b.dlq.fail(nil)
		wait(time.Minute)
		b.wantUnsettled(0)
	})
}
