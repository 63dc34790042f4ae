package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/metric"
)

// The bound of a dead-letter write: two tries of five seconds each.
const (
	storeTimeout = 5 * time.Second
	storeTries   = 2
)

// toClerk gives a leg to the clerk: with a category for the dead-letter queue,
// without one for the ledger. Called with mu held.
func (r *route) toClerk(ref uint32, c gobridge.Category) {
	if r.emptying.leaves(r.workOf(ref).leave) {
		r.giveBack(ref)
		return
	}
	l := &r.legs[ref]
	l.state, l.verdict = legClerk, c
	r.jobs = append(r.jobs, ref)
	r.startClerk()
}

// startClerk runs the clerk unless it runs already. Called with mu held.
func (r *route) startClerk() {
	if !r.clerkBusy {
		r.clerkBusy = true
		r.helpers.Go(r.clerk)
	}
}

// clerk makes the store calls that are due and ends when there are none left.
func (r *route) clerk() {
	for {
		r.mu.Lock()
		jobs, forget, arrivals := r.jobs, r.forget, r.arrivals
		r.jobs, r.forget, r.arrivals = nil, nil, nil
		if len(jobs) == 0 && len(forget) == 0 && len(arrivals) == 0 {
			r.clerkBusy = false
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
		for _, ref := range jobs {
			r.mu.Lock()
			l := &r.legs[ref]
			if l.state == legLost {
				r.reclaim(ref)
				r.mu.Unlock()
				continue
			}
			verdict := l.verdict
			r.mu.Unlock()
			// The leg is ours until it is reclaimed; only a drain that gives up waiting changes
			// it, and then the outcome below is ignored.
			if verdict == "" {
				r.countAttempt(ref)
			} else {
				r.bury(ref, verdict)
			}
		}
		for _, way := range arrivals {
			r.unbury(way)
		}
		for _, k := range forget {
			ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
			if err := r.ledger.Remove(ctx, k); err != nil {
				r.log.Warn("replay ledger keeps a settled message until its retention ends", "route_id", r.id, "err", err)
			}
			cancel()
		}
	}
}

// countAttempt charges one attempt in the ledger: the message is given up or goes
// on with a fresh budget. A ledger that fails charges nothing.
func (r *route) countAttempt(ref uint32) {
	r.mu.Lock()
	d := r.workOf(ref).d
	key := gobridge.LedgerKey{RouteID: r.id, EnvelopeID: d.Envelope.ID}
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	n, err := r.ledger.Charge(ctx, key)
	cancel()

	now := time.Now()
	r.mu.Lock()
	defer r.unlockAndFlush()
	l := &r.legs[ref]
	if !r.reclaim(ref) {
		return
	}
	r.storeFault("replay ledger", r.ledger, err)
	if err == nil {
		l.charged = true
		if n >= r.spec.Policy.MaxReplayAttempts {
			l.lastErr = &gobridge.Error{
				Code: gobridge.CodePoisonMessage, Class: gobridge.ClassPermanent,
				Op: fmt.Sprintf("given up after %d attempts", n), Err: causeOf(l.lastErr),
			}
			r.giveUp(ref, gobridge.CategoryPoison)
			return
		}
	}
	l.failures = 0
	r.waitFor(ref, now.Add(r.backoff(max(n, 1))))
}

// bury writes a dead letter. The delivery is settled only after the store
// confirmed it (G15). A full queue holds the message (F4). After a failed write its
// source delivers it again (B5, G16), as soon as its other bindings are done; until
// then, and for a record of the outbox (G18), the write is tried again. A message
// that nothing can deliver again is lost, counted once (G17).
func (r *route) bury(ref uint32, c gobridge.Category) {
	r.mu.Lock()
	letter := r.letter(ref, c)
	r.mu.Unlock()
	var updated bool
	var err error
	for range storeTries {
		ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
		updated, err = r.dlq.Put(ctx, letter)
		cancel()
		if err == nil || errors.Is(err, gobridge.ErrFull) {
			break
		}
	}

	now := time.Now()
	r.mu.Lock()
	defer r.unlockAndFlush()
	l, b, w := &r.legs[ref], r.bindingOf(ref), r.workOf(ref)
	if !r.reclaim(ref) {
		return
	}
	r.storeFault("dead-letter queue", r.dlq, err)
	full := errors.Is(err, gobridge.ErrFull)
	if err != nil && !full {
		r.m.dlqFailures.Inc()
	}
	switch {
	case err == nil:
		b.m.buried(c)
		if updated {
			r.m.dlqRepeats.Inc()
		}
		r.log.Warn("message dead-lettered", "route_id", r.id, "binding_id", b.id, "category", string(c), "code", string(letter.Code), "err", letter.LastError)
		r.done(ref)
	case !w.d.Redeliverable:
		r.lose(ref, err)
	case full || w.d.Record != nil || w.redrive != nil || w.open-w.back > 1:
		l.failures++
		r.waitFor(ref, now.Add(r.backoff(l.failures)))
	case r.emptying.leaves(w.leave):
		r.giveBack(ref)
	default:
		r.askAgain(ref, err)
	}
}

// lose drops a message that nothing can deliver again and that the dead-letter queue
// did not take (G17). Called with mu held.
func (r *route) lose(ref uint32, err error) {
	b := r.bindingOf(ref)
	r.log.Error("message lost: its source cannot deliver it again and the dead-letter queue did not take it", "route_id", r.id, "binding_id", b.id, "err", err)
	r.drop(ref, metric.DropRetryUnsupportedDLQFailed)
}

// storeFault keeps and logs the change of a store's state. Called with mu held.
func (r *route) storeFault(store string, s interface{ Err() error }, err error) {
	was := r.storeErr
	r.storeErr = ""
	if err != nil {
		r.storeErr, r.failing = store+": "+err.Error(), s
	}
	switch {
	case err != nil && was == "":
		r.log.Error("store fails: messages that need it are held", "route_id", r.id, "store", store, "err", err)
	case err == nil && was != "":
		r.log.Info("store works again", "route_id", r.id, "store", store)
	}
}

// storeReason says why the messages that need a store cannot go on, "" when they can. A
// fault ends with the next write that succeeds. Where nothing of the route waits to be
// written, there may be none for long: the store itself says when it works again.
// Called with mu held.
func (r *route) storeReason() string {
	if r.storeErr == "" || r.failing.Err() != nil {
		return r.storeErr
	}
	for i := range r.legs {
		if l := &r.legs[i]; l.state == legClerk || l.state == legWaiting && l.verdict != "" {
			return r.storeErr
		}
	}
	r.storeErr = ""
	return ""
}

// letter builds the evidence. Called with mu held.
func (r *route) letter(ref uint32, c gobridge.Category) *gobridge.DeadLetter {
	l, b, w := &r.legs[ref], r.bindingOf(ref), r.workOf(ref)
	env := *w.d.Envelope.Clone()
	env.Payload = slices.Clone(env.Payload)
	env.CorrelationData = slices.Clone(env.CorrelationData)
	letter := &gobridge.DeadLetter{
		Key:     idempotencyKey(r.id, b.id, &env),
		RouteID: r.id, BindingID: b.id, SourceID: r.sourceID,
		Category: c, Attempts: l.sends, FirstAt: l.first, LastAt: time.Now(),
		Envelope: env, Address: l.out.Address,
	}
	if l.lastErr != nil {
		letter.Code, letter.LastError = l.lastErr.Code, l.lastErr.Error()
	}
	return letter
}

// idempotencyKey names a failure of one message on one binding (F1).
func idempotencyKey(route, binding string, e *gobridge.Envelope) string {
	h := sha256.New()
	for _, s := range []string{route, binding, e.ID} {
		fmt.Fprintf(h, "%d:%s", len(s), s)
	}
	h.Write(e.Payload)
	return hex.EncodeToString(h.Sum(nil)[:16])
}
