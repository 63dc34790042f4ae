package engine_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/metric"
	"github.com/gobridge/gobridge/transport/memory"
)

// TestEveryMessageHasOneOutcomeUnderRandomFaults drives a route with random
// messages and faults, heals everything, and asks where each message went.
func TestEveryMessageHasOneOutcomeUnderRandomFaults(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { randomRun(t, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

func randomRun(t *testing.T, rnd *rand.Rand) {
	s := spec(func(r *gobridge.RouteSpec) {
		if rnd.IntN(2) == 0 {
			r.DeliveryMode = gobridge.SharedOutbox
			r.Policy.MaxOutboxDepth = 20 + rnd.IntN(200)
			r.Policy.ReplayBudget = time.Minute
		}
		r.Policy.MaxInFlight = 4 + rnd.IntN(40)
		r.Policy.MaxReplayAttempts = 1 + rnd.IntN(3)
		r.Policy.SendTimeout = 5 * time.Second
		r.Policy.SendRetryBudget = new(time.Duration(10+rnd.IntN(20)) * time.Second)
		if rnd.IntN(2) == 0 {
			r.DispatchMode = gobridge.DispatchFanOut
			r.Bindings = append(r.Bindings, gobridge.BindingSpec{ID: "b1", SenderID: "out", Address: "copy/{topic}"})
		}
		if rnd.IntN(3) == 0 {
			r.Policy.RateLimit = 200
		}
		if rnd.IntN(4) == 0 {
			r.Policy.OnUnavailable = gobridge.UnavailableFail
		}
	})
	b := start(t, s)
	bindings := len(s.Routes[0].Bindings)
	published := 0
	for range 60 {
		switch rnd.IntN(7) {
		case 0, 1, 2:
			for range rnd.IntN(30) {
				m := memory.Message{Topic: fmt.Sprintf("in/%d", published), Payload: fmt.Append(nil, published), QoS: 1}
				if rnd.IntN(5) > 0 {
					m.ID = fmt.Sprintf("id-%d", published)
				}
				if rnd.IntN(8) == 0 {
					m.QoS = 0
				}
				if rnd.IntN(10) == 0 {
					m.Expires = time.Now().Add(time.Duration(rnd.IntN(60)) * time.Second)
				}
				b.src.Publish(m)
				published++
			}
		case 3:
			b.dst.SetDown(rnd.IntN(2) == 0)
		case 4:
			b.dst.SetAnswer(randomAnswer(rnd.Uint64(), rnd.IntN(10)))
		case 5:
			if b.outbox != nil && rnd.IntN(2) == 0 {
				b.outbox.fail(errStore)
				b.outbox.failComplete(errStore)
			} else if b.outbox != nil {
				b.outbox.fail(nil)
				b.outbox.failComplete(nil)
			}
			if rnd.IntN(2) == 0 {
				b.dlq.fail(errStore)
			} else {
				b.dlq.fail(nil)
			}
		case 6:
			wait(time.Duration(rnd.IntN(40_000)) * time.Millisecond)
		}
	}
	b.dst.SetDown(false)
	b.dst.SetAnswer(nil)
	b.dlq.fail(nil)
	if b.outbox != nil {
		b.outbox.fail(nil)
		b.outbox.failComplete(nil)
	}
	wait(time.Hour)
	for _, id := range []string{"b0", "b1"} {
		if b.outbox != nil && b.outbox.Depth(id) > 0 {
			t.Errorf("%d records of %s are still in the outbox", b.outbox.Depth(id), id)
		}
	}
	b.wantUnsettled(0)
	if err := b.close(); err != nil {
		t.Errorf("Run returned %v after everything healed", err)
	}
	if got := b.count(metric.MessagesReceived); got != published {
		t.Errorf("%d messages admitted, %d published", got, published)
	}
	dead, lost := len(b.dlq.all()), b.count(metric.MessagesDropped)
	if got := len(b.sent()) + dead + lost; got != published*bindings {
		t.Errorf("%d sent + %d dead + %d dropped, want %d", len(b.sent()), dead, lost, published*bindings)
	}
	seen := map[string]bool{}
	for _, m := range b.dst.Sent() {
		if seen[m.Topic] {
			t.Errorf("%s was sent twice though no answer was lost", m.Topic)
		}
		seen[m.Topic] = true
	}
}

// randomAnswer fails a part of the messages; a message is told the same by its
// number and the moment's mood.
func randomAnswer(seed uint64, tenths int) func(*memory.Message) error {
	rnd := rand.New(rand.NewPCG(seed, 2))
	return func(*memory.Message) error {
		if rnd.IntN(10) >= tenths {
			return nil
		}
		switch rnd.IntN(5) {
		case 0:
			return errRefused
		case 1:
			return gobridge.ErrConnectionLost
		case 2:
			return &gobridge.Error{Code: gobridge.CodeThrottled, Outage: true, RetryAfter: time.Second, Op: "quota"}
		default:
			return errBlip
		}
	}
}
