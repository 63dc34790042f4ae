package engine

import (
	"log/slog"
	"sync"
	"time"

	"github.com/gobridge/gobridge"
)

// legState is where one message stands with one binding.
type legState uint8

const (
	legIdle    legState = iota // no message
	legSending                 // the sender has it
	legHeld                    // waits, in order, for its destination
	legWaiting                 // waits for its own next try after a charged failure
	legClerk                   // a store call decides what comes next
	legDone                    // decided; the delivery waits for its other bindings
	legBack                    // left to the source, as soon as the other bindings are done
	legLost                    // left to the source while its sender or the clerk still has it
)

// leg is one admitted message on its way to one binding.
type leg struct {
	out   gobridge.Outbound
	state legState
	// sends counts physical sends, failures those that were charged since the
	// budget began.
	sends    int
	failures int
	// failedAt is the binding's available time at the first charged failure of the
	// running budget; notBefore is when a waiting leg is due.
	failedAt  time.Duration
	notBefore time.Time
	// first and lastErr are the evidence of a dead letter.
	first   time.Time
	lastErr *gobridge.Error
	// verdict is the terminal action that the clerk carries out.
	verdict gobridge.Category
	// charged tells that the ledger knows this message; ownFault that it failed by
	// itself, so that later messages may have overtaken it; reordered that this was
	// counted.
	charged   bool
	ownFault  bool
	reordered bool
}

// work is one admitted delivery.
type work struct {
	d        *gobridge.Delivery
	at       time.Time // of admission
	seq      uint64
	deadline time.Time // expiry or age limit, zero is none
	open     int       // legs not done; 0 once the delivery is settled or left to its source
	back     int       // of those, the ones that were left to the source
	lost     int       // legs in legLost: they keep the slot
	// leave is the reason of MessagesReturned once the delivery is to be left to its
	// source: whatever of it fails or would wait is.
	leave   string
	redrive *redrive // the delivery is a dead letter that is sent again
}

// route is the way of messages from one receiver to its bindings.
type route struct {
	id       string
	spec     *gobridge.RouteSpec
	sourceID string
	log      *slog.Logger
	m        *routeMetrics
	bindings []*binding
	dlq      gobridge.DLQ // nil: none
	ledger   gobridge.Ledger
	outbox   gobridge.Outbox // the deliveries are records of it; nil: they come from a source

	wake    chan struct{} // to the keeper, capacity 1
	helpers sync.WaitGroup

	mu       sync.Mutex
	receiver gobridge.Receiver
	works    []work // one per slot
	legs     []leg  // slot*len(bindings)+binding
	free     []uint32
	seq      uint64
	limiter  *limiter
	// backlogged: the receiver keeps deliveries that found no room.
	backlogged bool
	// acked: settlements are buffered in the receiver.
	acked     bool
	emptying  emptying
	left      int // deliveries left to their source by a drain
	waiting   int // legs in legWaiting
	heldQoS0  int
	jobs      []uint32 // legs for the clerk
	clerkBusy bool
	nextWake  time.Time                // what the keeper waits for
	storeErr  string                   // why the dead-letter queue or ledger holds messages, see storeReason
	failing   interface{ Err() error } // the store of storeErr
	forget    []gobridge.LedgerKey
	arrivals  []*redrive // confirmed; their entries are to be deleted
}

func newRoute(spec *gobridge.RouteSpec, bindings []*binding, dlq gobridge.DLQ, ledger gobridge.Ledger, m *routeMetrics, log *slog.Logger) *route {
	n := spec.Policy.MaxInFlight
	r := &route{
		id: spec.ID, spec: spec, sourceID: spec.ReceiverID, log: log, m: m, bindings: bindings, dlq: dlq, ledger: ledger,
		wake:     make(chan struct{}, 1),
		emptying: newEmptying(),
		works:    make([]work, n),
		legs:     make([]leg, n*len(bindings)),
		free:     make([]uint32, n),
	}
	for i := range r.free {
		r.free[i] = uint32(n - 1 - i)
	}
	for i := range r.legs {
		r.legs[i].out.Ref = uint32(i)
		r.legs[i].out.Completion = r
		r.legs[i].out.Timeout = spec.Policy.SendTimeout
	}
	if spec.Policy.RateLimit > 0 {
		r.limiter = newLimiter(spec.Policy.RateLimit)
	}
	return r
}

func (r *route) workOf(leg uint32) *work       { return &r.works[int(leg)/len(r.bindings)] }
func (r *route) bindingOf(leg uint32) *binding { return r.bindings[int(leg)%len(r.bindings)] }

// emit is the gobridge.Emit of the route: it takes as many deliveries as it has
// slots for and hands them to the senders.
func (r *route) emit(batch []*gobridge.Delivery) (int, error) {
	now := time.Now()
	r.mu.Lock()
	n := 0
	for n < len(batch) && r.emptying.mode == flowing && len(r.free) > 0 {
		if r.limiter != nil {
			if wait := r.limiter.take(now); wait > 0 {
				r.wakeAt(now.Add(wait))
				break
			}
		}
		r.admit(batch[n], now)
		n++
	}
	r.backlogged = n < len(batch)
	r.unlockAndWrite()
	return n, nil
}

// admit gives a delivery a slot and takes its first step. Called with mu held.
func (r *route) admit(d *gobridge.Delivery, now time.Time) {
	slot := r.free[len(r.free)-1]
	r.free = r.free[:len(r.free)-1]
	r.seq++
	w := &r.works[slot]
	*w = work{d: d, at: now, seq: r.seq, open: len(r.bindings), deadline: r.deadline(&d.Envelope)}
	if d.Record == nil {
		r.m.received.Inc()
	}
	env := &d.Envelope
	for i := range r.bindings {
		ref := slot*uint32(len(r.bindings)) + uint32(i)
		l := &r.legs[ref]
		out := l.out
		*l = leg{out: out, first: now}
		l.out.Envelope, l.out.Address, l.out.Slot = env, "", 0
		if d.Record != nil {
			l.out.Address = d.Record.Address
		}
		r.route(ref, now)
	}
}

// route takes the first step of a leg: it resolves the address and hands the message
// over, or decides why not. Called with mu held.
func (r *route) route(ref uint32, now time.Time) {
	l, b, w := &r.legs[ref], r.bindingOf(ref), r.workOf(ref)
	if l.out.Address == "" {
		addr, err := b.template.Render(l.out.Envelope)
		if err != nil && w.d.Unwanted == nil {
			r.failed(ref, err, now)
			return
		}
		l.out.Address = addr
	}
	switch {
	case w.d.Unwanted != nil:
		l.lastErr = w.d.Unwanted
		r.giveUp(ref, gobridge.CategorySubscriptionRemoved)
	case l.out.Envelope.Hops >= r.spec.Policy.MaxHops:
		r.failed(ref, &gobridge.Error{
			Code: gobridge.CodeHopLimit, Class: gobridge.ClassRejected,
			Op: "message has crossed as many bridges as max_hops allows", Hint: "look for a loop, or raise policy.max_hops",
		}, now)
	case w.expired(now):
		r.expire(ref, now)
	case len(b.held) > 0 || b.down(now):
		r.hold(ref, now)
	default:
		r.send(ref, now)
	}
}

func (r *route) deadline(e *gobridge.Envelope) time.Time {
	at := e.ExpiresAt
	if age := r.spec.Policy.MaxAge; age > 0 {
		if old := e.CreatedAt.Add(age); at.IsZero() || old.Before(at) {
			at = old
		}
	}
	return at
}

// sheddable reports whether nothing but this process has the message and nobody
// was promised anything.
func (w *work) sheddable() bool { return w.d.Envelope.QoS == 0 && !w.d.Redeliverable }

func (w *work) expired(now time.Time) bool { return !w.deadline.IsZero() && !now.Before(w.deadline) }

// send hands a leg to its sender. Called with mu held.
func (r *route) send(ref uint32, now time.Time) {
	l, b := &r.legs[ref], r.bindingOf(ref)
	l.state = legSending
	err := b.sender.Send(&l.out)
	if err != nil {
		l.state = legIdle
		r.failed(ref, err, now)
		return
	}
	b.dirty = true
	l.sends++
	if l.sends > 1 {
		b.m.retries.Inc()
	}
	seq := r.workOf(ref).seq
	if seq > b.newest {
		b.newest = seq
	} else if l.ownFault && !l.reordered {
		l.reordered = true
		b.m.reordered.Inc()
	}
}

// Done is the outcome of a send. Part of gobridge.Completion.
func (r *route) Done(m *gobridge.Outbound, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.reclaim(m.Ref) {
		return
	}
	l := &r.legs[m.Ref]
	if err == nil {
		b := r.bindingOf(m.Ref)
		b.m.sent.Inc()
		b.lastErr, b.outages = "", 0
		l.lastErr = nil
		r.done(m.Ref)
	} else {
		r.failed(m.Ref, err, time.Now())
	}
}

// Flush ends a burst of outcomes: freed slots are offered to the receiver, and
// what was settled or sent goes out. Part of gobridge.Completion.
func (r *route) Flush() {
	r.mu.Lock()
	r.unlockAndFlush()
}

// unlockAndFlush ends a step: it releases mu, pushes out what the step buffered
// in senders and receiver, and lets the receiver offer again when the step made
// room for what it keeps.
func (r *route) unlockAndFlush() {
	resume := r.backlogged && len(r.free) > 0 && r.emptying.mode == flowing
	if resume {
		r.backlogged = false
	}
	receiver := r.unlockAndWrite()
	if resume {
		receiver.Resume()
	}
}

// unlockAndWrite releases mu and pushes out what was buffered.
func (r *route) unlockAndWrite() gobridge.Receiver {
	var one gobridge.Sender
	var more []gobridge.Sender
	for _, b := range r.bindings {
		if b.dirty {
			b.dirty = false
			if one == nil {
				one = b.sender
			} else {
				more = append(more, b.sender)
			}
		}
	}
	receiver := r.receiver
	acked := r.acked
	r.acked = false
	r.mu.Unlock()
	if one != nil {
		one.Flush()
	}
	for _, s := range more {
		s.Flush()
	}
	if acked {
		receiver.Flush()
	}
	return receiver
}

// done finishes a leg; the last one settles the delivery. Called with mu held.
func (r *route) done(ref uint32) {
	l, w := &r.legs[ref], r.workOf(ref)
	l.state = legDone
	if l.charged {
		l.charged = false
		r.forget = append(r.forget, gobridge.LedgerKey{RouteID: r.id, EnvelopeID: w.d.Envelope.ID})
		r.startClerk()
	}
	w.open--
	r.conclude(ref)
}

// conclude settles a delivery, or leaves it to its source, once its last leg has
// ended. Called with mu held.
func (r *route) conclude(ref uint32) {
	w := r.workOf(ref)
	if w.open > w.back {
		return
	}
	switch {
	case w.back > 0:
		r.returnWork(ref)
	case w.redrive != nil:
		r.arrived(w.redrive, causeOf(r.legs[ref].lastErr))
	default:
		w.d.Ack()
		r.acked = true
		r.m.latency.Observe(int64(time.Since(w.d.ReceivedAt)))
	}
	w.open = 0
	if w.lost == 0 {
		r.release(ref)
	}
}

// release frees the slot of a leg's delivery. Called with mu held.
func (r *route) release(ref uint32) {
	slot := ref / uint32(len(r.bindings))
	r.works[slot].d = nil
	for i := range r.bindings {
		l := &r.legs[int(slot)*len(r.bindings)+i]
		l.state, l.out.Envelope, l.lastErr = legIdle, nil, nil
	}
	r.free = append(r.free, slot)
}

func (r *route) inFlight() int { return len(r.works) - len(r.free) }
