package bridgetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gobridge/gobridge"
)

// DLQHarness ties the suite of dead-letter queues to one store.
type DLQHarness struct {
	// New makes an empty store for one test, with room for maxEntries (0: no bound),
	// and returns a function that opens it. A handle is closed before the next one is
	// opened.
	New func(t testing.TB, maxEntries int) (open func() gobridge.DLQ)
}

// RunDLQ runs the conformance suite of dead-letter queues.
func RunDLQ(t *testing.T, h DLQHarness) {
	tests := []struct {
		name       string
		maxEntries int
		run        func(*testing.T, func() gobridge.DLQ)
	}{
		{"the whole evidence survives", 0, testDLQFields},
		{"a second Put of a key updates the entry", 0, testDLQUpdate},
		{"filters select, oldest first", 0, testDLQFilters},
		{"pages go on at the cursor", 0, testDLQCursor},
		{"a full queue refuses new entries and updates old ones", 3, testDLQFull},
		{"deleted entries are gone", 0, testDLQDelete},
		{"redrives are counted", 0, testDLQReplays},
		{"concurrent callers lose nothing", 0, testDLQConcurrent},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.run(t, h.New(t, tt.maxEntries))
		})
	}
}

// letter makes a dead letter.
func letter(n int) *gobridge.DeadLetter {
	at := time.Unix(1_700_000_000+int64(n), 0)
	return &gobridge.DeadLetter{
		Key: "key-" + strconv.Itoa(n), RouteID: "r", BindingID: "b", SourceID: "s",
		Category: gobridge.CategoryPermanent, Code: gobridge.CodeForbidden, LastError: "refused", Attempts: 1, FirstAt: at, LastAt: at,
		Envelope: gobridge.Envelope{ID: fmt.Sprintf("id-%d", n), Payload: []byte(strconv.Itoa(n))}, Address: "to",
	}
}

func mustPut(t *testing.T, q gobridge.DLQ, l *gobridge.DeadLetter, wantUpdated bool) {
	t.Helper()
	updated, err := q.Put(t.Context(), l)
	if err != nil || updated != wantUpdated {
		t.Fatalf("Put(%s) = %t, %v; want %t", l.Key, updated, err, wantUpdated)
	}
}

func letters(t *testing.T, q gobridge.DLQ, f gobridge.DLQFilter) []*gobridge.DeadLetter {
	t.Helper()
	var all []*gobridge.DeadLetter
	for l, err := range q.List(t.Context(), f) {
		if err != nil {
			t.Fatalf("List: %v", err)
		}
		all = append(all, l)
	}
	return all
}

func keysOf(all []*gobridge.DeadLetter) []string {
	var keys []string
	for _, l := range all {
		keys = append(keys, l.Key)
	}
	return keys
}

func wantDLQDepth(t *testing.T, q gobridge.DLQ, want int) {
	t.Helper()
	if got, err := q.Depth(t.Context()); err != nil || got != want {
		t.Errorf("depth %d, %v; want %d", got, err, want)
	}
}

func testDLQFields(t *testing.T, open func() gobridge.DLQ) {
	q := open()
	l := letter(1)
	l.Envelope = gobridge.Envelope{
		ID: "x", IDOrigin: gobridge.IDProducer, Subject: "s", Topic: "t", Payload: []byte{0, 1, 255},
		Headers:     []gobridge.Property{{Name: "a", Value: "1"}, {Name: "a", Value: "2"}},
		ContentType: "c", ResponseTopic: "r", CorrelationData: []byte{9}, UTF8Payload: true, QoS: 2, Retain: true, Hops: 3,
		CreatedAt: time.Unix(1, 2), ExpiresAt: time.Unix(3, 4),
	}
	mustPut(t, q, l, false)
	closeStore(t, q)
	q = open()
	defer closeStore(t, q)
	all := letters(t, q, gobridge.DLQFilter{})
	if len(all) != 1 || all[0].ID == "" {
		t.Fatalf("listed %+v", all)
	}
	got, err := q.Get(t.Context(), all[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	same := cmp.Options{cmpopts.EquateApproxTime(0), cmpopts.IgnoreFields(gobridge.DeadLetter{}, "ID")}
	if diff := cmp.Diff(l, got, same); diff != "" {
		t.Errorf("entry differs (-put +got):\n%s", diff)
	}
	if _, err := q.Get(t.Context(), "no such id"); !errors.Is(err, gobridge.ErrNotFound) {
		t.Errorf("Get of nothing: %v, want ErrNotFound", err)
	}
	wantDLQDepth(t, q, 1)
}

func testDLQUpdate(t *testing.T, open func() gobridge.DLQ) {
	q := open()
	defer closeStore(t, q)
	mustPut(t, q, letter(1), false)
	before := letters(t, q, gobridge.DLQFilter{})[0]
	again := letter(1)
	again.Attempts, again.Category, again.Code, again.LastError = 2, gobridge.CategoryPoison, gobridge.CodeTimeout, "slow"
	again.FirstAt, again.LastAt = again.FirstAt.Add(time.Hour), again.LastAt.Add(2*time.Hour)
	mustPut(t, q, again, true)
	got, err := q.Get(t.Context(), before.ID)
	if err != nil {
		t.Fatal(err)
	}
	want := *before
	want.Attempts, want.Category, want.Code, want.LastError, want.LastAt = 3, again.Category, again.Code, "slow", again.LastAt
	if diff := cmp.Diff(&want, got, cmpopts.EquateApproxTime(0)); diff != "" {
		t.Errorf("updated entry (-want +got):\n%s", diff)
	}
	if got := letters(t, q, gobridge.DLQFilter{Category: gobridge.CategoryPermanent}); len(got) != 0 {
		t.Errorf("the old category still finds %v", keysOf(got))
	}
	wantDLQDepth(t, q, 1)
}

func testDLQFilters(t *testing.T, open func() gobridge.DLQ) {
	q := open()
	defer closeStore(t, q)
	for n := range 8 {
		l := letter(n)
		if n%2 == 1 {
			l.RouteID = "odd"
		}
		if n >= 4 {
			l.Category, l.Code = gobridge.CategoryExpired, gobridge.CodeMessageExpired
		}
		mustPut(t, q, l, false)
	}
	at := func(n int) time.Time { return letter(n).LastAt }
	for _, tt := range []struct {
		name string
		f    gobridge.DLQFilter
		want []int
	}{
		{"all", gobridge.DLQFilter{}, []int{0, 1, 2, 3, 4, 5, 6, 7}},
		{"route", gobridge.DLQFilter{RouteID: "odd"}, []int{1, 3, 5, 7}},
		{"category", gobridge.DLQFilter{Category: gobridge.CategoryExpired}, []int{4, 5, 6, 7}},
		{"code", gobridge.DLQFilter{Code: gobridge.CodeForbidden}, []int{0, 1, 2, 3}},
		{"since", gobridge.DLQFilter{Since: at(6)}, []int{6, 7}},
		{"before", gobridge.DLQFilter{Before: at(2)}, []int{0, 1}},
		{"all of them", gobridge.DLQFilter{RouteID: "odd", Category: gobridge.CategoryExpired, Code: gobridge.CodeMessageExpired, Since: at(5), Before: at(7)}, []int{5}},
		{"limit", gobridge.DLQFilter{RouteID: "odd", Limit: 2}, []int{1, 3}},
		{"nothing", gobridge.DLQFilter{RouteID: "none"}, nil},
	} {
		var want []string
		for _, n := range tt.want {
			want = append(want, letter(n).Key)
		}
		if got := keysOf(letters(t, q, tt.f)); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", tt.name, got, want)
		}
	}
}

func testDLQCursor(t *testing.T, open func() gobridge.DLQ) {
	q := open()
	defer closeStore(t, q)
	const n = 250
	var want []string
	for i := range n {
		mustPut(t, q, letter(i), false)
		want = append(want, letter(i).Key)
	}
	var got []string
	f := gobridge.DLQFilter{Limit: 60}
	for {
		page := letters(t, q, f)
		if len(page) == 0 {
			break
		}
		got = append(got, keysOf(page)...)
		f.After = page[len(page)-1].ID
	}
	if !slices.Equal(got, want) {
		t.Errorf("paging gave %d entries, want %d in order", len(got), n)
	}
	if got := keysOf(letters(t, q, gobridge.DLQFilter{})); !slices.Equal(got, want) {
		t.Errorf("one list gave %d entries, want %d in order", len(got), n)
	}
	for range q.List(t.Context(), gobridge.DLQFilter{}) {
		break // a consumer may stop early
	}
}

func testDLQFull(t *testing.T, open func() gobridge.DLQ) {
	q := open()
	for n := range 3 {
		mustPut(t, q, letter(n), false)
	}
	closeStore(t, q)
	q = open()
	defer closeStore(t, q)
	if _, err := q.Put(t.Context(), letter(3)); !errors.Is(err, gobridge.ErrFull) {
		t.Errorf("Put into a full queue: %v, want ErrFull", err)
	}
	mustPut(t, q, letter(1), true)
	if n, err := q.Delete(t.Context(), letters(t, q, gobridge.DLQFilter{})[0].ID); n != 1 || err != nil {
		t.Fatalf("Delete = %d, %v", n, err)
	}
	mustPut(t, q, letter(3), false)
	wantDLQDepth(t, q, 3)
}

func testDLQDelete(t *testing.T, open func() gobridge.DLQ) {
	q := open()
	for n := range 4 {
		mustPut(t, q, letter(n), false)
	}
	all := letters(t, q, gobridge.DLQFilter{})
	n, err := q.Delete(t.Context(), all[0].ID, all[2].ID, "no such id", all[0].ID)
	if n != 2 || err != nil {
		t.Errorf("Delete = %d, %v; want 2", n, err)
	}
	closeStore(t, q)
	q = open()
	defer closeStore(t, q)
	if got := keysOf(letters(t, q, gobridge.DLQFilter{})); !slices.Equal(got, []string{"key-1", "key-3"}) {
		t.Errorf("left are %v", got)
	}
	wantDLQDepth(t, q, 2)
	mustPut(t, q, letter(0), false)
}

func testDLQReplays(t *testing.T, open func() gobridge.DLQ) {
	q := open()
	mustPut(t, q, letter(1), false)
	id := letters(t, q, gobridge.DLQFilter{})[0].ID
	for want := 1; want <= 2; want++ {
		if got, err := q.CountReplay(t.Context(), id); got != want || err != nil {
			t.Errorf("CountReplay = %d, %v; want %d", got, err, want)
		}
	}
	mustPut(t, q, letter(1), true) // the redrive failed
	closeStore(t, q)
	q = open()
	defer closeStore(t, q)
	if got, err := q.Get(t.Context(), id); err != nil || got.Replays != 2 {
		t.Errorf("entry %+v, %v; want 2 replays", got, err)
	}
	if _, err := q.CountReplay(t.Context(), "no such id"); !errors.Is(err, gobridge.ErrNotFound) {
		t.Errorf("CountReplay of nothing: %v, want ErrNotFound", err)
	}
}

func testDLQConcurrent(t *testing.T, open func() gobridge.DLQ) {
	q := open()
	defer closeStore(t, q)
	var wg sync.WaitGroup
	for g := range 6 {
		wg.Go(func() {
			for n := range 20 {
				l := letter(n)
				l.Key = fmt.Sprintf("%d-%d", g/2, n) // two callers for each key
				if _, err := q.Put(t.Context(), l); err != nil {
					t.Errorf("Put: %v", err)
				}
				for _, err := range q.List(t.Context(), gobridge.DLQFilter{Limit: 3}) {
					if err != nil {
						t.Errorf("List: %v", err)
					}
				}
			}
		})
	}
	wg.Wait()
	wantDLQDepth(t, q, 60)
	for _, l := range letters(t, q, gobridge.DLQFilter{}) {
		if l.Attempts != 2 {
			t.Errorf("%s has %d attempts, want 2", l.Key, l.Attempts)
		}
	}
}

// LedgerHarness ties the suite of replay ledgers to one store.
type LedgerHarness struct {
	// New makes an empty store for one test and returns a function that opens it. A
	// handle is closed before the next one is opened.
	New func(t testing.TB) (open func() gobridge.Ledger)
}

// RunLedger runs the conformance suite of replay ledgers.
func RunLedger(t *testing.T, h LedgerHarness) {
	k := gobridge.LedgerKey{RouteID: "r", EnvelopeID: "e"}
	charge := func(t *testing.T, l gobridge.Ledger, k gobridge.LedgerKey, want int) {
		t.Helper()
		if got, err := l.Charge(t.Context(), k); err != nil || got != want {
			t.Errorf("Charge(%v) = %d, %v; want %d", k, got, err, want)
		}
	}
	length := func(t *testing.T, l gobridge.Ledger, want int) {
		t.Helper()
		if got, err := l.Len(t.Context()); err != nil || got != want {
			t.Errorf("Len = %d, %v; want %d", got, err, want)
		}
	}
	t.Run("charges add up by route and envelope, and survive", func(t *testing.T) {
		t.Parallel()
		open := h.New(t)
		l := open()
		charge(t, l, k, 1)
		charge(t, l, k, 2)
		charge(t, l, gobridge.LedgerKey{RouteID: "r2", EnvelopeID: "e"}, 1)
		charge(t, l, gobridge.LedgerKey{RouteID: "r", EnvelopeID: "e2"}, 1)
		length(t, l, 3)
		closeStore(t, l)
		l = open()
		defer closeStore(t, l)
		charge(t, l, k, 3)
		length(t, l, 3)
	})
	t.Run("a removed message begins anew", func(t *testing.T) {
		t.Parallel()
		l := h.New(t)()
		defer closeStore(t, l)
		charge(t, l, k, 1)
		for range 2 { // a missing one is no error
			if err := l.Remove(t.Context(), k); err != nil {
				t.Errorf("Remove: %v", err)
			}
		}
		length(t, l, 0)
		charge(t, l, k, 1)
	})
	t.Run("a key without route or envelope is refused", func(t *testing.T) {
		t.Parallel()
		l := h.New(t)()
		defer closeStore(t, l)
		for _, k := range []gobridge.LedgerKey{{RouteID: "r"}, {EnvelopeID: "e"}} {
			if _, err := l.Charge(t.Context(), k); err == nil {
				t.Errorf("Charge(%v) was taken", k)
			}
		}
	})
	t.Run("concurrent charges are all counted", func(t *testing.T) {
		t.Parallel()
		l := h.New(t)()
		defer closeStore(t, l)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 10 {
					if _, err := l.Charge(context.Background(), k); err != nil {
						t.Errorf("Charge: %v", err)
					}
				}
			})
		}
		wg.Wait()
		charge(t, l, k, 81)
	})
}

// HistoryHarness ties the suite of managed subscription histories to one store.
type HistoryHarness struct {
	// New makes an empty store for one test and returns a function that opens it. A
	// handle is closed before the next one is opened.
	New func(t testing.TB) (open func() gobridge.History)
}

// RunHistory runs the conformance suite of managed subscription histories.
func RunHistory(t *testing.T, h HistoryHarness) {
	k := gobridge.HistoryKey{SessionID: "s", ClientID: "c"}
	want := func(t *testing.T, s gobridge.History, k gobridge.HistoryKey, wantKnown bool, want ...string) {
		t.Helper()
		got, known, err := s.Load(t.Context(), k)
		slices.Sort(got)
		if err != nil || known != wantKnown || !slices.Equal(got, want) {
			t.Errorf("Load(%v) = %v, %t, %v; want %v, %t", k, got, known, err, want, wantKnown)
		}
	}
	must := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Run("filters are remembered and forgotten, and survive", func(t *testing.T) {
		t.Parallel()
		open := h.New(t)
		s := open()
		want(t, s, k, false)
		must(t, s.Remember(t.Context(), k, "a/#", "b/+"))
		must(t, s.Remember(t.Context(), k, "b/+", "c"))
		must(t, s.Forget(t.Context(), k, "a/#", "never there"))
		closeStore(t, s)
		s = open()
		defer closeStore(t, s)
		want(t, s, k, true, "b/+", "c")
		must(t, s.Forget(t.Context(), k, "b/+", "c"))
		want(t, s, k, true)
	})
	t.Run("remembering nothing makes the baseline known, forgetting does not", func(t *testing.T) {
		t.Parallel()
		s := h.New(t)()
		defer closeStore(t, s)
		must(t, s.Forget(t.Context(), k, "a"))
		want(t, s, k, false)
		must(t, s.Remember(t.Context(), k))
		want(t, s, k, true)
	})
	t.Run("reset makes the baseline known and empty", func(t *testing.T) {
		t.Parallel()
		s := h.New(t)()
		defer closeStore(t, s)
		must(t, s.Reset(t.Context(), k))
		want(t, s, k, true)
		must(t, s.Remember(t.Context(), k, "a"))
		must(t, s.Reset(t.Context(), k))
		want(t, s, k, true)
	})
	t.Run("sessions and clients are apart", func(t *testing.T) {
		t.Parallel()
		s := h.New(t)()
		defer closeStore(t, s)
		must(t, s.Remember(t.Context(), k, "a"))
		must(t, s.Remember(t.Context(), gobridge.HistoryKey{SessionID: "s", ClientID: "other"}, "b"))
		must(t, s.Reset(t.Context(), gobridge.HistoryKey{SessionID: "other", ClientID: "c"}))
		want(t, s, k, true, "a")
	})
	t.Run("an empty filter is refused", func(t *testing.T) {
		t.Parallel()
		s := h.New(t)()
		defer closeStore(t, s)
		if err := s.Remember(t.Context(), k, ""); err == nil {
			t.Error("an empty filter was taken")
		}
	})
}
