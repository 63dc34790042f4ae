package engine

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/metric"
	"github.com/gobridge/gobridge/store/memory"
)

const testTTL = 2 * time.Second

// weakStore is a lease store as one process sees it: it may fail or hang for a while.
type weakStore struct {
	store atomic.Pointer[memory.Leases]
	fails atomic.Bool
	// locked lets reads pass and fails what writes.
	locked atomic.Bool
	// hangs is how long the next calls take beyond their contexts, as they do in a
	// process that is stopped: half of it before the store has answered, half after.
	hangs atomic.Int64
	late  atomic.Int64 // calls that succeeded although they hung
}

var errStore = errors.New("the store is away")

func (s *weakStore) Close() error { return nil }

func (s *weakStore) call(f func() error) error {
	half := time.Duration(s.hangs.Load() / 2)
	time.Sleep(half)
	if s.fails.Load() {
		return errStore
	}
	err := f()
	time.Sleep(half)
	if err == nil && half > 0 {
		s.late.Add(1)
	}
	return err
}

func (s *weakStore) write(f func() error) error {
	if s.locked.Load() {
		f = func() error { return errStore }
	}
	return s.call(f)
}

func (s *weakStore) Read(ctx context.Context, key string) (rec gobridge.LeaseRecord, err error) {
	err = s.call(func() error {
		rec, err = s.store.Load().Read(ctx, key)
		return err
	})
	return rec, err
}

func (s *weakStore) Take(ctx context.Context, seen gobridge.LeaseRecord, holder string, ttl time.Duration) (rec gobridge.LeaseRecord, err error) {
	err = s.write(func() error {
		rec, err = s.store.Load().Take(ctx, seen, holder, ttl)
		return err
	})
	return rec, err
}

func (s *weakStore) Renew(ctx context.Context, held gobridge.LeaseRecord) (rec gobridge.LeaseRecord, err error) {
	err = s.write(func() error {
		rec, err = s.store.Load().Renew(ctx, held)
		return err
	})
	return rec, err
}

func (s *weakStore) Release(ctx context.Context, held gobridge.LeaseRecord) error {
	return s.write(func() error { return s.store.Load().Release(ctx, held) })
}

// instance is a keeper with its term under observation.
type instance struct {
	*leaseKeeper
	weak     *weakStore
	away     atomic.Bool   // from the broker
	stepDown time.Duration // how long it takes
	terms    atomic.Int32
	working  atomic.Bool
	ended    atomic.Pointer[error] // why the latest term ended, nil before that
	begins   func()                // called when a term begins
	stop     context.CancelCauseFunc
	done     chan struct{}
}

var errStopped = errors.New("stopped")

// newInstance makes a keeper. Once started it is stopped by halt.
func newInstance(t *testing.T, store *memory.Leases, name string, change ...func(*instance)) *instance {
	i := &instance{weak: new(weakStore), begins: func() {}, done: make(chan struct{})}
	i.weak.store.Store(store)
	spec := gobridge.LeaseSpec{TTL: testTTL, MaxRenewFails: 3, StepDownGrace: time.Second}
	i.leaseKeeper = &leaseKeeper{
		store: i.weak, key: "k", holder: name, spec: spec.Effective(), fence: new(gobridge.Fence), doubts: make(chan struct{}, 1),
		log:   slog.New(slog.DiscardHandler),
		taken: metric.NewRegistry().Counter(metric.LeaseTransfers, "s"),
	}
	i.connected = func() bool { return !i.away.Load() }
	i.term = func(ctx context.Context) {
		i.begins()
		i.terms.Add(1)
		i.working.Store(true)
		<-ctx.Done()
		cause := context.Cause(ctx)
		i.ended.Store(&cause)
		time.Sleep(i.stepDown)
		i.working.Store(false)
	}
	for _, f := range change {
		f(i)
	}
	return i
}

func startInstance(t *testing.T, store *memory.Leases, name string, change ...func(*instance)) *instance {
	i := newInstance(t, store, name, change...)
	i.start(t)
	return i
}

func (i *instance) start(t *testing.T) {
	ctx, stop := context.WithCancelCause(t.Context())
	i.stop = stop
	go func() {
		defer close(i.done)
		i.run(ctx)
	}()
}

func (i *instance) halt() {
	i.stop(errStopped)
	<-i.done
}

func (i *instance) cause() error {
	if p := i.ended.Load(); p != nil {
		return *p
	}
	return nil
}

func (i *instance) open() bool { return i.fence.Open(time.Now()) }

// takenBy waits until the fence of an instance is open and returns how long it took.
func takenBy(t *testing.T, i *instance, limit time.Duration) time.Duration {
	t.Helper()
	began := time.Now()
	for !i.open() {
		time.Sleep(time.Millisecond)
		if time.Since(began) > limit {
			t.Fatalf("not taken by %s within %v", i.holder, limit)
		}
	}
	return time.Since(began)
}

func TestFreeLeaseIsTakenAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memory.NewLeases()
		a := startInstance(t, store, "a")
		if took := takenBy(t, a, testTTL); took > time.Millisecond {
			t.Errorf("a lease that nobody ever held was taken after %v", took)
		}
		if held, _, _ := a.standing(); !held || !a.working.Load() || a.taken.Value() != 1 {
			t.Errorf("held %t, working %t, %d transfers", held, a.working.Load(), a.taken.Value())
		}
		b := startInstance(t, store, "b")
		time.Sleep(50 * testTTL)
		if b.terms.Load() != 0 || a.terms.Load() != 1 || !a.open() {
			t.Errorf("with an owner that lives there were %d and %d terms, want 1 and 0", a.terms.Load(), b.terms.Load())
		}
		if _, why, _ := b.standing(); why != "standby: a owns the session" {
			t.Errorf("b says %q", why)
		}
		a.halt()
		if took := takenBy(t, b, testTTL); took > testTTL/standbyReads {
			t.Errorf("a released lease was taken after %v", took)
		}
		if !errors.Is(a.cause(), errStopped) {
			t.Errorf("the term of a ended with %v", a.cause())
		}
		b.halt()
		if rec, _ := store.Read(t.Context(), "k"); rec.Holder != "" || rec.Version != 2 {
			t.Errorf("at the end the record is %+v", rec)
		}
	})
}

func TestSilentOwnerIsFollowedAfterItsTTL(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memory.NewLeases()
		dead, _ := store.Take(t.Context(), gobridge.LeaseRecord{Key: "k"}, "dead", 3*testTTL) // its TTL counts, not ours
		a, b, c := startInstance(t, store, "a"), startInstance(t, store, "b"), startInstance(t, store, "c")
		time.Sleep(testTTL)
		if _, err := store.Renew(t.Context(), dead); err != nil { // the last sign of life
			t.Fatal(err)
		}
		last := time.Now()
		var owner *instance
		for owner == nil {
			time.Sleep(time.Millisecond)
			for _, i := range []*instance{a, b, c} {
				if i.open() {
					owner = i
				}
			}
			if time.Since(last) > 4*testTTL {
				t.Fatal("nobody took the lease")
			}
		}
		if took := time.Since(last); took < 3*testTTL || took > 3*testTTL+testTTL/standbyReads+time.Millisecond {
			t.Errorf("taken %v after the last renewal, want 6 s and the time to see it", took)
		}
		time.Sleep(5 * testTTL)
		for _, i := range []*instance{a, b, c} {
			if i != owner && i.terms.Load() > 0 {
				t.Errorf("%s owned the session as well", i.holder)
			}
			defer i.halt()
		}
	})
}

// A stopped process does not know that it was: whatever it does first when it goes on,
// its fence is shut, and it was before anybody else could begin.
func TestStoppedOwnerIsFencedBeforeAnotherBegins(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memory.NewLeases()
		a := startInstance(t, store, "a")
		takenBy(t, a, testTTL)
		b := startInstance(t, store, "b")
		time.Sleep(testTTL)
		a.weak.hangs.Store(int64(20 * testTTL)) // the next renewal does not return
		stopped := time.Now()
		for a.open() {
			time.Sleep(time.Millisecond)
		}
		shut := time.Now()
		if b.open() {
			t.Fatal("b began while a was open")
		}
		took := takenBy(t, b, 2*testTTL)
		if took < testTTL/marginPart {
			t.Errorf("b began %v after the fence of a was shut, want at least the margin", took)
		}
		if all := time.Since(stopped); all > testTTL*3/2 {
			t.Errorf("b began %v after a was stopped, want at most 1.5 TTL", all)
		}
		if held := shut.Sub(stopped); held > testTTL {
			t.Errorf("a was open for %v after it was stopped", held)
		}
		time.Sleep(time.Millisecond)
		if a.working.Load() || !errors.Is(a.cause(), gobridge.ErrLeaseLost) {
			t.Errorf("the term of a goes on (%t) or ended with %v, although only its store hangs", a.working.Load(), a.cause())
		}
		a.weak.hangs.Store(0)
		time.Sleep(30 * testTTL)
		if a.terms.Load() != 1 || b.terms.Load() != 1 {
			t.Errorf("%d and %d terms, want one each: a is a standby now", a.terms.Load(), b.terms.Load())
		}
		a.halt()
		b.halt()
	})
}

// A store that can be read and not written is of no use, and a lease that has run out
// has no owner: both are said the whole time.
func TestStoreThatCanOnlyBeReadIsToldSteadily(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memory.NewLeases()
		a, b := startInstance(t, store, "a"), newInstance(t, store, "b")
		takenBy(t, a, testTTL)
		b.start(t)
		time.Sleep(testTTL)
		a.weak.locked.Store(true)
		b.weak.locked.Store(true)
		time.Sleep(3 * testTTL)
		for range 500 {
			for _, i := range []*instance{a, b} {
				if held, why, fault := i.standing(); held || why != "standby: nobody owns the session, the lease of a has run out" || !errors.Is(fault, errStore) {
					t.Fatalf("%s: held %t, %q, fault %v", i.holder, held, why, fault)
				}
			}
			time.Sleep(testTTL / 100)
		}

		a.weak.locked.Store(false) // a takes it; b learns from that that the store is good
		takenBy(t, a, testTTL)
		time.Sleep(testTTL / 2)
		if _, why, fault := b.standing(); why != "standby: a owns the session" || fault != nil {
			t.Errorf("b: %q, fault %v", why, fault)
		}
		if _, _, fault := a.standing(); fault != nil {
			t.Errorf("a: fault %v", fault)
		}
		a.halt()
		b.halt()
	})
}

func TestStoreOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := startInstance(t, memory.NewLeases(), "a")
		takenBy(t, a, testTTL)
		time.Sleep(testTTL)
		a.weak.fails.Store(true)
		time.Sleep(testTTL / 2)
		if _, _, fault := a.standing(); !errors.Is(fault, errStore) {
			t.Errorf("fault %v, want that of the store", fault)
		}
		a.weak.fails.Store(false)
		time.Sleep(10 * testTTL)
		if a.terms.Load() != 1 || !a.open() {
			t.Fatalf("%d terms after an outage of half a TTL, want 1", a.terms.Load())
		}

		a.weak.fails.Store(true)
		began := time.Now()
		for a.working.Load() {
			time.Sleep(time.Millisecond)
		}
		if lasted := time.Since(began); lasted > testTTL || a.open() {
			t.Errorf("without a store it owned the session for %v, fence open %t", lasted, a.open())
		}
		if !errors.Is(a.cause(), gobridge.ErrLeaseLost) {
			t.Errorf("the term ended with %v", a.cause())
		}
		time.Sleep(5 * testTTL)
		a.weak.fails.Store(false)
		if took := takenBy(t, a, testTTL); took > testTTL/standbyReads+time.Millisecond {
			t.Errorf("its own lease was taken again after %v", took)
		}
		a.halt()
	})
}

func TestLeaseTakenByForceEndsTheTermAtOnce(t *testing.T) {
	t.Parallel()
	for name, doubt := range map[string]bool{"at the next renewal": false, "at once when there is doubt": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := memory.NewLeases()
				a := startInstance(t, store, "a")
				takenBy(t, a, testTTL)
				time.Sleep(testTTL)
				rec, _ := store.Read(t.Context(), "k")
				if _, err := store.Take(t.Context(), rec, "b", testTTL); err != nil {
					t.Fatal(err)
				}
				began, want := time.Now(), testTTL/4
				if doubt {
					a.doubt()
					want = 0
				}
				for a.open() {
					time.Sleep(time.Millisecond)
				}
				if took := time.Since(began); took > want+time.Millisecond {
					t.Errorf("the fence was shut after %v, want %v", took, want)
				}
				synctest.Wait()
				if !errors.Is(a.cause(), gobridge.ErrLeaseLost) {
					t.Errorf("the term ended with %v", a.cause())
				}
				if now, _ := store.Read(t.Context(), "k"); now.Holder != "b" {
					t.Errorf("the record is %+v: a has touched what is b's", now)
				}
				a.halt()
			})
		})
	}
}

func TestDoubtWithoutReasonChangesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := startInstance(t, memory.NewLeases(), "a")
		takenBy(t, a, testTTL)
		for range 50 {
			a.doubt()
			time.Sleep(testTTL / 20)
		}
		if a.terms.Load() != 1 || !a.open() {
			t.Errorf("%d terms, want 1", a.terms.Load())
		}
		a.halt()
	})
}

func TestOwnerWithoutBrokerLeavesTheSessionToOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memory.NewLeases()
		a := startInstance(t, store, "a", func(i *instance) { i.stepDown = 3 * testTTL }) // longer than the lease
		takenBy(t, a, testTTL)
		b := startInstance(t, store, "b")
		time.Sleep(testTTL)
		a.away.Store(true)
		time.Sleep(testTTL)
		a.away.Store(false) // not for long enough
		time.Sleep(3 * testTTL)
		if !a.open() || a.cause() != nil {
			t.Fatal("a short loss of the broker ended the term")
		}
		a.away.Store(true)
		began := time.Now()
		for a.cause() == nil {
			time.Sleep(time.Millisecond)
		}
		if took := time.Since(began); !errors.Is(a.cause(), errBrokerLost) || took < 2*testTTL || took > 2*testTTL+testTTL/2 {
			t.Errorf("the term ended after %v with %v, want 4 s", took, a.cause())
		}
		for a.working.Load() {
			if b.terms.Load() > 0 {
				t.Fatal("b began while a was stepping down")
			}
			time.Sleep(time.Millisecond)
		}
		if took := takenBy(t, b, testTTL); took > testTTL/standbyReads+time.Millisecond {
			t.Errorf("b began %v after a had stepped down", took)
		}
		if a.open() {
			t.Error("the fence of a is open")
		}
		// b has no broker either: a may try again.
		b.away.Store(true)
		takenBy(t, a, 4*testTTL)
		a.halt()
		b.halt()
	})
}

func TestOwnerWithoutBrokerAndWithoutOthersTriesAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := startInstance(t, memory.NewLeases(), "a")
		a.away.Store(true)
		takenBy(t, a, testTTL)
		for a.open() {
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		// The keeper does not know whether the broker is away or a person ended the session.
		if _, why, _ := a.standing(); !strings.Contains(why, "not connected to the broker (an outage, or the session was ended)") {
			t.Errorf("it does not say why it is a standby: %q", why)
		}
		if took := takenBy(t, a, 2*testTTL); took < testTTL*8/10 || took > testTTL+time.Millisecond {
			t.Errorf("it tried again after %v, want about a TTL", took)
		}
		a.halt()
	})
}

// A store that has lost its file may stand beside an owner that does not know it yet.
func TestStoreThatBeganAnewIsNotTrusted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		old := memory.NewLeases()
		a := startInstance(t, old, "a")
		takenBy(t, a, testTTL)
		time.Sleep(testTTL)
		a.weak.store.Store(memory.NewLeases())
		for a.open() {
			time.Sleep(time.Millisecond)
		}
		if took := takenBy(t, a, 3*testTTL); took < testTTL {
			t.Errorf("taken after %v, want at least a TTL", took)
		}
		a.halt()
	})
}

// Whatever three instances and their stores do, no two of them may send at a time: when
// one begins, the fences of the others are shut.
func TestNoTwoInstancesOwnTheSession(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rnd := rand.New(rand.NewPCG(seed, 4))
				store := memory.NewLeases()
				all := make([]*instance, 3)
				var terms atomic.Int32
				for n, name := range []string{"a", "b", "c"} {
					all[n] = newInstance(t, store, name, func(i *instance) {
						i.stepDown = testTTL / 10
						i.begins = func() {
							terms.Add(1)
							for _, other := range all {
								if other != i && other.open() {
									t.Errorf("%s begins while %s may send", i.holder, other.holder)
								}
							}
						}
					})
				}
				for _, i := range all {
					i.start(t)
				}
				end := time.Now().Add(300 * testTTL)
				var plagues sync.WaitGroup
				for _, i := range all {
					seeds := rnd.Uint64()
					plagues.Go(func() { plague(i, rand.New(rand.NewPCG(seeds, 1)), end) })
				}
				plagues.Wait()
				for _, i := range all {
					i.halt()
				}
				if terms.Load() < 10 {
					t.Errorf("%d terms: the test proves nothing", terms.Load())
				}
			})
		})
	}
}

// plague troubles an instance until end.
func plague(i *instance, rnd *rand.Rand, end time.Time) {
	for time.Now().Before(end) {
		time.Sleep(time.Duration(rnd.Int64N(int64(8 * testTTL))))
		switch rnd.IntN(5) {
		case 0:
			i.weak.fails.Store(true)
		case 1:
			i.weak.hangs.Store(rnd.Int64N(int64(3 * testTTL)))
		case 2:
			i.away.Store(true)
		case 3:
			i.doubt()
		case 4: // one slow renewal, and then none
			i.weak.hangs.Store(int64(testTTL/4) + rnd.Int64N(int64(testTTL/4)))
			for i.open() && i.weak.late.Swap(0) == 0 {
				time.Sleep(time.Millisecond)
			}
			i.weak.fails.Store(true)
		}
		time.Sleep(time.Duration(rnd.Int64N(int64(4 * testTTL))))
		i.weak.fails.Store(false)
		i.weak.hangs.Store(0)
		i.away.Store(false)
	}
}
