package engine

import (
	"context"
	"time"

	"github.com/gobridge/gobridge"
)

// drainPoll is how often a drain asks whether a destination has gone away.
const drainPoll = 20 * time.Millisecond

// drain settles what is physically under way and leaves everything else to its
// source (B1). It returns the number of deliveries left there.
func (r *route) drain(ctx context.Context) int {
	r.mu.Lock()
	r.draining = true
	for i := range r.legs {
		switch r.legs[i].state {
		case legHeld, legWaiting:
			r.abandon(uint32(i))
		}
	}
	for _, b := range r.bindings {
		b.held = nil
	}
	r.waiting, r.heldQoS0 = 0, 0
	r.checkDrained()
	r.unlockAndFlush()

	poll := time.NewTicker(drainPoll)
	defer poll.Stop()
	for {
		select {
		case <-r.drained:
			return r.left()
		case <-ctx.Done():
			r.abandonPhysical(func(uint32) bool { return true })
			return r.left()
		case <-poll.C:
			r.abandonPhysical(func(ref uint32) bool {
				return r.legs[ref].state == legSending && r.bindingOf(ref).sender.Available() != nil
			})
		}
	}
}

func (r *route) left() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.returned
}

// abandonPhysical gives up waiting for the sends and store calls that lost names.
func (r *route) abandonPhysical(lost func(ref uint32) bool) {
	r.mu.Lock()
	for i := range r.legs {
		ref := uint32(i)
		if s := r.legs[i].state; (s == legSending || s == legClerk) && lost(ref) {
			r.physical--
			r.abandon(ref)
		}
	}
	r.checkDrained()
	r.unlockAndFlush()
}

// abandon leaves a delivery with its source, unsettled and uncharged. Called with
// mu held, only while draining.
func (r *route) abandon(ref uint32) {
	l, w := &r.legs[ref], r.workOf(ref)
	l.state = legDone
	w.open--
	if w.redrive != nil {
		w.redrive.finish(gobridge.ErrClosed)
		return
	}
	if w.d.Record == nil { // a record is where it was
		r.bindingOf(ref).m.returned.Inc()
	}
	w.abandoned = true
	if w.open == 0 {
		r.returned++
	}
}

// checkDrained tells the drain that nothing is under way any more. Called with mu
// held.
func (r *route) checkDrained() {
	if r.draining && r.physical == 0 {
		select {
		case <-r.drained:
		default:
			close(r.drained)
		}
	}
}
