package engine_test

import (
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/metric"
	storemem "github.com/gobridge/gobridge/store/memory"
	"github.com/gobridge/gobridge/transport/memory"
)

// Tests of promises in docs/conformance.md that belong to no other file.

// Covers: S1-502
func TestEverySendHasTheTimeoutOfItsRoute(t *testing.T) {
	p := newPipe(t)
	batch, renew := burst(1)
	renew()
	if _, err := p.emit(batch); err != nil {
		t.Fatal(err)
	}
	if got := p.pending[0].Timeout; got != 30*time.Second {
		t.Errorf("send_timeout %s, want 30s", got)
	}
	p.confirm()
}

// Covers: S1-323, G15
func TestPermittedDropIsCountedAndSettled(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, spec(func(r *gobridge.RouteSpec) { r.Policy.OnPermanentFailure = gobridge.ActionDrop }))
		b.dst.SetAnswer(func(*memory.Message) error { return errRefused })
		b.publish(2)
		b.wantUnsettled(0)
		if n := b.count(metric.MessagesDropped, "permanent"); n != 2 || len(b.dlq.all()) != 0 {
			t.Errorf("MessagesDropped{permanent} = %d, %d dead letters; want 2 and 0", n, len(b.dlq.all()))
		}
	})
}

// A QoS 0 message through a QoS 1 filter fails, and its dead letter as well: one
// loss, and the only slot of the route is free for the next one. It makes no
// difference whether it could be counted.
//
// Covers: S1-326, S1-327, S1-328, S1-333, S2-203, S2-204, S2-205, S2-206, S2-207, G17
func TestLossOfQoS0IsCountedOnceAndFreesTheSlot(t *testing.T) {
	for name, id := range map[string]string{"stable identity": "m-1", "generated identity": ""} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				b := start(t, spec(func(r *gobridge.RouteSpec) { r.Policy.MaxInFlight = 1 }))
				b.dst.SetAnswer(func(m *memory.Message) error {
					if string(m.Payload) == "bad" {
						return errBlip
					}
					return nil
				})
				b.dlq.fail(errStore)
				b.publish(1, func(m *memory.Message) { m.QoS, m.ID, m.Payload = 0, id, []byte("bad") })
				b.publish(1)
				wait(2 * time.Minute)
				b.wantSent([]string{"0"})
				b.wantUnsettled(0)
				if n := b.count(metric.MessagesDropped); n != 1 || b.count(metric.MessagesDropped, "retry_unsupported_dlq_failed") != n {
					t.Errorf("%d losses counted, want one with reason retry_unsupported_dlq_failed", n)
				}
				if w, e := b.count(metric.DLQWriteFailures), b.count(metric.DLQEntries); w != 1 || e != 0 {
					t.Errorf("DLQWriteFailures = %d, DLQEntries = %d; want 1 and 0", w, e)
				}
				if reasons := b.engine.Ready(gobridge.LevelFull); len(reasons) == 0 || !strings.Contains(reasons[0].Reason, errStore.Error()) {
					t.Errorf("reasons %v, want the error of the failed write", reasons)
				}
				// Nothing waits to be written: only the store can tell that it works again.
				b.dlq.fail(nil)
				if reasons := b.engine.Ready(gobridge.LevelFull); len(reasons) > 0 {
					t.Errorf("reasons %v after the store works again", reasons)
				}
			})
		})
	}
}

// Covers: S2-202
func TestQoS0WithoutADeadLetterQueueIsDroppedByPermission(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := spec(func(r *gobridge.RouteSpec) {
			r.Policy = gobridge.PolicySpec{OnPermanentFailure: gobridge.ActionDrop, OnExpired: gobridge.ActionDrop, AllowRetryDrop: true}
		})
		s.Stores.DLQ.Type = gobridge.StoreNone
		s.Receivers[0].Topics[0].QoS = new(0)
		b := start(t, s)
		b.dst.SetAnswer(func(*memory.Message) error { return errBlip })
		b.publish(3, func(m *memory.Message) { m.QoS = 0 })
		wait(2 * time.Minute)
		b.wantUnsettled(0)
		if n := b.count(metric.MessagesDropped, "retry_unsupported"); n != 3 {
			t.Errorf("MessagesDropped{retry_unsupported} = %d, want 3", n)
		}
	})
}

// Covers: S1-318, G12
func TestExpiryComesBeforePoison(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, outboxSpec(func(r *gobridge.RouteSpec) {
			r.Policy.MaxReplayAttempts, r.Policy.ReplayBudget = 1, 10*time.Minute
		}))
		b.dst.SetAnswer(func(*memory.Message) error { return errBlip })
		b.publish(1, func(m *memory.Message) { m.Expires = time.Now().Add(20 * time.Minute) })
		wait(5 * time.Minute) // more attempts than it has, within the budget
		b.dst.SetDown(true)
		wait(time.Hour) // both have run out
		b.dst.SetDown(false)
		wait(time.Minute)
		all := b.dlq.all()
		if len(all) != 1 || all[0].Category != gobridge.CategoryExpired {
			t.Errorf("dead letters %+v, want one that expired", all)
		}
	})
}

// Covers: S1-409
func TestReplayBudgetRunsFromTheFirstAttempt(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, outboxSpec(func(r *gobridge.RouteSpec) { r.Policy.MaxReplayAttempts = 1 }))
		var tries atomic.Int32
		b.dst.SetAnswer(func(*memory.Message) error { tries.Add(1); return errBlip })
		b.dst.SetDown(true)
		b.publish(1)
		wait(time.Hour) // four times the default budget, and no attempt
		b.dst.SetDown(false)
		wait(14 * time.Minute)
		if tries.Load() < 10 || len(b.dlq.all()) != 0 {
			t.Errorf("%d tries and %d dead letters within 14 minutes of the first attempt", tries.Load(), len(b.dlq.all()))
		}
		wait(2 * time.Minute)
		if all := b.dlq.all(); len(all) != 1 || all[0].Category != gobridge.CategoryPoison {
			t.Errorf("dead letters %+v, want one poison message after 15 minutes", all)
		}
	})
}

// Covers: S1-310
func TestOutboxInMemoryIsAnnounced(t *testing.T) {
	kinds := &gobridge.Kinds{
		Transports: []*gobridge.Transport{memory.Transport(memory.NewHub())},
		Outboxes:   []*gobridge.OutboxKind{storemem.OutboxKind(), {Name: "sqlite"}},
		DLQs:       []*gobridge.DLQKind{{Name: "sqlite"}},
		Ledgers:    []*gobridge.LedgerKind{{Name: "sqlite"}},
	}
	for _, named := range []string{"", gobridge.StoreMemory} {
		s := outboxSpec(nil)
		s.Stores = gobridge.StoresSpec{Outbox: gobridge.StoreSpec{Type: named}}
		for i := range s.Sessions {
			s.Sessions[i].Transport = "memory"
		}
		var announced []string
		for _, p := range s.Check(kinds) {
			if !p.Warning {
				t.Fatalf("%s", p)
			}
			if strings.Contains(p.String(), "stores.outbox") && strings.Contains(p.String(), "lost when the process ends") {
				announced = append(announced, p.String())
			}
		}
		if want := map[string]int{"": 0, gobridge.StoreMemory: 1}[named]; len(announced) != want {
			t.Errorf("type %s: %s announced, want %d", strconv.Quote(named), announced, want)
		}
		if named == "" && s.Stores.Outbox.Type != "sqlite" {
			t.Errorf("the outbox is %s although nobody asked for it", s.Stores.Outbox.Type)
		}
	}
	synctest.Test(t, func(t *testing.T) { // and it does forget
		b := start(t, outboxSpec(nil))
		b.dst.SetDown(true)
		b.publish(1)
		b.close()
		again := startOn(t, outboxSpec(nil), storemem.NewOutboxStore(time.Hour))
		again.wantSent(nil)
	})
}
