package mqtt

import (
	"context"
	"sync"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/metric"
	"github.com/gobridge/gobridge/transport/mqtt/wire"
)

const (
	// pumpAt is the queue length from which messages are offered before the burst
	// ends, so that a burst does not shed QoS 0 that the route has room for.
	pumpAt = 64
	// offerBatch is the largest number of deliveries in one call of emit.
	offerBatch = 256
)

// router is the part of inbound that offers deliveries to the route. One
// admission budget of receive_maximum entries covers everything that waits. Its
// fields stand under inbound's mutex.
type router struct {
	filters []string // without $share/<group>/
	grace   time.Duration
	// withheld: nothing is offered and nothing acknowledged, because which filters the
	// broker has is not known yet. removed are those that nobody wants any more, and
	// mayRemove says that their messages may be offered as unwanted (removed.go).
	withheld  bool
	removed   []removedFilter
	mayRemove bool
	// timer fires when the oldest unmatched delivery has waited for grace.
	timer    *time.Timer
	recovery *recovery // makes the broker send again what was given back

	emit      gobridge.Emit
	received  bool // a receiver has been running
	idle      sync.Cond
	pumping   bool
	full      bool // the route took less than it was offered and has not called Resume
	queue     fifo[*delivery]
	offer     fifo[*delivery] // taken from queue for the next call of emit; belongs to the pumping goroutine
	offered   int             // length of offer, for the admission budget
	batch     []*gobridge.Delivery
	zeros     int   // QoS 0 deliveries in queue
	bytes     int64 // payload and metadata of the deliveries in queue
	unmatched fifo[*delivery]
	dropLog   repeated
	refuseLog repeated
}

// route takes one message that keeps the limits. The error says that the session
// must stop, because the message may neither be offered nor dropped. Called with mu
// held.
func (in *inbound) route(p *wire.Publish) error {
	matched, removed := in.withheld, (*removedFilter)(nil)
	if !matched {
		matched, removed = in.fate(stringOf(p.Topic))
	}
	switch {
	case removed != nil && !in.mayRemove:
		return cannotKeep(in.session, removed.verdict)
	case p.QoS == 0 && !matched && removed == nil:
		in.count.unmatchedDropped.Inc()
		return nil
	}
	size := int64(len(p.Payload)+p.MetadataBytes) + deliveryOverhead
	if !in.makeRoom(p, size) {
		return nil
	}
	d := &delivery{in: in, id: p.PacketID, qos: p.QoS, size: size, place: gone}
	d.ReceivedAt = time.Now()
	if dropped := fillEnvelope(&d.Envelope, p, in.identity, d.ReceivedAt); dropped > 0 {
		in.count.headerDropped.Add(uint64(dropped))
	}
	d.Redeliverable = p.QoS > 0 && in.durable
	d.SetSettler(d)
	if p.QoS > 0 {
		in.held += size
		in.attach(d)
	}
	switch {
	case removed != nil:
		d.Unwanted = removed.verdict
	case !matched:
		in.park(d)
		return nil
	}
	if in.emit == nil {
		in.count.buffered.Inc()
	}
	in.push(d)
	return nil
}

// park keeps a delivery that no filter covers for the grace. Called with mu held.
func (in *inbound) park(d *delivery) {
	in.unmatched.push(d)
	if in.unmatched.len() == 1 {
		in.timer.Reset(in.grace)
	}
}

func (in *inbound) push(d *delivery) {
	in.queue.push(d)
	in.bytes += d.size
	if d.qos == 0 {
		in.zeros++
	}
}

// waiting is the number of deliveries under the admission budget. Called with mu
// held.
func (in *inbound) waiting() int { return in.queue.len() + in.offered + in.unmatched.len() }

// makeRoom applies the bounds of the router. It reports false when the message
// is not to be kept. Called with mu held.
func (in *inbound) makeRoom(p *wire.Publish, size int64) bool {
	pending := in.emit == nil || in.withheld
	if p.QoS == 0 {
		switch {
		case in.waiting() >= in.window:
			in.dropZero("admission budget: receive_maximum deliveries wait for the route")
			return false
		case pending && in.bytes+size > PendingBytesLimit:
			in.dropZero("pending byte ceiling: no receiver is running")
			return false
		}
		return true
	}
	// QoS 1 and 2 take the place of waiting QoS 0, oldest first.
	if in.waiting() >= in.window {
		in.evictZero("admission budget: QoS 1 and 2 need the room")
	}
	for pending && in.bytes+size > PendingBytesLimit && in.evictZero("pending byte ceiling: QoS 1 and 2 need the room") {
	}
	if in.received || in.withheld || in.held == 0 || in.held+size <= in.budget {
		return true
	}
	// Nothing settles before a receiver exists, so nothing would ever make room
	// again (V1).
	in.count.overflowDropped.Inc()
	if n, ok := in.dropLog.allow(time.Now()); ok {
		in.log.Error("ingress memory budget is spent before a receiver runs: QoS 1 and 2 messages are acknowledged and dropped",
			"held_bytes", in.held, "times", n)
	}
	in.discard(p)
	return false
}

// evictZero drops the oldest waiting QoS 0 delivery. Called with mu held.
func (in *inbound) evictZero(bound string) bool {
	if in.zeros == 0 {
		return false
	}
	evicted := false
	in.queue.filter(func(d *delivery) bool {
		if evicted || d.qos > 0 {
			return true
		}
		evicted = true
		in.unqueue(d)
		return false
	})
	in.dropZero(bound)
	return true
}

// unqueue accounts for a delivery that leaves the queue.
func (in *inbound) unqueue(d *delivery) {
	in.bytes -= d.size
	if d.qos == 0 {
		in.zeros--
	}
}

func (in *inbound) dropZero(bound string) {
	in.count.routerDropped.Inc()
	if n, ok := in.dropLog.allow(time.Now()); ok {
		in.log.Warn("QoS 0 message dropped", "bound", bound, "times", n)
	}
}

// matches reports whether a wanted filter covers the topic. Topics that start
// with $ are covered only by filters that do.
func (in *inbound) matches(topic string) bool {
	for _, f := range in.filters {
		if covers(f, topic) {
			return true
		}
	}
	return false
}

func covers(filter, topic string) bool {
	return filter == "#" && topic[0] != '$' || gobridge.MatchTopic(filter, topic)
}

// expireUnmatched acknowledges and drops the deliveries that no filter has
// matched for the whole grace.
func (in *inbound) expireUnmatched() {
	in.mu.Lock()
	dropped := 0
	for in.unmatched.len() > 0 {
		d := *in.unmatched.at(0)
		if left := in.grace - time.Since(d.ReceivedAt); left > 0 {
			in.timer.Reset(left)
			break
		}
		in.unmatched.pop()
		dropped++
		in.count.unmatchedDropped.Inc()
		d.settled = true
		switch d.place {
		case attached:
			in.acknowledge()
		case gone:
			in.held -= d.size
		}
	}
	c, reader := in.c, in.unpause()
	in.mu.Unlock()
	if dropped > 0 {
		in.log.Warn("messages that no subscription matches were acknowledged and dropped", "count", dropped)
	}
	if reader != nil {
		reader.resume()
	}
	if c != nil {
		c.flush()
	}
}

// Run offers deliveries to emit until ctx ends. Part of gobridge.Receiver.
func (in *inbound) Run(ctx context.Context, emit gobridge.Emit) error {
	in.mu.Lock()
	in.emit, in.received, in.full = emit, true, false
	in.mu.Unlock()
	in.pump()
	<-ctx.Done()
	in.mu.Lock()
	defer in.mu.Unlock()
	in.emit = nil
	in.awaitIdle()
	return nil
}

// awaitIdle waits for the call of emit that is under way. Called with mu held.
func (in *inbound) awaitIdle() {
	for in.pumping {
		in.idle.Wait()
	}
}

// Resume offers again what the route had no room for. Part of gobridge.Receiver.
func (in *inbound) Resume() {
	in.mu.Lock()
	in.full = false
	in.mu.Unlock()
	in.pump()
}

// Flush sends the acknowledgements that settlements have buffered. Part of
// gobridge.Receiver.
func (in *inbound) Flush() {
	in.mu.Lock()
	c := in.c
	in.mu.Unlock()
	if c != nil {
		c.flush()
	}
}

// pump offers what waits to the route, in order, as far as it takes it. The
// caller holds no lock. Calls of emit never overlap: a second caller leaves
// what waits to the first, which looks again before it goes.
func (in *inbound) pump() {
	in.mu.Lock()
	if in.pumping {
		in.mu.Unlock()
		return
	}
	in.pumping = true
	for in.emit != nil && !in.full && !in.draining && !in.withheld && !in.stopped {
		for in.queue.len() > 0 && in.offer.len() < offerBatch {
			d := in.queue.pop()
			in.unqueue(d)
			in.offer.push(d)
		}
		in.offered = in.offer.len()
		if in.offered == 0 {
			break
		}
		for i := range in.offered {
			in.batch = append(in.batch, &(*in.offer.at(i)).Delivery)
		}
		emit := in.emit
		in.full = true // before the call, so that a Resume during it is not overwritten
		in.mu.Unlock()
		n, err := emit(in.batch)
		in.mu.Lock()
		if n == len(in.batch) || err != nil {
			in.full = false
		}
		clear(in.batch)
		in.batch = in.batch[:0]
		in.offer.drop(n)
		if err != nil && in.offer.len() > 0 {
			in.refuse(in.offer.pop(), err)
		}
		in.offered = in.offer.len()
	}
	in.pumping = false
	in.idle.Broadcast()
	reader := in.unpause()
	in.mu.Unlock()
	if reader != nil {
		reader.resume()
	}
}

// refuse deals with a delivery that the route cannot work on. Called with mu
// held.
func (in *inbound) refuse(d *delivery, err error) {
	times, log := in.refuseLog.allow(time.Now())
	if d.Redeliverable && d.place != gone {
		in.count.emitRejected[metric.EmitRecovering].Inc()
		if log {
			in.log.Warn("route refused a delivery: the broker is asked to send it again", "err", err, "times", times)
		}
		in.leave(d, err)
		return
	}
	in.count.emitRejected[metric.EmitLost].Inc()
	if log {
		in.log.Warn("route refused a delivery that nothing delivers again: it is lost", "err", err, "times", times)
	}
	if d.qos > 0 {
		d.settled = true
		if d.place == attached {
			in.acknowledge()
		} else {
			in.held -= d.size
		}
	}
}

// hold stops the offering of deliveries and waits for the call of emit that is under
// way; what waits in the router is dropped. QoS 1 and 2 stay unacknowledged, and the
// broker sends them again over the next connection; QoS 0 is lost. Until release,
// what the broker sends is treated alike.
func (in *inbound) hold(ctx context.Context) error {
	in.mu.Lock()
	in.draining = true
	if in.paused {
		in.paused = false
		in.c.resume() // to read what else the broker has to say
	}
	for in.pumping {
		stop := context.AfterFunc(ctx, func() {
			in.mu.Lock()
			defer in.mu.Unlock()
			in.idle.Broadcast()
		})
		in.idle.Wait()
		stop()
		if in.pumping && ctx.Err() != nil {
			in.mu.Unlock()
			return context.Cause(ctx)
		}
	}
	in.drop()
	in.mu.Unlock()
	return nil
}

// release ends hold: what the broker sends from now on is offered.
func (in *inbound) release() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.draining, in.full = false, false
}

// drop empties the router. Called with mu held.
func (in *inbound) drop() {
	in.timer.Stop()
	in.count.stalePurged.Add(uint64(in.waiting()))
	for _, q := range []*fifo[*delivery]{&in.offer, &in.queue, &in.unmatched} {
		for q.len() > 0 {
			if d := q.pop(); d.qos > 0 && !d.settled {
				in.abandon(d)
			}
		}
	}
	in.offered, in.zeros, in.bytes = 0, 0, 0
}

// purge drops what no route has taken, at the end of the session.
func (in *inbound) purge() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.emit = nil
	in.awaitIdle()
	in.drop()
}
