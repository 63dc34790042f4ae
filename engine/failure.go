package engine

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/gobridge/gobridge"
)

// failed decides what a failure means: the one decision table of direct_hold.
// Called with mu held.
func (r *route) failed(ref uint32, err error, now time.Time) {
	l, b, e := &r.legs[ref], r.bindingOf(ref), gobridge.AsError(err)
	l.lastErr = e
	b.lastErr = e.Error()
	switch {
	case r.emptying.leaves(r.workOf(ref).leave):
		r.giveBack(ref)
	case e.Outage && b.hold:
		r.outage(ref, e, now)
	case e.Class == gobridge.ClassExpired:
		r.expire(ref, now)
	case e.Class == gobridge.ClassTransient && r.workOf(ref).d.Record != nil:
		r.chargeRecord(ref, e, now)
	case e.Class == gobridge.ClassTransient:
		r.charge(ref, e, now)
	default:
		r.giveUp(ref, gobridge.CategoryPermanent)
	}
}

// outage holds a message whose destination cannot be reached. Where the answer
// named no time and the sender still calls itself available (so that no Notify
// will come), the backoff of the route spaces the tries. Called with mu held.
func (r *route) outage(ref uint32, e *gobridge.Error, now time.Time) {
	b := r.bindingOf(ref)
	wait := e.RetryAfter
	if wait == 0 && b.sender.Available() == nil {
		b.outages++
		wait = r.backoff(b.outages)
	}
	if at := now.Add(wait); wait > 0 && at.After(b.retryAt) {
		b.retryAt = at
	}
	r.hold(ref, now)
}

// charge counts a failure of the message's own against its budget. Called with
// mu held.
func (r *route) charge(ref uint32, e *gobridge.Error, now time.Time) {
	l, b := &r.legs[ref], r.bindingOf(ref)
	clock := time.Duration(now.UnixNano())
	if b.hold {
		clock = b.available(now)
	}
	if l.failures == 0 {
		l.failedAt = clock
	}
	l.failures++
	l.ownFault = true
	wait := max(r.backoff(l.failures), e.RetryAfter)
	if clock-l.failedAt+wait > *r.spec.Policy.SendRetryBudget {
		b.m.exhausted.Inc()
		r.exhausted(ref, now)
		return
	}
	r.waitFor(ref, now.Add(wait))
}

// chargeRecord counts a failed send of a record, durably. It is poison when it has
// failed more than max_replay_attempts times and replay_budget has passed since
// its first attempt (G12). Called with mu held.
func (r *route) chargeRecord(ref uint32, e *gobridge.Error, now time.Time) {
	l, rec := &r.legs[ref], r.workOf(ref).d.Record
	l.ownFault = true
	rec.ReplayCount++
	r.bindingOf(ref).m.replays.Inc()
	if rec.FirstAttemptAt.IsZero() {
		rec.FirstAttemptAt = now
	}
	c := *rec // the store reads it later
	r.outbox.Charge([]*gobridge.OutboxRecord{&c}, unheard{})
	if rec.ReplayCount > r.spec.Policy.MaxReplayAttempts && now.Sub(rec.FirstAttemptAt) >= r.spec.Policy.ReplayBudget {
		l.lastErr = &gobridge.Error{
			Code: gobridge.CodePoisonMessage, Class: gobridge.ClassPermanent,
			Op: fmt.Sprintf("given up after %d failed sends", rec.ReplayCount), Err: causeOf(l.lastErr),
		}
		r.giveUp(ref, gobridge.CategoryPoison)
		return
	}
	r.waitFor(ref, now.Add(max(r.backoff(rec.ReplayCount), e.RetryAfter)))
}

// unheard ignores the outcome of a charge: the count in memory stands, and a crash
// before it was written gives the message one attempt more.
type unheard struct{}

func (unheard) OutboxDone([]*gobridge.OutboxRecord, error) {}

// exhausted takes the step after a spent budget (B5). Called with mu held.
func (r *route) exhausted(ref uint32, now time.Time) {
	d := r.workOf(ref).d
	switch {
	case r.workOf(ref).redrive != nil:
		r.giveUp(ref, r.workOf(ref).redrive.category)
	case d.Envelope.IDOrigin == gobridge.IDGenerated:
		r.giveUp(ref, gobridge.CategoryUnstableIdentity)
	case !d.Redeliverable:
		r.giveUp(ref, gobridge.CategoryRetryUnsupported)
	case r.spec.Policy.MaxReplayAttempts <= 1:
		r.giveUp(ref, gobridge.CategoryPoison)
	default:
		r.toClerk(ref, "") // the ledger counts the attempt
	}
}

// waitFor sets a leg's next try. Called with mu held.
func (r *route) waitFor(ref uint32, at time.Time) {
	if r.emptying.leaves(r.workOf(ref).leave) {
		r.giveBack(ref)
		return
	}
	l := &r.legs[ref]
	l.state, l.notBefore = legWaiting, at
	r.waiting++
	r.wakeAt(at)
}

// expire gives up a message whose time has passed. Called with mu held.
func (r *route) expire(ref uint32, now time.Time) {
	l, e := &r.legs[ref], &r.workOf(ref).d.Envelope
	code, op := gobridge.CodeMessageExpired, "message expired before it could be sent"
	if !e.Expired(now) {
		code, op = gobridge.CodeMessageTooOld, "message is older than policy.max_age"
	}
	if l.lastErr == nil || l.lastErr.Class != gobridge.ClassExpired {
		l.lastErr = &gobridge.Error{Code: code, Class: gobridge.ClassExpired, Op: op, Err: causeOf(l.lastErr)}
	}
	if r.workOf(ref).d.Record != nil {
		r.bindingOf(ref).m.expiredInOutbox.Inc()
	}
	if r.spec.Policy.OnExpired == gobridge.ActionDrop || r.dlq == nil {
		r.bindingOf(ref).m.expired.Inc()
		r.done(ref)
		return
	}
	r.toClerk(ref, gobridge.CategoryExpired)
}

func causeOf(e *gobridge.Error) error {
	if e == nil {
		return nil
	}
	return e
}

// giveUp takes the terminal action for a message that will not be delivered.
// Called with mu held.
func (r *route) giveUp(ref uint32, c gobridge.Category) {
	if r.spec.Policy.OnPermanentFailure == gobridge.ActionDrop || r.dlq == nil {
		r.drop(ref, string(c))
		return
	}
	r.toClerk(ref, c)
}

// drop ends a leg with a counted loss that the config allows. Called with mu
// held.
func (r *route) drop(ref uint32, reason string) {
	r.bindingOf(ref).m.dropped(reason)
	r.done(ref)
}

// backoff is the wait before try n+1 of one message.
func (r *route) backoff(n int) time.Duration {
	s := &r.spec.Policy.Backoff
	d, limit := float64(s.InitialInterval), float64(s.MaxInterval)
	for i := 1; i < n && d < limit; i++ {
		d *= s.Multiplier
	}
	d = min(d, limit)
	j := *s.Jitter
	return time.Duration(d*(1-j) + rand.Float64()*d*j)
}
