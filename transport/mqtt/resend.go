package mqtt

import (
	"math"
	"slices"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/transport/mqtt/wire"
)

// This file holds what outbound does when connections come and go, and when time
// passes.

// connected makes c the connection to publish on. With present, the broker still
// has the session: open publishes go out again, in their original order and with
// DUP set [MQTT-4.4.0-1], before anything newer. Without, they are handed back
// (B4). The senders become available, in deliver, once that is decided.
func (o *outbound) connected(c *guardConn, limits serverLimits, present bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return
	}
	limits.receiveMaximum = min(limits.receiveMaximum, maxOpen)
	o.c, o.limits = c, limits
	o.conn.Store(c)
	o.flushedTo, o.appended = 0, 0
	now := monotonic()
	o.progress = now
	switch {
	case o.confirm && limits.maximumQoS == 0:
		// A publish could not be confirmed, and its source would be told that it was.
		if !present || !o.durable {
			o.handBack(gobridge.ErrConnectionLost)
		}
		o.available.Store(&gobridge.Error{
			Code: gobridge.CodeQoSNotSupported, Class: gobridge.ClassTransient, Outage: true,
			Op:   "the broker takes QoS 0 only, which confirms nothing",
			Hint: "lift its cap, or set on_qos_downgrade: accept, or the sender's qos: 0",
		})
	case present && o.qos2 && !o.swept:
		o.sweep()
	case present:
		o.resend(now)
		o.becomeOpen = true
	default:
		o.handBack(gobridge.ErrConnectionLost)
		o.swept, o.becomeOpen = true, true
	}
	o.arm(now)
}

// maxOpen bounds the publishes that are open at once, and with them the packet
// identifiers in use: identifiers are taken from the lowest up.
const maxOpen = 4096

// sweep makes the broker let go of every QoS 2 publish that an earlier process
// left between PUBREC and PUBREL. Without it a new message under such an
// identifier would be taken for a repetition of the old one and thrown away
// [MQTT-4.3.3-10]. What the broker held is delivered now; the source delivers it
// again, as after any crash. Nothing is published before the last PUBCOMP;
// unknown identifiers are answered with 0x92, which is no fault. Called with mu
// held.
func (o *outbound) sweep() {
	o.sweeping = true
	o.available.Store(&gobridge.Error{
		Code: gobridge.CodeUnavailable, Class: gobridge.ClassTransient, Outage: true,
		Op: "waiting for the broker to release the packet identifiers of an earlier process",
	})
	o.c.append(func(dst []byte) []byte {
		for id := range maxOpen {
			dst = wire.AppendAck(dst, wire.PUBREL, uint16(id+1), wire.ReasonSuccess)
		}
		return dst
	})
}

// resend puts the open publishes in front of what waits. Called with mu held.
func (o *outbound) resend(now int64) {
	o.inflight = 0
	var released, again []queued
	for i := range o.slots {
		s, id := &o.slots[i], uint16(i+1)
		switch {
		case s.state == slotFree:
			continue
		case s.m == nil && s.qos == 1:
			// The sender was told long ago. The broker keeps nothing about a QoS 1 publish,
			// and a late answer cannot come on another connection.
			*s = slot{}
			o.free = append(o.free, id)
		case s.m == nil || s.state == slotReleased:
			released = append(released, queued{seq: s.seq, id: id})
		default:
			s.sentAt = 0
			again = append(again, queued{m: s.m, from: s.from, seq: s.seq, at: s.queuedAt, id: id, struck: s.struck})
		}
	}
	// The broker passes a QoS 2 message on when its PUBREL comes: in order
	// [MQTT-4.6.0-4].
	slices.SortFunc(released, bySeq)
	for _, q := range released {
		o.forget(q.id, now)
	}
	slices.SortFunc(again, bySeq)
	if n := len(again); n > 0 {
		o.log.Info("resending open publishes", "count", n)
	}
	for o.queue.len() > 0 {
		if q := o.queue.pop(); q.id == 0 {
			again = append(again, q)
		}
	}
	o.queue = fifo[queued]{items: again}
	o.fill(now)
}

// giveUp ends a publish that waits to be sent again. Called with mu held.
func (o *outbound) giveUp(id uint16, now int64) {
	s := &o.slots[id-1]
	if s.qos == 1 {
		*s = slot{}
		o.free = append(o.free, id)
		return
	}
	s.m = nil
	o.forget(id, now)
}

// forget makes the broker forget the identifier of a QoS 2 publish, whether or
// not it has seen the PUBLISH: PUBREL ends both. Called with mu held.
func (o *outbound) forget(id uint16, now int64) {
	s := &o.slots[id-1]
	s.state, s.sentAt = slotReleased, now
	o.inflight++
	o.c.append(func(dst []byte) []byte { return wire.AppendAck(dst, wire.PUBREL, id, wire.ReasonSuccess) })
}

func bySeq(a, b queued) int {
	if a.seq < b.seq {
		return -1
	}
	return 1
}

// lost takes note that the connection c has gone. QoS 0 messages that had not
// left are handed back, and everything is where the session ends with its
// connection.
func (o *outbound) lost(c *guardConn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if c != o.c {
		return
	}
	o.c, o.ready, o.becomeOpen, o.sweeping, o.shut = nil, false, false, false, false
	o.conn.Store(nil)
	if !o.closed {
		o.available.Store(gobridge.ErrNotConnected)
	}
	o.disarm()
	if !o.durable {
		o.handBack(gobridge.ErrConnectionLost)
		return
	}
	for o.zero.len() > 0 {
		if z := o.zero.pop(); z.m != nil {
			o.strike(z.m, z.struck)
			o.finish(z.m, gobridge.ErrConnectionLost)
		}
	}
	o.queue.filter(func(q queued) bool {
		if q.id != 0 || q.from.qos.Of(q.m.Envelope.QoS) > 0 {
			return true
		}
		o.strike(q.m, q.struck)
		o.finish(q.m, gobridge.ErrConnectionLost)
		return false
	})
}

// close refuses further messages; end hands back what is open.
func (o *outbound) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed, o.ready, o.becomeOpen = true, false, false
	o.available.Store(gobridge.ErrClosed)
	o.disarm()
}

func (o *outbound) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.c = nil
	o.conn.Store(nil)
	o.handBack(gobridge.ErrClosed)
}

// handBack completes every open message with err, in the order of Send, and
// forgets all packet identifiers. Called with mu held.
func (o *outbound) handBack(err error) {
	var all []queued
	for i := range o.slots {
		if s := &o.slots[i]; s.m != nil && s.sentAt != 0 {
			all = append(all, queued{m: s.m, seq: s.seq, struck: s.struck})
		}
	}
	for o.zero.len() > 0 {
		if z := o.zero.pop(); z.m != nil {
			all = append(all, queued{m: z.m, seq: z.seq, struck: z.struck})
		}
	}
	for o.queue.len() > 0 {
		all = append(all, o.queue.pop())
	}
	slices.SortFunc(all, bySeq)
	for _, q := range all {
		o.strike(q.m, q.struck)
		o.finish(q.m, err)
	}
	o.slots, o.free, o.inflight = nil, nil, 0
}

// strike remembers, for a message that is handed back, that it has timed out
// once.
func (o *outbound) strike(m *gobridge.Outbound, struck bool) {
	if !struck {
		return
	}
	if o.struck == nil || len(o.struck) >= maxStruck {
		o.struck = map[string]struct{}{}
	}
	o.struck[m.Envelope.ID] = struct{}{}
}

// timeoutOf is the bound of one send, in nanoseconds: the stricter one of the
// route and the sender.
func timeoutOf(m *gobridge.Outbound, from *sender) int64 {
	t := m.Timeout
	if from.timeout > 0 && (t == 0 || from.timeout < t) {
		t = from.timeout
	}
	if t == 0 {
		t = safetyNet
	}
	return int64(t)
}

// expire decides the sends whose time is up, on a live connection. It reports
// whether one timed out for the first time: the connection must then be made
// anew, and nothing is charged (B3). The second time, on a fresh connection, the
// message ends with ErrTimeout; its packet identifier stays in use.
func (o *outbound) expire() (stalled bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.wakeAt = 0
	if o.c == nil {
		return false
	}
	now := monotonic()
	next := int64(math.MaxInt64)
	if o.shut {
		if next = now + int64(fenceCheck); !o.fenced(now) {
			o.shut = false
			o.becomeOpen = o.becomeOpen || o.available.Load() == gobridge.ErrLeaseLost
			o.fill(now)
		}
	}
	// decide returns whether the message ends now.
	decide := func(m *gobridge.Outbound, from *sender, since int64, struck *bool) bool {
		deadline := since + timeoutOf(m, from)
		if deadline > now {
			next = min(next, deadline)
			return false
		}
		if *struck {
			return true
		}
		*struck, stalled = true, true
		return false
	}
	var ended []queued
	for i := range o.slots {
		s := &o.slots[i]
		if s.m != nil && s.sentAt != 0 && decide(s.m, s.from, s.sentAt, &s.struck) {
			ended = append(ended, queued{m: s.m, seq: s.seq})
			s.m = nil
		}
	}
	for i := range o.zero.len() {
		if z := o.zero.at(i); z.m != nil && decide(z.m, z.from, z.at, &z.struck) {
			ended = append(ended, queued{m: z.m, seq: z.seq})
			z.m = nil
		}
	}
	// What waits for the quota is late only when the quota does not move.
	waits := func(q *queued) int64 { return max(q.at, o.progress) }
	for i := range o.queue.len() {
		q := o.queue.at(i)
		if o.shut {
			break // what is left waits for the fence, not for the broker
		}
		if decide(q.m, q.from, waits(q), &q.struck) {
			ended = append(ended, *q)
			q.m = nil
		}
		if q.id != 0 {
			o.slots[q.id-1].struck = q.struck
		}
	}
	o.queue.filter(func(q queued) bool { return q.m != nil })
	slices.SortFunc(ended, bySeq)
	for _, q := range ended {
		if q.id != 0 {
			o.giveUp(q.id, now)
		}
		o.finish(q.m, gobridge.ErrTimeout)
	}
	if next != math.MaxInt64 {
		o.armFor(next)
	}
	return stalled
}

// arm sets the timer for the open messages. Called with mu held.
func (o *outbound) arm(now int64) {
	for i := range o.slots {
		if s := &o.slots[i]; s.m != nil && s.sentAt != 0 {
			o.armFor(now + timeoutOf(s.m, s.from))
		}
	}
	for i := range o.queue.len() {
		q := o.queue.at(i)
		o.armFor(now + timeoutOf(q.m, q.from))
	}
}

// armFor makes the timer fire at the given time at the latest. Called with mu
// held.
func (o *outbound) armFor(at int64) {
	if o.wakeAt == 0 || at < o.wakeAt {
		o.wakeAt = at
		o.timer.Reset(time.Duration(at - monotonic()))
	}
}

func (o *outbound) disarm() {
	o.wakeAt = 0
	o.timer.Stop()
}

// fenceCheck is how often a fence that was found shut is looked at again.
const fenceCheck = 100 * time.Millisecond

// fenced reports whether the fence lets no PUBLISH be started: another process may own
// the session (D5). Called with mu held.
func (o *outbound) fenced(now int64) bool {
	if o.fence.Open(started.Add(time.Duration(now))) {
		return false
	}
	o.shut = true
	if o.ready {
		o.ready = false
		o.available.Store(gobridge.ErrLeaseLost)
	}
	o.armFor(now + int64(fenceCheck))
	return true
}

// fenceOff hands back what waits and was never sent. Open publishes of an earlier
// connection keep their places. Called with mu held.
func (o *outbound) fenceOff() {
	o.queue.filter(func(q queued) bool {
		if q.id != 0 {
			return true
		}
		o.strike(q.m, q.struck)
		o.finish(q.m, gobridge.ErrLeaseLost)
		return false
	})
}
