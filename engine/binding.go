package engine

import (
	"fmt"
	"slices"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/metric"
)

// binding is one destination of a route. Its state stands under the route's
// mutex.
type binding struct {
	id       string
	template *gobridge.Template
	m        *bindingMetrics
	hold     bool  // on_unavailable: hold
	gate     *gate // of the lease that the source is under, nil without one

	sender gobridge.Sender // nil where nothing is ever sent
	// held are the legs that wait for the destination, in order of receipt.
	held []uint32
	// retryAt is set after an outage answer that named a time: nothing is tried
	// before it.
	retryAt time.Time
	// outages counts outage answers in a row, for the backoff of those that named no
	// time and that no Notify will end.
	outages int
	// downSince and downFor keep the destination's available time.
	downSince time.Time
	downFor   time.Duration
	newest    uint64 // highest sequence number handed over
	dirty     bool   // the sender buffers something
	lastErr   string
}

func newBindings(spec *gobridge.RouteSpec, reg *metric.Registry) ([]*binding, error) {
	all := make([]*binding, len(spec.Bindings))
	for i := range spec.Bindings {
		bs := &spec.Bindings[i]
		template, err := gobridge.ParseTemplate(bs.Address)
		if err != nil {
			return nil, fmt.Errorf("route %s, binding %s: %w", spec.ID, bs.ID, err)
		}
		all[i] = &binding{
			id: bs.ID, template: template,
			m:    newBindingMetrics(reg, spec.ID, bs.ID),
			hold: spec.Policy.OnUnavailable != gobridge.UnavailableFail,
		}
	}
	return all, nil
}

// down reports whether nothing should be handed over now.
func (b *binding) down(now time.Time) bool {
	return now.Before(b.retryAt) || !b.gate.open(now) || (b.hold && b.sender.Available() != nil)
}

// available is the time that the destination has been available, on a clock of
// its own.
func (b *binding) available(now time.Time) time.Duration {
	d := time.Duration(now.UnixNano()) - b.downFor
	if !b.downSince.IsZero() {
		d -= now.Sub(b.downSince)
	}
	return d
}

func (b *binding) markDown(now time.Time) {
	if b.downSince.IsZero() {
		b.downSince = now
	}
}

func (b *binding) markUp(now time.Time) {
	if !b.downSince.IsZero() {
		b.downFor += now.Sub(b.downSince)
		b.downSince = time.Time{}
	}
}

// hold puts a leg among those that wait for their destination, in its place.
// Called with mu held.
func (r *route) hold(ref uint32, now time.Time) {
	l, b := &r.legs[ref], r.bindingOf(ref)
	if r.emptying.leaves(r.workOf(ref).leave) {
		r.giveBack(ref)
		return
	}
	l.state = legHeld
	seq := r.workOf(ref).seq
	i := len(b.held)
	for i > 0 && r.workOf(b.held[i-1]).seq > seq {
		i--
	}
	b.held = slices.Insert(b.held, i, ref)
	b.markDown(now)
	if w := r.workOf(ref); !w.deadline.IsZero() {
		r.wakeAt(w.deadline)
	}
	if !b.retryAt.IsZero() {
		r.wakeAt(b.retryAt)
	}
	if r.workOf(ref).sheddable() {
		r.heldQoS0++
		r.shed()
	}
}

// unhold takes a leg out of the held ones. Called with mu held.
func (r *route) unhold(b *binding, i int) uint32 {
	ref := b.held[i]
	b.held = slices.Delete(b.held, i, i+1)
	r.legs[ref].state = legIdle
	if r.workOf(ref).sheddable() {
		r.heldQoS0--
	}
	return ref
}

// shed keeps held QoS 0 messages to a quarter of the slots, dropping the oldest
// (B8): nothing redelivers them, and they must not keep QoS 1 and 2 out.
// Called with mu held.
func (r *route) shed() {
	for r.heldQoS0 > max(1, len(r.works)*len(r.bindings)/4) {
		var from *binding
		at, oldest := 0, uint64(0)
		for _, b := range r.bindings {
			for i, ref := range b.held {
				w := r.workOf(ref)
				if !w.sheddable() {
					continue
				}
				if from == nil || w.seq < oldest {
					from, at, oldest = b, i, w.seq
				}
				break
			}
		}
		ref := r.unhold(from, at)
		r.drop(ref, metric.DropQoS0Shed)
	}
}

// pump hands over what a binding holds, as far as its destination takes it.
// Called with mu held.
func (r *route) pump(b *binding, now time.Time) {
	for len(b.held) > 0 && r.emptying.mode != draining {
		if r.workOf(b.held[0]).expired(now) {
			r.expire(r.unhold(b, 0), now)
			continue
		}
		if b.down(now) {
			r.expireHeld(b, now)
			return
		}
		b.markUp(now)
		n := len(b.held)
		r.send(r.unhold(b, 0), now)
		if len(b.held) >= n {
			return // it came back: an outage
		}
	}
	if len(b.held) == 0 {
		b.markUp(now)
		b.retryAt = time.Time{}
	}
}

// expireHeld gives up held messages whose time has passed, wherever they stand.
// Called with mu held.
func (r *route) expireHeld(b *binding, now time.Time) {
	for i := 0; i < len(b.held); {
		w := r.workOf(b.held[i])
		if w.expired(now) {
			r.expire(r.unhold(b, i), now)
			continue
		}
		if !w.deadline.IsZero() {
			r.wakeAt(w.deadline)
		}
		i++
	}
}

// available is called by the sender when it can be used again.
func (r *route) available(b *binding) {
	now := time.Now()
	r.mu.Lock()
	b.outages = 0
	b.retryAt = time.Time{}
	r.pump(b, now)
	r.unlockAndFlush()
}
