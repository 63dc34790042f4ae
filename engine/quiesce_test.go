package engine_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/engine"
	"github.com/gobridge/gobridge/metric"
	"github.com/gobridge/gobridge/transport/memory"
)

// quiesce empties the route within a minute and returns how long it took.
func (b *bridge) quiesce() time.Duration {
	b.t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := b.env.Quiesce(ctx); err != nil {
		b.t.Errorf("Quiesce returned %v", err)
	}
	return time.Since(began)
}

func (b *bridge) want(want int, what string, d *metric.Desc, values ...string) {
	b.t.Helper()
	if got := b.count(d, values...); got != want {
		b.t.Errorf("%s: %s%v = %d, want %d", what, d.Name, values, got, want)
	}
}

func (b *bridge) inFlight() int { return b.engine.Health().Routes[0].InFlight }

func fanOut(r *gobridge.RouteSpec) {
	r.DispatchMode = gobridge.DispatchFanOut
	r.Bindings = append(r.Bindings, gobridge.BindingSpec{ID: "b1", SenderID: "out", Address: "copy/{topic}"})
}

// slow answers after a while; err is the answer.
func slow(d time.Duration, err error) func(*memory.Message) error {
	return func(*memory.Message) error {
		time.Sleep(d)
		return err
	}
}

func TestQuiesceGivesBackAtOnceWhatOnlyWaits(t *testing.T) {
	for name, hinder := range map[string]func(b *bridge){
		"held":                   func(b *bridge) { b.dst.SetDown(true) },
		"waits for its next try": func(b *bridge) { b.dst.SetAnswer(slow(0, errBlip)) },
		"held by a full queue": func(b *bridge) {
			b.dst.SetAnswer(slow(0, errRefused))
			b.dlq.fail(gobridge.ErrFull)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				b := start(t, spec(nil))
				hinder(b)
				b.publish(5)
				if took := b.quiesce(); took != 0 {
					t.Errorf("took %v", took)
				}
				b.wantUnsettled(5)
				b.want(5, "given back", metric.MessagesReturned, metric.ReturnRecovering)
				b.want(0, "uncharged", metric.SendRetryBudgetExhausted)
				if n := b.inFlight(); n != 0 {
					t.Errorf("%d deliveries are still in the route", n)
				}
				b.dst.SetDown(false)
				b.dst.SetAnswer(nil)
				b.dlq.fail(nil)
				wait(time.Minute)
				b.wantSent(numbers(5))
				b.wantUnsettled(0)
			})
		})
	}
}

// Covers: S2-306, S2-307
func TestQuiesceAwaitsSendsAndGivesBackThoseThatFail(t *testing.T) {
	for name, c := range map[string]struct {
		answer   error
		returned int
	}{
		"confirmed":    {nil, 0},
		"outage":       {gobridge.ErrBrokerBusy, 1},
		"own fault":    {errBlip, 1},
		"refused":      {errRefused, 1},
		"out of reach": {gobridge.ErrConnectionLost, 1},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				b := start(t, spec(nil))
				b.dst.SetAnswer(slow(3*time.Second, c.answer))
				b.publish(1)
				if took := b.quiesce(); took != 3*time.Second {
					t.Errorf("took %v, want the 3 s of the send", took)
				}
				b.want(c.returned, "given back", metric.MessagesReturned, metric.ReturnRecovering)
				b.wantUnsettled(c.returned)
				b.dst.SetAnswer(nil)
				wait(time.Minute)
				b.wantSent(numbers(1))
				b.want(0, "uncharged", metric.DLQEntries)
			})
		})
	}
}

func TestQuiesceDoesNotWaitForADestinationThatWentAway(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, spec(func(r *gobridge.RouteSpec) { r.Policy.MaxInFlight = 1 }))
		b.dst.SetAnswer(slow(20*time.Second, nil))
		b.publish(1)
		b.dst.SetDown(true)
		if took := b.quiesce(); took > time.Second {
			t.Errorf("took %v", took)
		}
		b.want(1, "given back", metric.MessagesReturned, metric.ReturnRecovering)
		b.dst.SetDown(false)
		b.dst.SetAnswer(nil)
		wait(time.Minute) // the slot is free again once the sender has let go of it
		b.publish(1, func(m *memory.Message) { m.ID, m.Payload = "next", []byte("next") })
		wait(time.Minute)
		b.wantSent([]string{"0", "0", "next"})
		b.wantUnsettled(0)
	})
}

func TestQuiesceThatIsGivenUpLeavesTheRouteAsItWas(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, spec(nil))
		b.dst.SetAnswer(slow(10*time.Second, nil))
		b.publish(1)
		cause := errors.New("patience is over")
		ctx, cancel := context.WithTimeoutCause(context.Background(), time.Second, cause)
		defer cancel()
		if err := b.env.Quiesce(ctx); !errors.Is(err, cause) {
			t.Errorf("returned %v, want the cause", err)
		}
		b.dst.SetAnswer(nil)
		wait(time.Minute)
		b.publish(1, func(m *memory.Message) { m.ID, m.Payload = "next", []byte("next") })
		b.wantSent([]string{"0", "next"})
		b.want(0, "given back", metric.MessagesReturned)
	})
}

func TestQuiesceKeepsWhatNobodyElseHas(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, spec(nil))
		b.dst.SetDown(true)
		b.publish(1)
		b.publish(1, func(m *memory.Message) { m.QoS, m.ID, m.Payload = 0, "best effort", []byte("best effort") })
		b.quiesce()
		b.want(1, "given back", metric.MessagesReturned, metric.ReturnRecovering)
		if n := b.inFlight(); n != 1 {
			t.Errorf("%d deliveries in the route, want the QoS 0 one", n)
		}
		b.dst.SetDown(false)
		wait(time.Minute)
		b.wantSent([]string{"best effort", "0"})
	})
}

func TestQuiesceLeavesRedrivesAlone(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, spec(nil))
		b.redriven = true
		b.dst.SetAnswer(slow(0, errRefused))
		b.publish(1)
		b.dst.SetAnswer(slow(10*time.Second, nil))
		redriven := make(chan error, 1)
		go func() { redriven <- b.engine.Redrive(context.Background(), b.dlq.all()[0].ID) }()
		synctest.Wait()
		if took := b.quiesce(); took != 0 {
			t.Errorf("waited %v for a redrive", took)
		}
		if err := <-redriven; err != nil {
			t.Errorf("redrive returned %v", err)
		}
	})
}

func TestQuiesceCountsOnlyTheBindingsThatWereGivenBack(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, spec(fanOut))
		copies := func(err error) func(*memory.Message) error {
			return func(m *memory.Message) error {
				if strings.HasPrefix(m.Topic, "copy/") {
					return err
				}
				return nil
			}
		}
		b.dst.SetAnswer(copies(gobridge.ErrBrokerBusy))
		b.publish(3)
		b.quiesce()
		b.want(3, "the binding that held", metric.MessagesReturned, "b1", metric.ReturnRecovering)
		b.want(0, "the binding that was done", metric.MessagesReturned, "b0")
		if n := len(b.src.Returned()); n != 3 {
			t.Errorf("%d deliveries were given back, want each of 3 once", n)
		}
		b.dst.SetAnswer(nil)
		wait(time.Minute)
		b.want(6, "once more", metric.MessagesSent, "b0")
		b.want(3, "once", metric.MessagesSent, "b1")
	})
}

func TestADrainTakesThePlaceOfAQuiesce(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, spec(nil))
		b.dst.SetAnswer(slow(5*time.Second, nil))
		b.publish(1)
		quiesced := make(chan error, 1)
		go func() { quiesced <- b.env.Quiesce(context.Background()) }()
		synctest.Wait()
		if err := b.close(); err != nil {
			t.Errorf("Run returned %v, want nil: the send was confirmed", err)
		}
		if err := <-quiesced; err != nil {
			t.Errorf("Quiesce returned %v", err)
		}
		b.want(0, "settled", metric.MessagesReturned)
	})
	inBubble(t, func(t *testing.T) {
		b := start(t, spec(nil))
		b.dst.SetAnswer(slow(5*time.Second, gobridge.ErrBrokerBusy))
		b.publish(1)
		go func() { _ = b.env.Quiesce(context.Background()) }()
		synctest.Wait()
		if _, ok := errors.AsType[*engine.UnsettledError](b.close()); !ok {
			t.Error("a delivery left at its source was not reported")
		}
		b.want(1, "left by the drain", metric.MessagesReturned, metric.ReturnShutdown)
		if n := len(b.src.Returned()); n != 0 {
			t.Errorf("%d deliveries were given back by a drain", n)
		}
	})
}

func TestQuiesceGivesBackWhatWaitsForAFailingOutbox(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, spec(func(r *gobridge.RouteSpec) {
			r.DeliveryMode = gobridge.SharedOutbox
			fanOut(r)
		}))
		b.outbox.fail(errStore)
		b.publish(1)
		b.publish(1, func(m *memory.Message) { m.QoS, m.ID = 0, "best effort" })
		if took := b.quiesce(); took != 0 {
			t.Errorf("took %v", took)
		}
		b.want(1, "given back", metric.MessagesReturned, "b0", metric.ReturnRecovering)
		b.want(1, "given back", metric.MessagesReturned, "b1", metric.ReturnRecovering)
		b.outbox.fail(nil)
		wait(time.Minute)
		b.wantUnsettled(0)
		b.want(2, "everything is sent", metric.MessagesSent, "b0")
		b.want(2, "everything is sent", metric.MessagesSent, "b1")
		b.want(0, "nothing was stored twice", metric.OutboxDuplicateSuppressed)
	})
}

// Covers: S1-324, S1-325, S2-208, G16
func TestAFailedDeadLetterWriteAsksTheSourceAgain(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, spec(nil))
		b.dst.SetAnswer(slow(0, errRefused))
		b.dlq.fail(errStore)
		b.publish(1)
		b.want(1, "given back", metric.MessagesReturned, metric.ReturnRetry)
		b.want(1, "once for both tries", metric.DLQWriteFailures)
		b.want(0, "no false success", metric.DLQEntries)
		if b.dlq.n != 2 {
			t.Errorf("%d tries, want 2", b.dlq.n)
		}
		if n := b.inFlight(); n != 0 {
			t.Errorf("%d slots are taken", n)
		}
		b.wantUnsettled(1)
		b.dlq.fail(nil)
		wait(memory.RetryDelay)
		b.want(1, "redelivered and dead-lettered", metric.DLQEntries)
		b.wantUnsettled(0)
	})
}

func TestAFailedDeadLetterWriteWaitsForTheOtherBindings(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, spec(fanOut))
		var busy atomic.Bool
		busy.Store(true)
		b.dst.SetAnswer(func(m *memory.Message) error {
			switch {
			case strings.HasPrefix(m.Topic, "copy/"):
				return errRefused
			case busy.Load():
				return gobridge.ErrBrokerBusy
			}
			return nil
		})
		b.dlq.fail(errStore)
		b.publish(1)
		wait(time.Hour)
		b.want(0, "the other binding still holds it", metric.MessagesReturned)
		busy.Store(false)
		wait(time.Minute)
		if b.count(metric.MessagesReturned, "b1", metric.ReturnRetry) == 0 {
			t.Error("not given back after the other binding was done")
		}
		b.want(0, "done", metric.MessagesReturned, "b0")
		b.dlq.fail(nil)
		wait(time.Minute)
		b.wantUnsettled(0)
	})
}
