package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/metric"
)

// Why a term ends, beside gobridge.ErrLeaseLost and the end of the process.
var errBrokerLost = errors.New("not connected to the broker for broker_loss_step_down")

// The parts of a lease. A standby reads eight times in a TTL. A store call of the
// holder takes a renewal interval at most, and never longer than the lease lasts.
const (
	standbyReads = 8
	// marginPart of the TTL is left out by the holder: between the last look at the
	// fence and the last byte on the wire, and for clocks that run at different rates.
	marginPart = 10
	retryPart  = 4 // of the renewal interval, between a failed renewal and the next one
)

// leaseKeeper owns one exclusive session for this process, or waits for it. Its loop
// is one goroutine.
//
// No clock but the monotonic one of each observer is used. The holder counts from the
// moment before it began a renewal that succeeded; a standby counts from the moment
// after it first saw the outcome of that renewal, for the whole TTL. So the holder's
// fence is shut before a standby can take the lease, whatever a call takes and
// whenever the process is stopped.
type leaseKeeper struct {
	store  gobridge.LeaseStore
	key    string
	holder string // this process and nobody else
	spec   gobridge.LeaseSpec
	log    *slog.Logger
	taken  *metric.Counter
	fence  *gobridge.Fence
	// doubts wakes the holder: it asks the store at once who the owner is. Capacity 1.
	doubts chan struct{}
	// connected tells whether the session that is owned has its broker.
	connected func() bool
	// term works as the owner until ctx ends, steps down, and returns once nothing of
	// it can reach a broker any more.
	term func(ctx context.Context)

	highest   uint64               // version seen in the store
	known     gobridge.LeaseRecord // as last read or written
	unwritten bool                 // the latest write failed, and nobody else has written since

	mu     sync.Mutex
	held   bool
	owner  string // the holder that a standby has last read, empty for nobody
	lapsed bool   // owner has been silent for its TTL
	fault  error  // why the store is of no use at the moment
	pauses bool   // this instance leaves the lease to others for a while
}

// run owns the session again and again until ctx ends.
func (k *leaseKeeper) run(ctx context.Context) {
	for ctx.Err() == nil {
		rec, since, err := k.standBy(ctx)
		if err != nil {
			return
		}
		if cause := k.hold(ctx, rec, since); errors.Is(cause, errBrokerLost) {
			k.leaveToOthers(ctx)
		}
	}
}

// standBy waits until it has taken the lease. since is the time before the store was
// asked for it. The error is that of ctx.
func (k *leaseKeeper) standBy(ctx context.Context) (rec gobridge.LeaseRecord, since time.Time, err error) {
	var seen gobridge.LeaseRecord
	var seenAt time.Time // after it was first seen like this
	for {
		rec, err := k.read(ctx, k.spec.TTL/4)
		if now := time.Now(); err == nil && (seenAt.IsZero() || rec != seen) {
			seen, seenAt = rec, now
		}
		wait := jittered(k.spec.TTL / standbyReads)
		if err == nil {
			wait = min(wait, time.Until(seenAt.Add(k.silence(seen))))
			k.saw(seen.Holder, wait <= 0)
			if wait <= 0 {
				since := time.Now()
				if rec, err = k.take(ctx, seen); err == nil {
					return rec, since, nil
				}
				if errors.Is(err, gobridge.ErrVersionMismatch) {
					continue
				}
				wait = jittered(k.spec.TTL / standbyReads)
			}
		}
		if err := sleep(ctx, wait); err != nil {
			return rec, since, err
		}
	}
}

// silence is how long a record has to stay as it is before it may be taken.
func (k *leaseKeeper) silence(rec gobridge.LeaseRecord) time.Duration {
	switch {
	case rec.Version < k.highest:
		return k.spec.TTL // the store has begun anew, maybe beside an owner
	case rec.Holder == "" || rec.Holder == k.holder:
		return 0 // a taking or release of this process whose outcome it did not hear
	}
	return rec.TTL
}

// read asks the store, for at most that long.
func (k *leaseKeeper) read(ctx context.Context, limit time.Duration) (gobridge.LeaseRecord, error) {
	call, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	rec, err := k.store.Read(call, k.key)
	if err == nil && rec != k.known {
		k.known, k.unwritten = rec, false
	}
	k.heard(ctx, err)
	return rec, err
}

// saw notes what a standby knows of the owner.
func (k *leaseKeeper) saw(owner string, lapsed bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.owner, k.lapsed = owner, lapsed
}

func (k *leaseKeeper) take(ctx context.Context, seen gobridge.LeaseRecord) (gobridge.LeaseRecord, error) {
	call, cancel := context.WithTimeout(ctx, k.spec.TTL/4)
	defer cancel()
	rec, err := k.store.Take(call, seen, k.holder, k.spec.TTL)
	if !errors.Is(err, gobridge.ErrVersionMismatch) {
		k.wrote(ctx, err)
	}
	if err != nil {
		return seen, err
	}
	k.known = rec
	k.highest = max(k.highest, rec.Version)
	k.taken.Inc()
	k.log.Info("lease taken: this instance owns the session", "lease", k.key, "version", rec.Version, "from", seen.Holder)
	return rec, nil
}

// wrote notes the outcome of a write.
func (k *leaseKeeper) wrote(ctx context.Context, err error) {
	k.unwritten = err != nil
	k.heard(ctx, err)
}

// heard notes the outcome of a call of the store and logs where it has changed. A read
// that works makes a store good only if it can be written, by whomever.
func (k *leaseKeeper) heard(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	k.mu.Lock()
	before := k.fault
	if err == nil && k.unwritten {
		err = before
	}
	k.fault = err
	k.mu.Unlock()
	switch {
	case err != nil && before == nil:
		k.log.Error("lease store does not answer", "lease", k.key, "err", err)
	case err == nil && before != nil:
		k.log.Info("lease store answers again", "lease", k.key)
	}
}

// tenure is one time of owning the session.
type tenure struct {
	*leaseKeeper
	rec     gobridge.LeaseRecord
	granted time.Time // before the latest renewal that succeeded was asked for
	fails   int       // renewals that failed since then
	end     context.CancelCauseFunc
	expiry  *time.Timer
	lostAt  time.Time // since when the broker has been away, zero while it is not
}

// hold owns the session until ctx ends or the ownership does, and returns why it
// ended. The lease is released after everything has stopped.
func (k *leaseKeeper) hold(ctx context.Context, rec gobridge.LeaseRecord, since time.Time) error {
	term, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	t := &tenure{leaseKeeper: k, rec: rec, granted: since, end: end, lostAt: time.Now()}
	// Also where a call of the store hangs, the term ends in time.
	t.expiry = time.AfterFunc(time.Until(t.deadline()), t.expired)
	defer t.expiry.Stop()
	k.fence.OpenUntil(t.deadline())
	k.own(true)

	over := make(chan struct{})
	go func() { // ends with the term, which hold waits for
		defer close(over)
		k.term(term)
	}()
	t.keep(ctx, term, over)
	k.fence.Shut()
	k.own(false)
	t.release(ctx)
	return context.Cause(term)
}

func (k *leaseKeeper) own(held bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held, k.owner, k.lapsed = held, "", false
}

// deadline is when the fence shuts unless the lease is renewed.
func (t *tenure) deadline() time.Time {
	return t.granted.Add(t.spec.TTL - t.spec.TTL/marginPart)
}

// expired ends the term when the deadline has passed: the fence is shut by then.
func (t *tenure) expired() {
	t.end(fmt.Errorf("%w: it could not be renewed in time", gobridge.ErrLeaseLost))
}

// lose ends the term because somebody else owns the session.
func (t *tenure) lose(to string) {
	t.fence.Shut()
	t.end(fmt.Errorf("%w: %s has taken it", gobridge.ErrLeaseLost, to))
}

// keep renews the lease until the term is over. It goes on while the term steps
// down, because that must be over before another process may begin.
func (t *tenure) keep(ctx, term context.Context, over <-chan struct{}) {
	renew := time.NewTimer(t.spec.RenewInterval)
	defer renew.Stop()
	look := time.NewTicker(max(t.spec.BrokerLossStepDown/standbyReads, 10*time.Millisecond))
	defer look.Stop()
	stop := ctx.Done()
	for {
		select {
		case <-over:
			return
		case <-stop:
			stop = nil
			t.end(context.Cause(ctx))
		case <-look.C:
			t.lookAtBroker(time.Now())
		case <-t.doubts:
			if t.mine() {
				t.ask(ctx)
			}
		case <-renew.C:
			if t.mine() {
				renew.Reset(t.renew(ctx))
			}
		}
		if errors.Is(context.Cause(term), gobridge.ErrLeaseLost) {
			<-over
			return
		}
	}
}

// mine reports whether nobody else can own the session at this moment. Once that may
// have been otherwise the term ends, also if the lease could still be renewed.
func (t *tenure) mine() bool {
	if t.fence.Open(time.Now()) {
		return true
	}
	t.expired()
	return false
}

// renew proves that this process lives and returns when to do so again.
func (t *tenure) renew(ctx context.Context) time.Duration {
	since := time.Now()
	call, cancel := t.bounded(ctx)
	defer cancel()
	rec, err := t.store.Renew(call, t.rec)
	switch {
	case err == nil:
		t.rec, t.granted, t.fails = rec, since, 0
		t.known = rec
		t.wrote(ctx, nil)
		// A late answer may come after the deadline of before: the term ends then.
		if t.mine() {
			t.expiry.Reset(time.Until(t.deadline()))
			t.fence.OpenUntil(t.deadline())
		}
		return jittered(time.Until(since.Add(t.spec.RenewInterval)))
	case errors.Is(err, gobridge.ErrStaleFence):
		t.lose("another instance")
	default:
		t.wrote(ctx, err)
		if t.fails++; t.fails >= t.spec.MaxRenewFails {
			t.ask(ctx)
		}
	}
	return jittered(t.spec.RenewInterval / retryPart)
}

// ask reads who the owner is.
func (t *tenure) ask(ctx context.Context) {
	call, cancel := t.bounded(ctx)
	defer cancel()
	rec, err := t.store.Read(call, t.key)
	t.heard(ctx, err)
	if err == nil && (rec.Version != t.rec.Version || rec.Holder != t.holder) {
		t.lose(named(rec.Holder))
	}
}

// bounded is the context of one call of the store. It does not end with ctx: the
// lease is also needed while the term steps down.
func (t *tenure) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	limit := min(t.spec.RenewInterval, time.Until(t.deadline()))
	return context.WithTimeout(context.WithoutCancel(ctx), limit)
}

// lookAtBroker ends the term when the session has been without its broker for too
// long: another instance may reach it.
func (t *tenure) lookAtBroker(now time.Time) {
	switch {
	case t.connected():
		t.lostAt = time.Time{}
	case t.lostAt.IsZero():
		t.lostAt = now
	case now.Sub(t.lostAt) >= t.spec.BrokerLossStepDown:
		t.end(errBrokerLost)
	}
}

// release gives the lease up.
func (t *tenure) release(ctx context.Context) {
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.spec.TTL/4)
	defer cancel()
	switch err := t.store.Release(call, t.rec); {
	case err == nil:
		t.log.Info("lease released", "lease", t.key, "version", t.rec.Version)
	case errors.Is(err, gobridge.ErrStaleFence):
		t.log.Info("lease has another owner", "lease", t.key, "version", t.rec.Version)
	default:
		t.log.Warn("lease is not released: it ends with its ttl", "lease", t.key, "version", t.rec.Version, "err", err)
	}
}

// leaveToOthers gives other instances their chance.
func (k *leaseKeeper) leaveToOthers(ctx context.Context) {
	k.pause(true)
	defer k.pause(false)
	_ = sleep(ctx, jittered(k.spec.TTL)) // run looks at ctx
}

func (k *leaseKeeper) pause(on bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pauses = on
}

// doubt makes the holder ask who the owner is.
func (k *leaseKeeper) doubt() {
	select {
	case k.doubts <- struct{}{}:
	default: // it will ask anyway
	}
}

// standing says whether this instance owns the session, and to a standby why not.
func (k *leaseKeeper) standing() (held bool, why string, fault error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.held:
		return true, "", k.fault
	case k.pauses:
		why = "standby: this instance was not connected to the broker (an outage, or the session was ended) and leaves the session to others for a while"
	case k.owner == "":
		why = "standby: nobody owns the session yet"
	case k.lapsed:
		why = "standby: nobody owns the session, the lease of " + k.owner + " has run out"
	default:
		why = "standby: " + named(k.owner) + " owns the session"
	}
	return false, why, k.fault
}

// named is a holder for people.
func named(holder string) string {
	if holder == "" {
		return "nobody"
	}
	return holder
}

// jittered spreads a wait by a tenth, so that instances do not keep step. It never
// makes it longer.
func jittered(d time.Duration) time.Duration {
	return d - time.Duration(rand.Int64N(int64(max(d/10, 1))))
}

// sleep waits. Its error is that of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
