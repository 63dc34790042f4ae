package engine_test

import (
	"errors"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/engine"
	"github.com/gobridge/gobridge/metric"
	"github.com/gobridge/gobridge/transport/memory"
)

// inBubble runs a test on the bubble's clock.
func inBubble(t *testing.T, f func(t *testing.T)) { synctest.Test(t, f) }

// Covers: S1-107, S2-506
func TestMessagesGoThroughInOrderAndAreSettledAfterTheirConfirmation(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, spec(nil))
		var early atomic.Int32
		b.dst.SetAnswer(func(m *memory.Message) error {
			n, _ := strconv.Atoi(string(m.Payload))
			if b.src.Unsettled() < 500-n {
				early.Add(1) // settled before this confirmation
			}
			return nil
		})
		b.dst.SetDown(true)
		b.publish(500)
		b.dst.SetDown(false)
		synctest.Wait()
		b.wantSent(numbers(500))
		b.wantUnsettled(0)
		if n := early.Load(); n > 0 {
			t.Errorf("%d messages were settled before the destination confirmed them", n)
		}
		if err := b.close(); err != nil {
			t.Errorf("Run returned %v after everything was settled", err)
		}
	})
}

func TestAnOutageHoldsMessagesUnchargedAndInOrder(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, spec(func(r *gobridge.RouteSpec) { r.Policy.SendRetryBudget = new(40 * time.Second) }))
		b.publish(3)
		b.dst.SetDown(true)
		b.publish(500)
		wait(24 * time.Hour)
		if got := len(b.sent()); got != 3 {
			t.Fatalf("%d messages were sent into an outage", got-3)
		}
		if reasons := b.engine.Ready(gobridge.LevelFull); len(reasons) == 0 {
			t.Error("ready while the destination is down")
		}
		b.dst.SetDown(false)
		synctest.Wait()
		b.wantSent(append(numbers(3), numbers(500)...))
		b.wantUnsettled(0)
		if n := len(b.dlq.all()); n != 0 {
			t.Errorf("%d dead letters after an outage", n)
		}
		if n := b.count(metric.SendRetryBudgetExhausted); n != 0 {
			t.Errorf("an outage was charged %d times", n)
		}
	})
}

func TestAnOutageAnswerIsHeldForItsRetryAfter(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, spec(nil))
		var busy atomic.Bool
		busy.Store(true)
		b.dst.SetAnswer(func(*memory.Message) error {
			if busy.Load() {
				return &gobridge.Error{Code: gobridge.CodeThrottled, Outage: true, RetryAfter: 3 * time.Second, Op: "quota"}
			}
			return nil
		})
		b.publish(5)
		busy.Store(false)
		wait(2 * time.Second)
		b.wantSent(nil)
		wait(2 * time.Second)
		b.wantSent(numbers(5))
	})
}

// Covers: S1-322, S1-324, S2-208, G15, G16
func TestARefusedMessageIsDeadLetteredWithItsEvidenceBeforeItIsSettled(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, spec(nil))
		b.dst.SetAnswer(func(m *memory.Message) error {
			if m.ID == "id-1" {
				return errRefused
			}
			return nil
		})
		b.dlq.fail(errStore)
		b.publish(3)
		b.wantSent([]string{"0", "2"})
		b.wantUnsettled(1) // a failed write settles nothing (G16)
		if n := b.count(metric.DLQWriteFailures); n == 0 {
			t.Error("a failed dead-letter write was not counted")
		}
		if n := b.count(metric.DLQEntries); n != 0 {
			t.Errorf("%d dead letters counted that nobody stored", n)
		}
		b.dlq.fail(nil)
		wait(time.Minute)
		b.wantUnsettled(0)
		all := b.dlq.all()
		if len(all) != 1 {
			t.Fatalf("%d dead letters, want 1", len(all))
		}
		d := all[0]
		if d.Envelope.ID != "id-1" || string(d.Envelope.Payload) != "1" || d.Address != "out/in/1" || d.RouteID != "r" || d.BindingID != "b0" ||
			d.SourceID != "in" || d.Category != gobridge.CategoryPermanent || d.Code != gobridge.CodeNotAuthorized || d.Attempts != 1 || d.LastError == "" {
			t.Errorf("evidence is incomplete: %+v", d)
		}
		if n := b.count(metric.DLQEntries, "permanent"); n != 1 {
			t.Errorf("DLQEntries{permanent} = %d, want 1", n)
		}
	})
}

func TestAFullDeadLetterQueueHoldsWithoutCountingAFailedWrite(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, spec(nil))
		b.dst.SetAnswer(func(*memory.Message) error { return errRefused })
		b.dlq.fail(gobridge.ErrFull)
		b.publish(1)
		wait(time.Hour)
		b.wantUnsettled(1)
		if n := b.count(metric.DLQWriteFailures); n != 0 {
			t.Errorf("DLQWriteFailures = %d for a full queue", n)
		}
		if len(b.engine.Ready(gobridge.LevelFull)) == 0 {
			t.Error("ready although a full dead-letter queue holds messages")
		}
	})
}

func TestABlipIsRetriedInProcess(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, spec(nil))
		fails := 3
		b.dst.SetAnswer(func(m *memory.Message) error {
			if m.ID == "id-0" && fails > 0 {
				fails--
				return errBlip
			}
			return nil
		})
		b.publish(3)
		wait(time.Minute)
		b.wantSent([]string{"1", "2", "0"})
		if n := b.count(metric.SendRetries); n != 3 {
			t.Errorf("SendRetries = %d, want 3", n)
		}
		if n := b.count(metric.MessagesReordered); n != 1 {
			t.Errorf("MessagesReordered = %d, want 1", n)
		}
	})
}

// Covers: S1-319, G13
func TestSpentBudgetsAreCountedAndTheMessageIsPoisonAtMaxReplayAttempts(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, spec(func(r *gobridge.RouteSpec) { r.Policy.MaxReplayAttempts = 3 }))
		b.dst.SetAnswer(func(*memory.Message) error { return errBlip })
		b.publish(1)
		wait(59 * time.Second)
		if n := b.count(metric.SendRetryBudgetExhausted); n > 1 {
			t.Errorf("budget exhausted %d times within one budget", n)
		}
		wait(time.Hour)
		if n := b.count(metric.SendRetryBudgetExhausted); n != 3 {
			t.Errorf("SendRetryBudgetExhausted = %d, want 3", n)
		}
		all := b.dlq.all()
		if len(all) != 1 || all[0].Category != gobridge.CategoryPoison || all[0].Code != gobridge.CodePoisonMessage {
			t.Fatalf("dead letters %+v, want one poison message", all)
		}
		b.wantUnsettled(0)
	})
}

// Covers: S1-321, G14
func TestWithoutStableIdentityTheFirstSpentBudgetIsTerminal(t *testing.T) {
	for name, budget := range map[string]time.Duration{"after the budget": 60 * time.Second, "at the first failure": 0} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				s := spec(nil)
				s.Routes[0].Policy.SendRetryBudget = &budget
				b := start(t, s)
				b.dst.SetAnswer(func(*memory.Message) error { return errBlip })
				b.publish(1, func(m *memory.Message) { m.ID = "" })
				if budget == 0 && len(b.dlq.all()) != 1 {
					t.Error("send_retry_budget 0s: the first failure is not terminal")
				}
				wait(2 * time.Minute)
				all := b.dlq.all()
				if len(all) != 1 || all[0].Category != gobridge.CategoryUnstableIdentity {
					t.Fatalf("dead letters %+v, want one of category unstable_identity", all)
				}
			})
		})
	}
}

// Covers: S1-326, S2-202, S2-203, G17
func TestQoS0IsDeadLetteredOrLostOnceWhenNothingCanRedeliverIt(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, spec(nil))
		b.dst.SetAnswer(func(*memory.Message) error { return errBlip })
		b.publish(1, func(m *memory.Message) { m.QoS = 0 })
		wait(2 * time.Minute)
		if all := b.dlq.all(); len(all) != 1 || all[0].Category != gobridge.CategoryRetryUnsupported {
			t.Fatalf("dead letters %+v, want one of category retry_unsupported", all)
		}
		b.dlq.fail(errStore)
		b.publish(1, func(m *memory.Message) { m.QoS, m.ID = 0, "other" })
		wait(2 * time.Minute)
		if n := b.count(metric.MessagesDropped, "retry_unsupported_dlq_failed"); n != 1 {
			t.Errorf("MessagesDropped{retry_unsupported_dlq_failed} = %d, want 1", n)
		}
		b.wantUnsettled(0)
	})
}

func TestFanOutBuriesOneBindingAloneAndAHeldBindingHoldsTheDelivery(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := spec(func(r *gobridge.RouteSpec) {
			r.DispatchMode = gobridge.DispatchFanOut
			r.Bindings = append(r.Bindings, gobridge.BindingSpec{ID: "b1", SenderID: "out", Address: "copy/{topic}"})
		})
		b := start(t, s)
		var refuse, busy atomic.Bool
		refuse.Store(true)
		busy.Store(true)
		b.dst.SetAnswer(func(m *memory.Message) error {
			if m.Topic[:5] == "copy/" {
				if refuse.Load() {
					return errRefused
				}
				if busy.Load() {
					return errBlip
				}
			}
			return nil
		})
		b.publish(1)
		if all := b.dlq.all(); len(all) != 1 || all[0].BindingID != "b1" {
			t.Fatalf("dead letters %+v, want one of binding b1", all)
		}
		b.wantUnsettled(0)
		refuse.Store(false)
		b.publish(2, func(m *memory.Message) { m.ID += "x" })
		b.wantUnsettled(2)
		busy.Store(false)
		wait(time.Minute)
		b.wantUnsettled(0)
		if got := len(b.sent()); got != 5 {
			t.Errorf("%d messages sent, want 5", got)
		}
	})
}

// Covers: S1-322, S1-323, G15
func TestExpiredMessages(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*gobridge.RouteSpec)
		code   gobridge.Code
		ttl    time.Duration
	}{
		"by their own expiry, dead-lettered": {nil, gobridge.CodeMessageExpired, 10 * time.Second},
		"by max_age, dead-lettered":          {func(r *gobridge.RouteSpec) { r.Policy.MaxAge = 10 * time.Second }, gobridge.CodeMessageTooOld, 0},
		"dropped":                            {func(r *gobridge.RouteSpec) { r.Policy.OnExpired = gobridge.ActionDrop }, "", 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				b := start(t, spec(c.change))
				b.dst.SetDown(true)
				b.publish(4, func(m *memory.Message) {
					if c.ttl > 0 {
						m.Expires = time.Now().Add(c.ttl)
					}
				})
				wait(11 * time.Second)
				b.wantUnsettled(0)
				if c.code == "" {
					if n := b.count(metric.MessagesExpired); n != 4 {
						t.Errorf("MessagesExpired = %d, want 4", n)
					}
				} else if all := b.dlq.all(); len(all) != 4 || all[0].Code != c.code || all[0].Category != gobridge.CategoryExpired {
					t.Errorf("dead letters %+v, want 4 with code %s", all, c.code)
				}
				b.dst.SetDown(false)
				synctest.Wait()
				b.wantSent(nil)
			})
		})
	}
}

func TestAMessageThatCrossedTooManyBridgesIsDeadLettered(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, spec(func(r *gobridge.RouteSpec) { r.Policy.MaxHops = 3 }))
		for hops := range 4 {
			b.publish(1, func(m *memory.Message) { m.Hops = hops; m.Payload = []byte(strconv.Itoa(hops)) })
		}
		b.wantSent(numbers(3))
		if all := b.dlq.all(); len(all) != 1 || all[0].Code != gobridge.CodeHopLimit {
			t.Fatalf("dead letters %+v, want one over the hop limit", all)
		}
	})
}

func TestRateLimit(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, spec(func(r *gobridge.RouteSpec) { r.Policy.RateLimit = 100 }))
		b.publish(500)
		for second := 1; second <= 4; second++ {
			wait(time.Second)
			if got := len(b.sent()); got < 95*second || got > 100*second+11 {
				t.Errorf("%d messages after %d s at 100 a second", got, second)
			}
		}
		wait(2 * time.Second)
		b.wantSent(numbers(500))
	})
}

func TestAnUnresolvableAddressIsDeadLettered(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, spec(func(r *gobridge.RouteSpec) { r.Bindings[0].Address = "out/{header:missing}" }))
		b.publish(1)
		all := b.dlq.all()
		if len(all) != 1 || all[0].Code != gobridge.CodeAddressTemplate {
			t.Fatalf("dead letters %+v, want one for the address", all)
		}
	})
}

func TestHeldQoS0IsShedOldestFirst(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, spec(func(r *gobridge.RouteSpec) { r.Policy.MaxInFlight = 8 }))
		b.dst.SetDown(true)
		b.publish(6, func(m *memory.Message) { m.QoS = 0 })
		if n := b.count(metric.MessagesDropped, "qos0_shed"); n != 4 {
			t.Errorf("MessagesDropped{qos0_shed} = %d, want 4: two of eight slots for QoS 0", n)
		}
		b.publish(4)
		b.dst.SetDown(false)
		synctest.Wait()
		b.wantSent([]string{"4", "5", "0", "1", "2", "3"})
	})
}

// Covers: S2-209
func TestStopSettlesWhatIsUnderWayAndLeavesWhatIsHeld(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, spec(nil))
		b.dst.SetDown(true)
		b.publish(300)
		began := time.Now()
		err := b.close()
		var left *engine.UnsettledError
		if !errors.As(err, &left) || left.Count != 192 {
			t.Errorf("Run returned %v, want 192 deliveries left", err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("stopping took %s although everything was only held", took)
		}
		b.wantUnsettled(300)
		if n := b.count(metric.MessagesReturned, "shutdown"); n != 192 {
			t.Errorf("MessagesReturned{shutdown} = %d, want 192", n)
		}
	})
}

func TestOrderHoldsWhenTheDestinationFailsInTheMiddle(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, spec(nil))
		for round := range 20 {
			n := 0
			b.dst.SetAnswer(func(*memory.Message) error {
				if n++; n > 7 {
					return gobridge.ErrConnectionLost
				}
				return nil
			})
			b.publish(50, func(m *memory.Message) { m.Payload = []byte(strconv.Itoa(round*50) + "+" + string(m.Payload)) })
			b.dst.SetAnswer(nil)
			wait(time.Minute)
		}
		got := b.sent()
		if len(got) != 1000 {
			t.Fatalf("%d messages sent, want 1000", len(got))
		}
		var want []string
		for round := range 20 {
			for i := range 50 {
				want = append(want, strconv.Itoa(round*50)+"+"+strconv.Itoa(i))
			}
		}
		if !slices.Equal(got, want) {
			t.Error("messages were reordered by an outage")
		}
	})
}
