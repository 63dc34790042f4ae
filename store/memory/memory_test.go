package memory_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/bridgetest"
	"github.com/gobridge/gobridge/store/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Covers: S1-314
func TestOutbox(t *testing.T) {
	t.Parallel()
	bridgetest.RunOutbox(t, bridgetest.OutboxHarness{New: func(testing.TB) func() gobridge.Outbox {
		s := memory.NewOutboxStore(time.Hour)
		return func() gobridge.Outbox { return s.Open() }
	}})
}

func TestDLQ(t *testing.T) {
	t.Parallel()
	bridgetest.RunDLQ(t, bridgetest.DLQHarness{New: func(_ testing.TB, maxEntries int) func() gobridge.DLQ {
		q := memory.NewDLQ(maxEntries)
		return func() gobridge.DLQ { return q }
	}})
}

func TestLedger(t *testing.T) {
	t.Parallel()
	bridgetest.RunLedger(t, bridgetest.LedgerHarness{New: func(testing.TB) func() gobridge.Ledger {
		l := memory.NewLedger()
		return func() gobridge.Ledger { return l }
	}})
}

func TestHistory(t *testing.T) {
	t.Parallel()
	bridgetest.RunHistory(t, bridgetest.HistoryHarness{New: func(testing.TB) func() gobridge.History {
		h := memory.NewHistory()
		return func() gobridge.History { return h }
	}})
}

func TestLeases(t *testing.T) {
	t.Parallel()
	bridgetest.RunLeases(t, bridgetest.LeaseHarness{New: func(testing.TB) func() gobridge.LeaseStore {
		l := memory.NewLeases()
		return func() gobridge.LeaseStore { return l }
	}})
}

func TestEvidenceEndsWithItsRetention(t *testing.T) {
	t.Parallel()
	o := memory.NewOutboxStore(0).Open()
	defer o.Close()
	r := &gobridge.OutboxRecord{BindingID: "b", Envelope: gobridge.Envelope{ID: "1", IDOrigin: gobridge.IDProducer}}
	done := make(outcome, 1)
	for range 2 {
		o.Persist([]*gobridge.OutboxRecord{r}, done)
		if err := <-done; err != nil || r.Duplicate {
			t.Fatalf("persist: duplicate %t, %v", r.Duplicate, err)
		}
		o.Complete([]*gobridge.OutboxRecord{r}, done)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond) // the retention of 0 has to be over
	}
}

// Every open of the kind begins with nothing, as a process does.
//
// Covers: S1-310, G08
func TestOutboxEndsWithItsProcess(t *testing.T) {
	t.Parallel()
	kind := memory.OutboxKind()
	open := func() gobridge.Outbox {
		o, err := kind.Open(t.Context(), &gobridge.BridgeSpec{}, &gobridge.StoreSpec{Options: kind.Options()}, gobridge.Env{})
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	o := open()
	done := make(outcome, 1)
	o.Persist([]*gobridge.OutboxRecord{{BindingID: "b", Envelope: gobridge.Envelope{ID: "1", IDOrigin: gobridge.IDProducer}}}, done)
	if err := <-done; err != nil || o.Depth("b") != 1 {
		t.Fatalf("depth %d after a write, %v", o.Depth("b"), err)
	}
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	next := open()
	defer next.Close()
	if n := next.Depth("b"); n != 0 {
		t.Errorf("%d records in the outbox of the next process, want none", n)
	}
}

type outcome chan error

func (o outcome) OutboxDone(_ []*gobridge.OutboxRecord, err error) { o <- err }
