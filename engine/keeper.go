package engine

import (
	"context"
	"time"
)

// wakeAt makes the keeper look at the route no later than at. Called with mu
// held.
func (r *route) wakeAt(at time.Time) {
	if !r.nextWake.IsZero() && !at.Before(r.nextWake) {
		return
	}
	r.nextWake = at
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// keep waits for the next moment that the route needs and takes the steps that
// are due then. It costs nothing while the route needs none.
func (r *route) keep(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		r.mu.Lock()
		next := r.nextWake
		r.mu.Unlock()
		var due <-chan time.Time
		if !next.IsZero() {
			timer.Reset(time.Until(next))
			due = timer.C
		}
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		case <-due:
			r.step()
		}
	}
}

// step does what is due.
func (r *route) step() {
	now := time.Now()
	r.mu.Lock()
	r.nextWake = time.Time{}
	if r.waiting > 0 {
		for i := range r.legs {
			l := &r.legs[i]
			if l.state != legWaiting {
				continue
			}
			if now.Before(l.notBefore) {
				r.wakeAt(l.notBefore)
				continue
			}
			r.waiting--
			l.state = legIdle
			ref := uint32(i)
			switch b := r.bindingOf(ref); {
			case l.verdict != "":
				r.toClerk(ref, l.verdict)
			case r.workOf(ref).expired(now):
				r.expire(ref, now)
			case b.down(now):
				r.hold(ref, now)
			default:
				r.send(ref, now)
			}
		}
	}
	for _, b := range r.bindings {
		if len(b.held) == 0 {
			continue
		}
		r.pump(b, now)
		if len(b.held) > 0 && now.Before(b.retryAt) {
			r.wakeAt(b.retryAt)
		}
	}
	r.unlockAndFlush()
}
