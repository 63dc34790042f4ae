package bridgetest

import (
	"bytes"
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

// OutboxHarness ties the outbox conformance suite to one store.
type OutboxHarness struct {
	// New makes an empty store for one test and returns a function that opens handles
	// on it. Each handle takes the store over from the one before, which may not have
	// been closed.
	New func(t testing.TB) (open func() gobridge.Outbox)
}

// RunOutbox runs the conformance suite: what the engine relies on in every outbox.
func RunOutbox(t *testing.T, h OutboxHarness) {
	tests := []struct {
		name string
		run  func(*testing.T, func() gobridge.Outbox)
	}{
		{"records come back whole and in order, each partition by itself", testOutboxOrder},
		{"every field survives", testOutboxFields},
		{"pages end at the limit or the bytes and go on after a seq", testOutboxPages},
		{"a second record of one key is a duplicate, also after completion and reopening", testOutboxDuplicates},
		{"another payload under a known key is a conflict", testOutboxConflict},
		{"bindings, generations and ids made up by the bridge are no duplicates", testOutboxNoDuplicates},
		{"what is completed is gone and does not come back", testOutboxComplete},
		{"completing what is not there changes nothing", testOutboxCompleteTwice},
		{"charges survive", testOutboxCharge},
		{"a handle with a lower fence changes nothing", testOutboxFence},
		{"outcomes come once each, in the order of the calls", testOutboxOutcomes},
		{"concurrent callers lose nothing", testOutboxConcurrent},
		{"an outcome is true when it is told", testOutboxVisible},
		{"close waits for what was given and refuses the rest", testOutboxClose},
		{"seqs grow over reopening", testOutboxSeqs},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.run(t, h.New(t))
		})
	}
}

// storeTimeout bounds each wait of the store suites.
const storeTimeout = 20 * time.Second

// result is one outcome of an asynchronous call.
type result struct {
	records []*gobridge.OutboxRecord
	err     error
}

// results collects outcomes.
type results chan result

func (r results) OutboxDone(records []*gobridge.OutboxRecord, err error) { r <- result{records, err} }

func (r results) next(t *testing.T) result {
	t.Helper()
	select {
	case got := <-r:
		return got
	case <-time.After(storeTimeout):
		t.Fatalf("no outcome in %s", storeTimeout)
		return result{}
	}
}

type outboxCall func([]*gobridge.OutboxRecord, gobridge.OutboxDone)

// mustDo makes a call and waits for its outcome.
func mustDo(t *testing.T, call outboxCall, records ...*gobridge.OutboxRecord) {
	t.Helper()
	done := make(results, 1)
	call(records, done)
	if got := done.next(t); got.err != nil {
		t.Fatalf("outcome: %v", got.err)
	}
}

// message makes a record of a binding whose id the producer gave.
func message(binding string, n int) *gobridge.OutboxRecord {
	return &gobridge.OutboxRecord{
		RouteID: "r", BindingID: binding, Address: "to/" + strconv.Itoa(n),
		Envelope: gobridge.Envelope{
			ID: fmt.Sprintf("id-%d", n), IDOrigin: gobridge.IDProducer, Topic: "from", Payload: []byte(strconv.Itoa(n)), QoS: 1,
			CreatedAt: time.Unix(1_700_000_000, 5),
		},
	}
}

func messages(binding string, from, to int) []*gobridge.OutboxRecord {
	var all []*gobridge.OutboxRecord
	for n := from; n < to; n++ {
		all = append(all, message(binding, n))
	}
	return all
}

func pending(t *testing.T, o gobridge.Outbox, binding string) []*gobridge.OutboxRecord {
	t.Helper()
	var all []*gobridge.OutboxRecord
	for after := uint64(0); ; {
		page, err := o.Pending(t.Context(), binding, after, 100, 1<<20)
		if err != nil {
			t.Fatalf("Pending: %v", err)
		}
		if len(page) == 0 {
			return all
		}
		all = append(all, page...)
		after = page[len(page)-1].Seq
	}
}

func payloadsOf(records []*gobridge.OutboxRecord) []string {
	var all []string
	for _, r := range records {
		all = append(all, string(r.Envelope.Payload))
	}
	return all
}

func wantPending(t *testing.T, o gobridge.Outbox, binding string, want ...string) {
	t.Helper()
	if got := payloadsOf(pending(t, o, binding)); !slices.Equal(got, want) {
		t.Errorf("pending of %s: %v, want %v", binding, got, want)
	}
	if got := o.Depth(binding); got != len(want) {
		t.Errorf("depth of %s: %d, want %d", binding, got, len(want))
	}
}

func closeStore(t *testing.T, c interface{ Close() error }) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func testOutboxOrder(t *testing.T, open func() gobridge.Outbox) {
	o := open()
	for n := range 40 {
		mustDo(t, o.Persist, message("a", n), message("b", n))
	}
	for range 2 {
		wantPending(t, o, "a", numbers(0, 40)...)
		wantPending(t, o, "b", numbers(0, 40)...)
		wantPending(t, o, "nobody")
		got, err := o.Partitions(t.Context())
		if err != nil || !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("partitions %v, %v", got, err)
		}
		closeStore(t, o)
		o = open()
	}
	closeStore(t, o)
}

func testOutboxFields(t *testing.T, open func() gobridge.Outbox) {
	o := open()
	at := time.Unix(1_700_000_000, 123_456_789)
	full := &gobridge.OutboxRecord{
		RouteID: "route", BindingID: "a", Generation: 3, Address: "addr", ReplayCount: 2, FirstAttemptAt: at,
		Envelope: gobridge.Envelope{
			ID: "id \x00 ünï", IDOrigin: gobridge.IDProducer, Subject: "s", Topic: "t/t", Payload: bytes.Repeat([]byte{0, 255, 7}, 30_000),
			Headers:     []gobridge.Property{{Name: "k", Value: "1"}, {Name: "", Value: ""}, {Name: "k", Value: "2"}},
			ContentType: "c", ResponseTopic: "r", CorrelationData: []byte{}, UTF8Payload: true, QoS: 2, Retain: true, Hops: 7,
			CreatedAt: at, ExpiresAt: at.Add(time.Hour),
		},
	}
	empty := &gobridge.OutboxRecord{RouteID: "route", BindingID: "a", Envelope: gobridge.Envelope{ID: "e"}}
	before := time.Now()
	mustDo(t, o.Persist, full, empty)
	if full.Seq == 0 || empty.Seq <= full.Seq || full.PersistedAt.Before(before.Add(-time.Second)) {
		t.Errorf("Persist gave seqs %d and %d at %v", full.Seq, empty.Seq, full.PersistedAt)
	}
	closeStore(t, o)
	o = open()
	defer closeStore(t, o)
	same := cmp.Options{cmpopts.EquateApproxTime(0), cmpopts.EquateEmpty()}
	if diff := cmp.Diff([]*gobridge.OutboxRecord{full, empty}, pending(t, o, "a"), same); diff != "" {
		t.Errorf("records differ (-persisted +read):\n%s", diff)
	}
	if got := pending(t, o, "a")[0].Envelope.CorrelationData; got == nil {
		t.Error("empty correlation data became absent")
	}
}

func testOutboxPages(t *testing.T, open func() gobridge.Outbox) {
	o := open()
	defer closeStore(t, o)
	records := messages("a", 0, 10)
	for _, r := range records {
		r.Envelope.Payload = make([]byte, 100)
	}
	mustDo(t, o.Persist, records...)
	for _, tt := range []struct {
		after    uint64
		limit    int
		maxBytes int64
		want     []*gobridge.OutboxRecord
	}{
		{0, 4, 1 << 20, records[:4]},
		{records[3].Seq, 4, 1 << 20, records[4:8]},
		{records[7].Seq, 4, 1 << 20, records[8:]},
		{records[9].Seq, 4, 1 << 20, nil},
		{0, 10, 350, records[:3]},
		{0, 10, 1, records[:1]},
		{^uint64(0), 10, 1 << 20, nil},
	} {
		got, err := o.Pending(t.Context(), "a", tt.after, tt.limit, tt.maxBytes)
		if err != nil {
			t.Fatal(err)
		}
		seqs := func(all []*gobridge.OutboxRecord) (s []uint64) {
			for _, r := range all {
				s = append(s, r.Seq)
			}
			return s
		}
		if !slices.Equal(seqs(got), seqs(tt.want)) {
			t.Errorf("Pending(after %d, %d records, %d bytes) = seqs %v, want %v", tt.after, tt.limit, tt.maxBytes, seqs(got), seqs(tt.want))
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := o.Pending(ctx, "a", 0, 10, 1<<20); !errors.Is(err, context.Canceled) {
		t.Errorf("Pending with a cancelled context: %v", err)
	}
}

func wantDuplicate(t *testing.T, r *gobridge.OutboxRecord, duplicate, conflict bool) {
	t.Helper()
	if r.Duplicate != duplicate || r.Conflict != conflict || (r.Seq == 0) != duplicate {
		t.Errorf("record %s: duplicate %t, conflict %t, seq %d; want %t, %t", r.Envelope.ID, r.Duplicate, r.Conflict, r.Seq, duplicate, conflict)
	}
}

func testOutboxDuplicates(t *testing.T, open func() gobridge.Outbox) {
	o := open()
	first, twin := message("a", 1), message("a", 1)
	mustDo(t, o.Persist, first, twin, message("a", 2))
	wantDuplicate(t, first, false, false)
	wantDuplicate(t, twin, true, false)
	again := func(when string) {
		t.Helper()
		r := message("a", 1)
		mustDo(t, o.Persist, r)
		if !r.Duplicate || r.Conflict {
			t.Errorf("%s: duplicate %t, conflict %t", when, r.Duplicate, r.Conflict)
		}
	}
	again("while the first waits")
	closeStore(t, o)
	o = open()
	again("after reopening")
	wantPending(t, o, "a", "1", "2")
	mustDo(t, o.Complete, pending(t, o, "a")[0])
	again("after completion")
	closeStore(t, o)
	o = open()
	again("after completion and reopening")
	wantPending(t, o, "a", "2")
	closeStore(t, o)
}

func testOutboxConflict(t *testing.T, open func() gobridge.Outbox) {
	o := open()
	defer closeStore(t, o)
	first, other := message("a", 1), message("a", 1)
	other.Envelope.Payload = []byte("another event")
	mustDo(t, o.Persist, first, other)
	wantDuplicate(t, other, true, true)
	mustDo(t, o.Complete, first)
	mustDo(t, o.Persist, other)
	wantDuplicate(t, other, true, true)
	wantPending(t, o, "a")
}

func testOutboxNoDuplicates(t *testing.T, open func() gobridge.Outbox) {
	o := open()
	defer closeStore(t, o)
	redriven := message("a", 1)
	redriven.Generation = 1
	records := []*gobridge.OutboxRecord{message("a", 1), message("b", 1), redriven}
	for range 2 {
		r := message("a", 1)
		r.Envelope.IDOrigin = gobridge.IDGenerated
		r.Envelope.ID = "made up"
		records = append(records, r)
	}
	mustDo(t, o.Persist, records...)
	for _, r := range records {
		wantDuplicate(t, r, false, false)
	}
	repeat := message("a", 1)
	repeat.Generation, repeat.Envelope.IDOrigin = 1, gobridge.IDGenerated
	mustDo(t, o.Persist, repeat)
	wantDuplicate(t, repeat, true, false)
}

func testOutboxComplete(t *testing.T, open func() gobridge.Outbox) {
	o := open()
	records := messages("a", 0, 10)
	mustDo(t, o.Persist, records...)
	mustDo(t, o.Complete, records[0], records[5], records[9])
	left := []string{"1", "2", "3", "4", "6", "7", "8"}
	wantPending(t, o, "a", left...)
	closeStore(t, o)
	o = open()
	wantPending(t, o, "a", left...)
	mustDo(t, o.Complete, pending(t, o, "a")...)
	wantPending(t, o, "a")
	if got, err := o.Partitions(t.Context()); err != nil || len(got) != 0 {
		t.Errorf("partitions of an empty store: %v, %v", got, err)
	}
	closeStore(t, o)
}

func testOutboxCompleteTwice(t *testing.T, open func() gobridge.Outbox) {
	o := open()
	defer closeStore(t, o)
	records := messages("a", 0, 3)
	mustDo(t, o.Persist, records...)
	mustDo(t, o.Complete, records[1], records[1])
	mustDo(t, o.Complete, records[1], message("a", 7), message("nobody", 1))
	mustDo(t, o.Charge, records[1], message("nobody", 1))
	wantPending(t, o, "a", "0", "2")
}

func testOutboxCharge(t *testing.T, open func() gobridge.Outbox) {
	o := open()
	records := messages("a", 0, 2)
	mustDo(t, o.Persist, records...)
	at := time.Unix(1_700_000_000, 42)
	records[1].ReplayCount, records[1].FirstAttemptAt = 4, at
	mustDo(t, o.Charge, records[1])
	closeStore(t, o)
	o = open()
	defer closeStore(t, o)
	got := pending(t, o, "a")
	if got[0].ReplayCount != 0 || !got[0].FirstAttemptAt.IsZero() || got[1].ReplayCount != 4 || !got[1].FirstAttemptAt.Equal(at) {
		t.Errorf("charges are %d at %v and %d at %v", got[0].ReplayCount, got[0].FirstAttemptAt, got[1].ReplayCount, got[1].FirstAttemptAt)
	}
}

func testOutboxFence(t *testing.T, open func() gobridge.Outbox) {
	old := open()
	records := messages("a", 0, 3)
	mustDo(t, old.Persist, records...)
	owner := open()
	defer closeStore(t, owner)
	records[0].ReplayCount = 9
	for name, call := range map[string]outboxCall{"Persist": old.Persist, "Complete": old.Complete, "Charge": old.Charge} {
		done := make(results, 1)
		given := []*gobridge.OutboxRecord{records[0]}
		if name == "Persist" {
			given[0] = message("a", 99)
		}
		call(given, done)
		if got := done.next(t); !errors.Is(got.err, gobridge.ErrStaleFence) {
			t.Errorf("%s through the old handle: %v, want ErrStaleFence", name, got.err)
		}
	}
	closeStore(t, old)
	wantPending(t, owner, "a", numbers(0, 3)...)
	if got := pending(t, owner, "a")[0].ReplayCount; got != 0 {
		t.Errorf("the old handle charged %d", got)
	}
	mustDo(t, owner.Complete, records...)
	wantPending(t, owner, "a")
}

func testOutboxOutcomes(t *testing.T, open func() gobridge.Outbox) {
	o := open()
	const calls = 300
	done := make(results, 2*calls)
	var want []*gobridge.OutboxRecord
	for n := range calls {
		r := message("a", n)
		want = append(want, r)
		o.Persist([]*gobridge.OutboxRecord{r}, done)
	}
	var last uint64
	for n := range calls {
		got := done.next(t)
		if got.err != nil || len(got.records) != 1 || got.records[0] != want[n] {
			t.Fatalf("outcome %d is %v of %d records", n, got.err, len(got.records))
		}
		if got.records[0].Seq <= last {
			t.Fatalf("seq %d after %d", got.records[0].Seq, last)
		}
		last = got.records[0].Seq
	}
	closeStore(t, o)
	if n := len(done); n != 0 {
		t.Errorf("%d outcomes more than calls", n)
	}
}

func testOutboxConcurrent(t *testing.T, open func() gobridge.Outbox) {
	o := open()
	const callers, each = 8, 60
	var wg sync.WaitGroup
	for g := range callers {
		wg.Go(func() {
			binding := strconv.Itoa(g % 3)
			done := make(results, each)
			for n := range each {
				o.Persist([]*gobridge.OutboxRecord{message(binding, g*each+n)}, done)
			}
			for n := range each {
				got := <-done
				if got.err != nil {
					t.Errorf("persist: %v", got.err)
				}
				if n%2 == 0 {
					o.Complete(got.records, make(results, 1))
				}
				if n%7 == 0 {
					if _, err := o.Pending(t.Context(), binding, 0, 10, 1<<20); err != nil {
						t.Errorf("Pending: %v", err)
					}
				}
			}
		})
	}
	wg.Wait()
	closeStore(t, o)
	o = open()
	defer closeStore(t, o)
	left := 0
	for _, binding := range []string{"0", "1", "2"} {
		left += len(pending(t, o, binding))
	}
	if want := callers * each / 2; left != want {
		t.Errorf("%d records are left, want %d", left, want)
	}
}

// doneFunc is an OutboxDone made of a function.
type doneFunc func(records []*gobridge.OutboxRecord, err error)

func (f doneFunc) OutboxDone(records []*gobridge.OutboxRecord, err error) { f(records, err) }

func testOutboxVisible(t *testing.T, open func() gobridge.Outbox) {
	o := open()
	type view struct {
		found []string
		depth int
	}
	seen := make(chan view, 1)
	look := doneFunc(func([]*gobridge.OutboxRecord, error) {
		page, _ := o.Pending(context.Background(), "a", 0, 10, 1<<20)
		seen <- view{payloadsOf(page), o.Depth("a")}
	})
	r := message("a", 1)
	o.Persist([]*gobridge.OutboxRecord{r}, look)
	if got := <-seen; !slices.Equal(got.found, []string{"1"}) || got.depth != 1 {
		t.Errorf("when the outcome of Persist came, the store had %+v", got)
	}
	o.Complete([]*gobridge.OutboxRecord{r}, look)
	if got := <-seen; len(got.found) != 0 || got.depth != 0 {
		t.Errorf("when the outcome of Complete came, the store had %+v", got)
	}
	closeStore(t, o)
}

func testOutboxClose(t *testing.T, open func() gobridge.Outbox) {
	o := open()
	done := make(results, 100)
	for n := range 50 {
		o.Persist([]*gobridge.OutboxRecord{message("a", n)}, done)
	}
	closeStore(t, o)
	for range 50 {
		if got := done.next(t); got.err != nil {
			t.Fatalf("given before Close: %v", got.err)
		}
	}
	o.Persist([]*gobridge.OutboxRecord{message("a", 99)}, done)
	if got := done.next(t); !errors.Is(got.err, gobridge.ErrClosed) {
		t.Errorf("after Close: %v, want ErrClosed", got.err)
	}
	o = open()
	defer closeStore(t, o)
	wantPending(t, o, "a", numbers(0, 50)...)
}

func testOutboxSeqs(t *testing.T, open func() gobridge.Outbox) {
	var last uint64
	for n := range 3 {
		o := open()
		r := message("a", n)
		mustDo(t, o.Persist, r)
		if r.Seq <= last {
			t.Errorf("seq %d after %d", r.Seq, last)
		}
		last = r.Seq
		mustDo(t, o.Complete, r)
		closeStore(t, o)
	}
}
