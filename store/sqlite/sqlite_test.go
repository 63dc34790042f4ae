package sqlite

import (
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/bridgetest"
	"github.com/gobridge/gobridge/metric"
)

// testEnv logs through the test.
func testEnv(t testing.TB) gobridge.Env {
	return gobridge.Env{Logger: slog.New(slog.NewTextHandler(t.Output(), nil)), Metrics: metric.NewRegistry()}
}

// opener returns a function that opens the store of a kind in dir.
func opener[T any](t testing.TB, dir string, open func(b *gobridge.BridgeSpec, s *gobridge.StoreSpec, env gobridge.Env) (T, error)) func() T {
	b := &gobridge.BridgeSpec{ID: "test", DataDir: dir}
	env := testEnv(t)
	return func() T {
		t.Helper()
		store, err := open(b, &gobridge.StoreSpec{Type: kindName}, env)
		if err != nil {
			t.Fatalf("open: %v", err)
		}
		return store
	}
}

func outboxIn(t testing.TB, dir string) func() gobridge.Outbox {
	return opener(t, dir, func(b *gobridge.BridgeSpec, s *gobridge.StoreSpec, env gobridge.Env) (gobridge.Outbox, error) {
		return OutboxKind().Open(t.Context(), b, s, env)
	})
}

func dlqIn(t testing.TB, dir string, change ...func(*DLQOptions)) func() gobridge.DLQ {
	return opener(t, dir, func(b *gobridge.BridgeSpec, s *gobridge.StoreSpec, env gobridge.Env) (gobridge.DLQ, error) {
		o := DLQKind().Options().(*DLQOptions)
		for _, f := range change {
			f(o)
		}
		s.Options = o
		return DLQKind().Open(t.Context(), b, s, env)
	})
}

// Covers: S1-314, S2-508
func TestOutbox(t *testing.T) {
	t.Parallel()
	bridgetest.RunOutbox(t, bridgetest.OutboxHarness{New: func(t testing.TB) func() gobridge.Outbox {
		return outboxIn(t, t.TempDir())
	}})
}

func TestDLQ(t *testing.T) {
	t.Parallel()
	bridgetest.RunDLQ(t, bridgetest.DLQHarness{New: func(t testing.TB, maxEntries int) func() gobridge.DLQ {
		return dlqIn(t, t.TempDir(), func(o *DLQOptions) { o.MaxEntries = maxEntries })
	}})
}

// Covers: S1-320
func TestLedger(t *testing.T) {
	t.Parallel()
	bridgetest.RunLedger(t, bridgetest.LedgerHarness{New: func(t testing.TB) func() gobridge.Ledger {
		return opener(t, t.TempDir(), func(b *gobridge.BridgeSpec, s *gobridge.StoreSpec, env gobridge.Env) (gobridge.Ledger, error) {
			return LedgerKind().Open(t.Context(), b, s, env)
		})
	}})
}

func TestHistory(t *testing.T) {
	t.Parallel()
	bridgetest.RunHistory(t, bridgetest.HistoryHarness{New: func(t testing.TB) func() gobridge.History {
		return opener(t, t.TempDir(), func(b *gobridge.BridgeSpec, s *gobridge.StoreSpec, env gobridge.Env) (gobridge.History, error) {
			return HistoryKind().Open(t.Context(), b, s, env)
		})
	}})
}

// testSettings place a database in dir.
func testSettings(t testing.TB, dir string) settings {
	env := testEnv(t)
	return settings{path: filepath.Join(dir, fileName), lock: filepath.Join(dir, lockName), log: env.Logger, metrics: env.Metrics}
}

// waitFor polls what has no event.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}
