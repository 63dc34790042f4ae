package bridgetest

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gobridge/gobridge"
)

// LeaseHarness ties the suite of lease stores to one store.
type LeaseHarness struct {
	// New makes an empty store for one test and returns a function that opens it. Several
	// handles are open at once.
	New func(t testing.TB) (open func() gobridge.LeaseStore)
}

// RunLeases runs the conformance suite of lease stores.
func RunLeases(t *testing.T, h LeaseHarness) {
	tests := []struct {
		name string
		run  func(*testing.T, func() gobridge.LeaseStore)
	}{
		{"nobody has held a new lease", testLeaseNew},
		{"a lease is taken, renewed and released", testLeaseLife},
		{"what has changed since it was seen is not taken", testLeaseChanged},
		{"who lost a lease neither renews nor releases it", testLeaseStale},
		{"a renewal whose outcome was not heard does no harm", testLeaseUnheard},
		{"keys are apart", testLeaseKeys},
		{"leases survive their store", testLeaseSurvives},
		{"of many that take one lease at once one gets it", testLeaseRace},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.run(t, h.New(t))
		})
	}
}

// readLease reads a record.
func readLease(t *testing.T, s gobridge.LeaseStore, key string) gobridge.LeaseRecord {
	t.Helper()
	rec, err := s.Read(t.Context(), key)
	if err != nil {
		t.Fatalf("Read(%s): %v", key, err)
	}
	return rec
}

func wantLease(t *testing.T, s gobridge.LeaseStore, want gobridge.LeaseRecord) {
	t.Helper()
	if diff := cmp.Diff(want, readLease(t, s, want.Key)); diff != "" {
		t.Errorf("Read(%s) (-want +got):\n%s", want.Key, diff)
	}
}

func takeLease(t *testing.T, s gobridge.LeaseStore, key, holder string) gobridge.LeaseRecord {
	t.Helper()
	rec, err := s.Take(t.Context(), readLease(t, s, key), holder, leaseTTL)
	if err != nil {
		t.Fatalf("Take(%s, %s): %v", key, holder, err)
	}
	return rec
}

func renewLease(t *testing.T, s gobridge.LeaseStore, held gobridge.LeaseRecord) gobridge.LeaseRecord {
	t.Helper()
	rec, err := s.Renew(t.Context(), held)
	if err != nil {
		t.Fatalf("Renew(%+v): %v", held, err)
	}
	return rec
}

// leaseTTL has to come back as it was.
const leaseTTL = 1234567891 * time.Nanosecond

func testLeaseNew(t *testing.T, open func() gobridge.LeaseStore) {
	s := open()
	defer closeStore(t, s)
	wantLease(t, s, gobridge.LeaseRecord{Key: "k"})
	if _, err := s.Renew(t.Context(), gobridge.LeaseRecord{Key: "k", Holder: "a", Version: 1}); !errors.Is(err, gobridge.ErrStaleFence) {
		t.Errorf("Renew of what nobody took: %v, want ErrStaleFence", err)
	}
	if _, err := s.Take(t.Context(), gobridge.LeaseRecord{Key: "k", Holder: "a", Version: 7}, "b", leaseTTL); !errors.Is(err, gobridge.ErrVersionMismatch) {
		t.Errorf("Take of what has vanished: %v, want ErrVersionMismatch", err)
	}
	wantLease(t, s, gobridge.LeaseRecord{Key: "k"})
}

func testLeaseLife(t *testing.T, open func() gobridge.LeaseStore) {
	a, b := open(), open()
	defer closeStore(t, a)
	defer closeStore(t, b)
	rec := takeLease(t, a, "k", "a")
	want := gobridge.LeaseRecord{Key: "k", Holder: "a", Version: 1, TTL: leaseTTL}
	if diff := cmp.Diff(want, rec); diff != "" {
		t.Errorf("Take (-want +got):\n%s", diff)
	}
	for range 3 {
		rec = renewLease(t, a, rec)
		want.Beat++
		if diff := cmp.Diff(want, rec); diff != "" {
			t.Errorf("Renew (-want +got):\n%s", diff)
		}
		wantLease(t, b, want)
	}
	if err := a.Release(t.Context(), rec); err != nil {
		t.Fatal(err)
	}
	want.Holder = ""
	wantLease(t, b, want)
	if rec := takeLease(t, b, "k", "b"); rec.Version != 2 || rec.Beat != 0 || rec.Holder != "b" {
		t.Errorf("taken as %+v, want version 2, beat 0", rec)
	}
}

func testLeaseChanged(t *testing.T, open func() gobridge.LeaseStore) {
	a, b := open(), open()
	defer closeStore(t, a)
	defer closeStore(t, b)
	empty := readLease(t, b, "k")
	held := takeLease(t, a, "k", "a")
	refused := func(what string, seen gobridge.LeaseRecord) {
		t.Helper()
		before := readLease(t, a, "k")
		if _, err := b.Take(t.Context(), seen, "b", leaseTTL); !errors.Is(err, gobridge.ErrVersionMismatch) {
			t.Errorf("Take after it was %s: %v, want ErrVersionMismatch", what, err)
		}
		wantLease(t, a, before)
	}
	refused("taken", empty)
	seen := readLease(t, b, "k")
	held = renewLease(t, a, held)
	refused("renewed", seen)
	seen = readLease(t, b, "k")
	if err := a.Release(t.Context(), held); err != nil {
		t.Fatal(err)
	}
	refused("released", seen)
	takeLease(t, b, "k", "b")
}

func testLeaseStale(t *testing.T, open func() gobridge.LeaseStore) {
	a, b := open(), open()
	defer closeStore(t, a)
	defer closeStore(t, b)
	lost := takeLease(t, a, "k", "a")
	takeLease(t, b, "k", "b") // the suite knows no time: it is not asked how long ago
	stale := func(holder string) {
		t.Helper()
		before := readLease(t, b, "k")
		if _, err := a.Renew(t.Context(), lost); !errors.Is(err, gobridge.ErrStaleFence) {
			t.Errorf("Renew of a lease that %s has: %v, want ErrStaleFence", holder, err)
		}
		if err := a.Release(t.Context(), lost); !errors.Is(err, gobridge.ErrStaleFence) {
			t.Errorf("Release of a lease that %s has: %v, want ErrStaleFence", holder, err)
		}
		wantLease(t, b, before)
	}
	stale("b")
	again := takeLease(t, a, "k", "a") // the same holder, another term
	stale("the same holder")
	if err := a.Release(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	lost = again
	stale("nobody")
}

func testLeaseUnheard(t *testing.T, open func() gobridge.LeaseStore) {
	s := open()
	defer closeStore(t, s)
	first := takeLease(t, s, "k", "a")
	renewLease(t, s, first)
	if again := renewLease(t, s, first); again.Beat != 2 {
		t.Errorf("beat %d after two renewals, want 2", again.Beat)
	}
	if err := s.Release(t.Context(), first); err != nil {
		t.Errorf("Release with a beat of before: %v", err)
	}
}

func testLeaseKeys(t *testing.T, open func() gobridge.LeaseStore) {
	s := open()
	defer closeStore(t, s)
	one := takeLease(t, s, "bridge/one", "a")
	two := takeLease(t, s, "bridge/two", "b")
	if err := s.Release(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	wantLease(t, s, two)
}

func testLeaseSurvives(t *testing.T, open func() gobridge.LeaseStore) {
	s := open()
	rec := renewLease(t, s, takeLease(t, s, "k", "a"))
	closeStore(t, s)
	s = open()
	wantLease(t, s, rec)
	if err := s.Release(t.Context(), rec); err != nil {
		t.Fatal(err)
	}
	closeStore(t, s)
	s = open()
	defer closeStore(t, s)
	if rec := takeLease(t, s, "k", "b"); rec.Version != 2 {
		t.Errorf("version %d after a restart, want 2", rec.Version)
	}
}

func testLeaseRace(t *testing.T, open func() gobridge.LeaseStore) {
	const contenders, rounds = 4, 25
	var wg sync.WaitGroup
	won := make([][]uint64, contenders)
	for i := range contenders {
		s := open()
		defer closeStore(t, s)
		wg.Go(func() {
			for len(won[i]) < rounds && t.Context().Err() == nil {
				seen, err := s.Read(t.Context(), "k")
				if err != nil {
					t.Errorf("Read: %v", err)
					return
				}
				if seen.Holder != "" {
					continue
				}
				rec, err := s.Take(t.Context(), seen, fmt.Sprintf("holder %d", i), leaseTTL)
				if errors.Is(err, gobridge.ErrVersionMismatch) {
					continue
				}
				if err == nil {
					rec, err = s.Renew(t.Context(), rec)
				}
				if err == nil {
					err = s.Release(t.Context(), rec)
				}
				if err != nil {
					t.Errorf("contender %d at version %d: %v", i, rec.Version, err)
					return
				}
				won[i] = append(won[i], rec.Version)
			}
		})
	}
	wg.Wait()
	owner := map[uint64]int{}
	for i, versions := range won {
		for _, v := range versions {
			if other, twice := owner[v]; twice {
				t.Errorf("version %d was taken by %d and by %d", v, other, i)
			}
			owner[v] = i
		}
	}
	if len(owner) != contenders*rounds {
		t.Errorf("%d different versions, want %d", len(owner), contenders*rounds)
	}
	for v := range owner {
		if v > contenders*rounds {
			t.Errorf("version %d: versions rise by one", v)
		}
	}
}
