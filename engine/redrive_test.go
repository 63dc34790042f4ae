package engine_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/transport/memory"
)

func TestRedriveDeletesTheEntryOnlyAfterTheDestinationConfirmed(t *testing.T) {
	for _, mode := range []string{gobridge.DirectHold, gobridge.SharedOutbox} {
		t.Run(mode, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				b := start(t, spec(func(r *gobridge.RouteSpec) { r.DeliveryMode = mode }))
				b.dst.SetAnswer(func(*memory.Message) error { return errRefused })
				b.publish(1)
				letter := b.dlq.all()[0]

				if err := b.engine.Redrive(context.Background(), letter.ID); !errors.Is(err, gobridge.ErrNotAuthorized) {
					t.Errorf("redrive into a refusal returned %v", err)
				}
				all := b.dlq.all()
				if len(all) != 1 || all[0].ID != letter.ID || all[0].Replays != 1 || all[0].Attempts != 2 {
					t.Fatalf("entry after a failed redrive: %+v, want the same one, updated", all)
				}

				// The slot serves another message in between.
				b.dst.SetAnswer(nil)
				b.src.Publish(memory.Message{Topic: "in/other", Payload: []byte("other"), ID: "other", QoS: 1})
				synctest.Wait()
				b.dst.SetDown(true)
				before := b.dlq.all()[0]
				err := b.engine.Redrive(context.Background(), letter.ID)
				if !errors.Is(err, gobridge.ErrNotTried) || !gobridge.AsError(err).Outage {
					t.Errorf("redrive into an outage returned %v", err)
				}
				if diff := cmp.Diff(before, b.dlq.all()[0]); diff != "" {
					t.Errorf("the entry of what was not tried (-before +after):\n%s", diff)
				}
				b.dst.SetDown(false)
				b.dst.SetAnswer(nil)
				synctest.Wait()
				if err := b.engine.Redrive(context.Background(), letter.ID); err != nil {
					t.Errorf("redrive returned %v", err)
				}
				if n := len(b.dlq.all()); n != 0 {
					t.Errorf("%d entries after a confirmed redrive", n)
				}
				sent := b.dst.Sent()
				if len(sent) != 2 || sent[1].ID != "id-0" || sent[1].Topic != "out/in/0" {
					t.Errorf("sent %+v, want the original message", sent)
				}
				if err := b.engine.Redrive(context.Background(), letter.ID); !errors.Is(err, gobridge.ErrNotFound) {
					t.Errorf("redrive of a deleted entry returned %v", err)
				}
				b.redriven = true
			})
		})
	}
}

func TestRedriveGoesOnlyToTheBindingThatFailedAndIgnoresTheOldExpiry(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := start(t, spec(func(r *gobridge.RouteSpec) {
			r.DispatchMode = gobridge.DispatchFanOut
			r.Bindings = append(r.Bindings, gobridge.BindingSpec{ID: "b1", SenderID: "out", Address: "copy/{topic}"})
		}))
		refuse := func(m *memory.Message) error {
			if m.Topic == "copy/in/0" {
				return errRefused
			}
			return nil
		}
		b.dst.SetAnswer(refuse)
		b.publish(1, func(m *memory.Message) { m.Expires = time.Now().Add(time.Minute) })
		b.dst.SetAnswer(nil)
		wait(time.Hour)
		if err := b.engine.Redrive(context.Background(), b.dlq.all()[0].ID); err != nil {
			t.Fatal(err)
		}
		sent := b.dst.Sent()
		if len(sent) != 2 || sent[1].Topic != "copy/in/0" {
			t.Errorf("sent %+v, want the copy alone again", sent)
		}
		b.redriven = true
	})
}
