package engine_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/engine"
	storemem "github.com/gobridge/gobridge/store/memory"
	"github.com/gobridge/gobridge/transport/memory"
)

// controlled is a session that notes what operators ask of it.
type controlled struct {
	gobridge.Session
	asked *[]string
}

func (c controlled) Retry()                      { *c.asked = append(*c.asked, "retry") }
func (c controlled) Drain(context.Context) error { *c.asked = append(*c.asked, "drain"); return nil }
func (c controlled) End(context.Context) error   { *c.asked = append(*c.asked, "end"); return nil }

func TestOperatorsReachTheSession(t *testing.T) {
	var asked []string
	able, plain := memory.Transport(memory.NewHub()), memory.Transport(memory.NewHub())
	able.Name, plain.Name = "src", "dst"
	able.ClientID = func(s *gobridge.SessionSpec) string { return "client-" + s.ID }
	able.Subscriptions = func(context.Context, gobridge.History, *gobridge.SessionUse) ([]gobridge.SubscriptionState, bool, error) {
		return []gobridge.SubscriptionState{{Filter: "in/#", Wanted: true}}, true, nil
	}
	able.Seed = func(_ context.Context, h gobridge.History, use *gobridge.SessionUse, discard bool, further ...string) error {
		if h == nil {
			t.Error("Seed was given no history")
		}
		if discard {
			further = append(further, "discard")
		}
		asked = append(asked, "seed "+use.Session.ID+" "+strings.Join(further, " "))
		return nil
	}
	open := able.Open
	able.Open = func(use *gobridge.SessionUse, env gobridge.Env) (gobridge.Session, error) {
		s, err := open(use, env)
		return controlled{s, &asked}, err
	}
	s := spec(nil)
	s.Stores.DLQ.Type = "memory"
	s.Stores.ManagedSubscriptions.Type = "memory"
	e, err := engine.New(s, engine.Options{Kinds: &gobridge.Kinds{
		Transports: []*gobridge.Transport{able, plain}, DLQs: []*gobridge.DLQKind{storemem.DLQKind()},
		Ledgers: []*gobridge.LedgerKind{storemem.LedgerKind()}, Histories: []*gobridge.HistoryKind{storemem.HistoryKind()},
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	got, err := e.Subscriptions(ctx, "a")
	want := gobridge.SessionSubscriptions{
		SessionID: "a", ClientID: "client-a", Known: true,
		Filters: []gobridge.SubscriptionState{{Filter: "in/#", Wanted: true}},
	}
	if err != nil || !cmp.Equal(got, want) {
		t.Errorf("Subscriptions: %v, %s", err, cmp.Diff(want, got))
	}
	for _, ask := range operations(ctx, e) {
		if err := ask("a"); err != nil {
			t.Errorf("session a: %v", err)
		}
		if err := ask("b"); !errors.Is(err, gobridge.ErrNotSupported) || !strings.Contains(err.Error(), "session b (dst)") {
			t.Errorf("a session without the ability: %v", err)
		}
		if err := ask("x"); !errors.Is(err, gobridge.ErrNotFound) || !strings.Contains(err.Error(), "sessions: a, b") {
			t.Errorf("an unknown session: %v", err)
		}
	}
	if want := []string{"seed a more discard", "retry", "retry", "drain", "end"}; !slices.Equal(asked, want) {
		t.Errorf("asked %q, want %q", asked, want)
	}
	done, stop := context.WithCancel(context.Background())
	stop()
	if err := e.Run(done); err != nil {
		t.Error(err)
	}
}

func operations(ctx context.Context, e *engine.Engine) []func(id string) error {
	return []func(id string) error{
		func(id string) error { _, err := e.Subscriptions(ctx, id); return err },
		func(id string) error { return e.SeedSubscriptions(ctx, id, true, "more") },
		e.RetrySession,
		func(id string) error { return e.DrainSession(ctx, id) },
		func(id string) error { return e.EndSession(ctx, id) },
	}
}
