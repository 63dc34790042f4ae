package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/metric"
)

// goneCheck is how often an emptying asks whether a destination has gone away.
const goneCheck = 20 * time.Millisecond

// errEmptied is what a source is told of the deliveries that it gets back.
var errEmptied = errors.New("the route is being emptied")

// drain settles what is physically under way and leaves everything else to its
// source (B1). It returns the number of deliveries left there.
func (r *route) drain(ctx context.Context) int {
	empty := r.begin(draining, metric.ReturnShutdown)
	if r.await(ctx, empty) != nil {
		r.forsake(func(uint32) bool { return true })
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.left
}

// quiesce gives back what the route holds of its source, see [gobridge.Env], counted
// with the reason. The cause of ctx says that sends are still under way; those are
// given back when they fail.
func (r *route) quiesce(ctx context.Context, reason string) error {
	return r.empty(ctx, quiescing, reason)
}

// part leaves what the route holds to a source that another process may own from here
// on. The outcome is that of quiesce.
func (r *route) part(ctx context.Context) error {
	return r.empty(ctx, parting, metric.ReturnStepDown)
}

func (r *route) empty(ctx context.Context, m mode, reason string) error {
	empty := r.begin(m, reason)
	err := r.await(ctx, empty)
	r.mu.Lock()
	r.emptying.quiesced()
	r.unlockAndFlush()
	return err
}

// begin leaves what only waits to its source. The channel is closed once what must
// be awaited has come to its end.
func (r *route) begin(m mode, reason string) <-chan struct{} {
	r.mu.Lock()
	defer r.unlockAndFlush()
	r.emptying.begin(m)
	for slot := range r.works {
		w := &r.works[slot]
		if w.open == 0 || !r.emptying.takes(w.d) || w.redrive != nil && m != draining {
			continue
		}
		if w.leave == "" || m == draining {
			w.leave = reason
		}
		r.leave(slot)
	}
	for _, b := range r.bindings {
		b.held = slices.DeleteFunc(b.held, func(ref uint32) bool { return r.legs[ref].state != legHeld })
	}
	n := 0
	for i := range r.legs {
		if r.awaited(uint32(i)) {
			n++
		}
	}
	return r.emptying.await(n)
}

// leave gives the legs of a delivery back that only wait. Those that were held are
// still listed by their bindings. Called with mu held.
func (r *route) leave(slot int) {
	for i := range r.bindings {
		ref := uint32(slot*len(r.bindings) + i)
		switch r.legs[ref].state {
		case legHeld:
			if r.works[slot].sheddable() {
				r.heldQoS0--
			}
			r.giveBack(ref)
		case legWaiting:
			r.waiting--
			r.giveBack(ref)
		}
	}
}

// awaited reports whether an emptying waits for the leg. Called with mu held.
func (r *route) awaited(ref uint32) bool {
	s := r.legs[ref].state
	return (s == legSending || s == legClerk) && r.emptying.awaits(r.workOf(ref).leave)
}

// await waits for the end of what is physically under way. What is on its way to a
// destination that has gone away ends here.
func (r *route) await(ctx context.Context, empty <-chan struct{}) error {
	poll := time.NewTicker(goneCheck)
	defer poll.Stop()
	for {
		select {
		case <-empty:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-poll.C:
			r.forsake(func(ref uint32) bool {
				return r.legs[ref].state == legSending && r.bindingOf(ref).sender.Available() != nil
			})
		}
	}
}

// unsent waits until nothing is on its way to a destination that is there.
func (r *route) unsent(ctx context.Context) error {
	poll := time.NewTicker(goneCheck)
	defer poll.Stop()
	for r.sending() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-poll.C:
		}
	}
	return nil
}

func (r *route) sending() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.legs {
		if r.legs[i].state == legSending && r.bindingOf(uint32(i)).sender.Available() == nil {
			return true
		}
	}
	return false
}

// forsake gives up waiting for those of the awaited sends and store calls that lost
// names.
func (r *route) forsake(lost func(ref uint32) bool) {
	r.mu.Lock()
	for i := range r.legs {
		if ref := uint32(i); r.awaited(ref) && lost(ref) {
			r.emptying.ended()
			r.legs[i].state = legLost
			r.workOf(ref).lost++
			r.backed(ref)
		}
	}
	r.unlockAndFlush()
}

// giveBack leaves a leg to the source of its delivery, uncharged. Called with mu held.
func (r *route) giveBack(ref uint32) {
	r.legs[ref].state = legBack
	r.backed(ref)
}

// backed counts a leg that was given back. Called with mu held.
func (r *route) backed(ref uint32) {
	r.workOf(ref).back++
	r.conclude(ref)
}

// reclaim takes a leg back from its sender or from the clerk. It reports false when
// the leg was given up meanwhile: nothing is left to decide, but its slot is free.
// Called with mu held.
func (r *route) reclaim(ref uint32) bool {
	l := &r.legs[ref]
	if l.state == legLost {
		l.state = legBack
		w := r.workOf(ref)
		if w.lost--; w.lost == 0 && w.open == 0 {
			r.release(ref)
		}
		return false
	}
	if r.awaited(ref) {
		r.emptying.ended()
	}
	l.state = legIdle
	return true
}

// returnWork gives a delivery back to its source once all of its legs have ended: the
// legs that reached their end stay as they are counted, the source delivers the
// message for all of them again. Called with mu held.
func (r *route) returnWork(ref uint32) {
	w := r.workOf(ref)
	switch {
	case w.redrive != nil:
		w.redrive.finish(gobridge.ErrClosed)
		return
	case w.d.Record != nil:
		return // a record is where it was
	case r.emptying.mode == draining:
		r.left++
	case r.emptying.mode == parting: // the source ends: it delivers again without being asked
	default:
		// The source of a dead instance refuses, and delivers again all the same.
		_ = w.d.Retry(0, errEmptied)
	}
	first := int(ref) / len(r.bindings) * len(r.bindings)
	for i, b := range r.bindings {
		if s := r.legs[first+i].state; s == legBack || s == legLost {
			b.m.returned.Get(w.leave).Inc()
		}
	}
}

// askAgain gives a delivery back because its dead letter could not be written (G16):
// the leg is the last one that is open. Called with mu held.
func (r *route) askAgain(ref uint32, why error) {
	w := r.workOf(ref)
	switch err := w.d.Retry(0, why); {
	case errors.Is(err, gobridge.ErrNotSupported):
		r.lose(ref, why)
		return
	case err != nil: // the instance is dead
		w.leave = metric.ReturnSessionEnd
	default:
		w.leave = metric.ReturnRetry
	}
	r.giveBack(ref)
}
