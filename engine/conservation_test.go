package engine_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/metric"
	"github.com/gobridge/gobridge/transport/memory"
)

// TestEveryMessageHasOneOutcomeUnderRandomFaults drives a route with random
// messages and faults, heals everything, and asks where each message went.
//
// Covers: S1-412
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
	var quiesces sync.WaitGroup
	breaks := rnd.IntN(4) == 0
	for range 60 {
		switch rnd.IntN(9) {
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
		case 7:
			patience := time.Duration(rnd.IntN(20_000)) * time.Millisecond
			quiesces.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				_ = b.env.Quiesce(ctx)
			})
		case 8:
			if breaks {
				b.src.Break("a")
			}
		}
	}
	quiesces.Wait()
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
	returned := b.src.Returned()
	if got, want := b.count(metric.MessagesReceived), published+len(returned); got < want || got > want && !breaks {
		t.Errorf("%d messages admitted, %d published and given back", got, want)
	}
	ends := map[string]int{}
	for _, m := range b.dst.Sent() {
		ends[m.Topic]++
	}
	sent := maps.Clone(ends)
	for _, d := range b.dlq.all() {
		ends[d.Address]++
	}
	if lost := b.count(metric.MessagesDropped); len(ends)+lost < published*bindings {
		t.Errorf("%d copies sent or dead, %d dropped, want %d", len(ends), lost, published*bindings)
	}
	if breaks {
		return
	}
	for _, m := range returned {
		sent["out/"+m.Topic]--
		sent["copy/"+m.Topic]--
	}
	for topic, n := range sent {
		if n > 1 {
			t.Errorf("%s was sent %d times more than it was given back, though no answer was lost", topic, n)
		}
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
