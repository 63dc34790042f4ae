package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gobridge/gobridge"
)

// redriveRetry spaces the tries for a free slot.
const redriveRetry = 20 * time.Millisecond

// redrive is a dead letter that is on its way again.
type redrive struct {
	id       string
	category gobridge.Category
	done     chan error // capacity 1
	release  func()     // the entry may be sent again
}

// finish tells the outcome.
func (w *redrive) finish(err error) {
	w.release()
	w.done <- err
}

// Redrive sends one dead letter again to the binding that failed, with its original
// identity. The entry is the durable copy meanwhile: it is deleted only after the
// destination confirmed the message, and updated in place when it fails again. So
// a crash in between repeats the message and never loses it.
//
// An expired message is sent as if it were new. Redrive returns nil once the entry is
// deleted, the typed failure when the message failed again, and ctx's error when the
// outcome was not known in time; the message is then still under way. An error with
// gobridge.ErrNotTried says that nothing was sent and that the entry is as it was: its
// destination cannot be reached, or its route had no room.
func (e *Engine) Redrive(ctx context.Context, id string) error {
	if e.dlq == nil {
		return &gobridge.Error{Code: gobridge.CodeNotSupported, Class: gobridge.ClassPermanent, Op: "redrive: there is no dead-letter queue"}
	}
	letter, err := e.dlq.Get(ctx, id)
	if err != nil {
		return fmt.Errorf("redrive: %w", err)
	}
	r, binding := e.find(letter.RouteID, letter.BindingID)
	if r == nil {
		return &gobridge.Error{
			Code: gobridge.CodeNotFound, Class: gobridge.ClassPermanent,
			Op:   fmt.Sprintf("redrive %s: there is no binding %q on a route %q", id, letter.BindingID, letter.RouteID),
			Hint: "export the dead letter, or bring the binding back",
		}
	}
	if _, underWay := e.redriving.LoadOrStore(id, true); underWay {
		return &gobridge.Error{
			Code: gobridge.CodeUnavailable, Class: gobridge.ClassTransient, Op: fmt.Sprintf("redrive %s: it is under way already", id),
			Hint: "look again later",
		}
	}
	way := &redrive{id: id, category: letter.Category, done: make(chan error, 1), release: func() { e.redriving.Delete(id) }}
	for {
		taken, err := r.inject(letter, binding, way)
		if err != nil {
			way.release()
			return fmt.Errorf("%w: %w", gobridge.ErrNotTried, err)
		}
		if taken {
			break
		}
		select {
		case <-ctx.Done():
			way.release()
			return fmt.Errorf("%w: route %s had no room: %w", gobridge.ErrNotTried, r.id, ctx.Err())
		case <-time.After(redriveRetry):
		}
	}
	if _, err := e.dlq.CountReplay(ctx, id); err != nil && !errors.Is(err, gobridge.ErrNotFound) { // not found: delivered and deleted already
		e.log.Warn("a redrive could not be counted", "id", id, "err", err)
	}
	select {
	case err := <-way.done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("redrive %s: still under way: %w", id, ctx.Err())
	}
}

// find returns the route that sends for a binding, and the binding's index in it.
func (e *Engine) find(routeID, bindingID string) (*route, int) {
	for _, p := range e.pipelines {
		for _, r := range p.routes {
			for i, b := range r.bindings {
				if r.id == routeID && b.id == bindingID {
					return r, i
				}
			}
		}
	}
	return nil, 0
}

// inject admits a dead letter for one binding. It reports false when there is no
// slot for it at the moment.
func (r *route) inject(letter *gobridge.DeadLetter, binding int, way *redrive) (bool, error) {
	now := time.Now()
	r.mu.Lock()
	defer r.unlockAndFlush()
	b := r.bindings[binding]
	switch {
	case r.emptying.mode == draining:
		return false, gobridge.ErrClosed
	case b.sender.Available() != nil:
		return false, b.sender.Available()
	case len(r.free) == 0:
		return false, nil
	}
	d := &gobridge.Delivery{Envelope: letter.Envelope, Redeliverable: true, ReceivedAt: now}
	d.Envelope.CreatedAt, d.Envelope.ExpiresAt = now, time.Time{}
	d.SetSettler(settled{})
	slot := r.free[len(r.free)-1]
	r.free = r.free[:len(r.free)-1]
	r.seq++
	r.works[slot] = work{d: d, at: now, seq: r.seq, open: 1, redrive: way}
	ref := slot*uint32(len(r.bindings)) + uint32(binding)
	l := &r.legs[ref]
	out := l.out
	*l = leg{out: out, first: letter.FirstAt}
	l.out.Envelope, l.out.Address, l.out.Slot = &d.Envelope, "", 0 // the binding may have been corrected
	r.route(ref, now)
	return true, nil
}

// settled is a delivery's settler where there is no source to tell.
type settled struct{}

func (settled) Ack()                             {}
func (settled) Retry(time.Duration, error) error { return gobridge.ErrNotSupported }
func (settled) Extend(time.Time) error           { return gobridge.ErrNotSupported }

// arrived ends a redrive: its entry is deleted when the message was confirmed.
// Called with mu held.
func (r *route) arrived(way *redrive, err error) {
	if err != nil {
		way.finish(err)
		return
	}
	r.arrivals = append(r.arrivals, way)
	r.startClerk()
}

// unbury deletes the entry of a redrive that was confirmed.
func (r *route) unbury(way *redrive) {
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	if _, err := r.dlq.Delete(ctx, way.id); err != nil {
		way.finish(fmt.Errorf("redrive %s: delivered, but its entry could not be deleted: %w", way.id, err))
		return
	}
	way.finish(nil)
}
