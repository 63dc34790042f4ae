package engine_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/metric"
)

// Covers: S2-326
func TestADeadInstanceIsReplacedAndWhatItsRouteHeldComesAgain(t *testing.T) {
	for _, mode := range bothModes {
		t.Run(mode, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				b := start(t, spec(func(r *gobridge.RouteSpec) { r.DeliveryMode = mode }))
				if b.outbox != nil {
					b.outbox.fail(errStore)
				}
				b.dst.SetDown(true)
				b.publish(3)
				held := b.inFlight() // a failing outbox takes one batch, and nothing more
				b.src.Break("a")
				synctest.Wait()
				if held == 0 || b.inFlight() != 0 {
					t.Errorf("%d deliveries in the route before, %d after", held, b.inFlight())
				}
				b.want(held, "given back", metric.MessagesReturned, metric.ReturnSessionEnd)
				b.want(0, "not yet", metric.SessionRebuilds)
				if len(b.engine.Ready(gobridge.LevelConnected)) == 0 {
					t.Error("ready with a dead session")
				}
				wait(time.Second)
				b.want(1, "replaced", metric.SessionRebuilds, "a")
				b.dst.SetDown(false)
				if b.outbox != nil {
					b.outbox.fail(nil)
				}
				wait(time.Minute)
				b.wantSent(numbers(3))
				b.wantUnsettled(0)
			})
		})
	}
}

func TestAFreshInstanceWaitsForTheSendsOfTheDeadOne(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, spec(func(r *gobridge.RouteSpec) { r.Policy.SendTimeout = 30 * time.Second }))
		b.dst.SetAnswer(slow(10*time.Second, gobridge.ErrBrokerBusy))
		b.publish(1)
		b.src.Break("a")
		wait(9 * time.Second)
		b.want(0, "the send is under way", metric.SessionRebuilds)
		b.dst.SetAnswer(nil)
		wait(2 * time.Second)
		b.want(1, "it has ended", metric.SessionRebuilds)
		b.want(1, "given back", metric.MessagesReturned, metric.ReturnSessionEnd)
		b.wantSent(numbers(1))
	})
}

func TestRetryEndsTheWaitForTheNextInstance(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, spec(nil))
		for n := range 4 {
			b.src.Break("a")
			synctest.Wait()
			if err := b.engine.RetrySession("a"); err != nil {
				t.Errorf("RetrySession returned %v", err)
			}
			synctest.Wait() // no time passes
			b.want(n+1, "replaced at once", metric.SessionRebuilds)
		}
		b.publish(2)
		b.wantSent(numbers(2))
	})
}
