package gobridge

import (
	"sync/atomic"
	"time"
)

// Delivery is one receipt of a message from a source. It is settled exactly
// once, by Ack or by Retry; a delivery that is neither acknowledged nor retried
// stays with its source, which delivers it again after its session resumes.
//
// Ack, Retry and Extend may be called from any goroutine and never wait for the
// network.
type Delivery struct {
	Envelope Envelope
	// Attempts is the receive count that the source reports, from 1; 0 means that
	// the source does not count (MQTT).
	Attempts int
	// Redeliverable tells whether the source delivers this message again when it
	// is left unsettled. It is a fact about this packet: false for MQTT QoS 0, even
	// through a QoS 1 filter, and for every delivery of an ephemeral session.
	Redeliverable bool
	// ReceivedAt is the time of receipt, monotonic reading included.
	ReceivedAt time.Time
	// Unwanted says why the message must not be forwarded any more: the route
	// dead-letters it, or drops it where the policy says so, before it settles it. Nil
	// for everything that is to be sent.
	Unwanted *Error
	// Record is the outbox record that the delivery stands for, nil when it comes from
	// a source.
	Record *OutboxRecord

	settler Settler
	settled atomic.Bool
}

// Settler is what a source does for one delivery. The methods of Delivery call
// each at most as its contract allows: Ack or Retry once in all.
type Settler interface {
	// Ack acknowledges the delivery to its source. Sources that must acknowledge in
	// receive order keep the acknowledgement until its turn.
	Ack()
	// Retry gives the delivery back for redelivery, not before after has passed
	// where the source can delay. ErrNotSupported means that the source cannot
	// deliver it again; the delivery then stays unsettled.
	Retry(after time.Duration, reason error) error
	// Extend asks the source to wait for the settlement until the given time.
	// ErrNotSupported where the source has no such deadline.
	Extend(until time.Time) error
}

// SetSettler ties the delivery to its source. Receivers call it before they
// offer the delivery.
func (d *Delivery) SetSettler(s Settler) { d.settler = s }

// Ack settles the delivery as done. A second settlement does nothing.
func (d *Delivery) Ack() {
	if d.settled.CompareAndSwap(false, true) {
		d.settler.Ack()
	}
}

// Retry settles the delivery by giving it back to its source. After
// ErrNotSupported it is still open: acknowledge it once its fate is decided.
func (d *Delivery) Retry(after time.Duration, reason error) error {
	if !d.settled.CompareAndSwap(false, true) {
		return nil
	}
	err := d.settler.Retry(after, reason)
	if err != nil {
		d.settled.Store(false)
	}
	return err
}

// Extend asks the source for more time.
func (d *Delivery) Extend(until time.Time) error { return d.settler.Extend(until) }

// Settled reports whether Ack or Retry took effect.
func (d *Delivery) Settled() bool { return d.settled.Load() }
