package mqtt

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/transport/mqtt/wire"
)

const (
	// safetyNet bounds a send for which nobody set a timeout.
	safetyNet = 60 * time.Second
	// maxUnsent is how many bytes of publishes may wait in the connection's buffer
	// before the next ones wait outside of it. It paces the resends after a reconnect.
	maxUnsent = 1 << 20
)

// serverLimits are what the CONNACK allows (MQTT v5, 3.2.2.3).
type serverLimits struct {
	receiveMaximum int
	maximumQoS     byte
	retain         bool
	maximumPacket  int // bytes, 0 is no limit
}

// slotState is where the publish of one packet identifier stands.
type slotState uint8

const (
	slotFree     slotState = iota
	slotSent               // PUBLISH sent (or waiting to be sent again), no answer yet
	slotReleased           // QoS 2: PUBREL sent, PUBCOMP awaited
)

// slot is the publish that holds one packet identifier.
type slot struct {
	// m is nil when the sender was told that the message timed out: only the
	// identifier is still in use.
	m        *gobridge.Outbound
	from     *sender
	seq      uint64
	queuedAt int64 // when Send took it
	sentAt   int64 // when it was last transmitted; 0 while it waits to be sent again
	state    slotState
	qos      uint8
	retain   bool
	struck   bool // it timed out once on an earlier connection
}

// queued is a message that waits for the send quota. id is set for one that was
// sent before, on an earlier connection.
type queued struct {
	m      *gobridge.Outbound
	from   *sender
	seq    uint64
	at     int64
	id     uint16
	struck bool
}

// unflushed is a QoS 0 message whose bytes have not all reached the kernel.
type unflushed struct {
	m      *gobridge.Outbound // nil: it timed out
	from   *sender
	seq    uint64
	at     int64
	end    uint64 // offset in the outgoing stream
	struck bool
}

// outcome is one message that has been decided.
type outcome struct {
	m   *gobridge.Outbound
	err error
}

// outbound publishes the messages of a session's senders, in the order of Send,
// over connections that come and go, and reports what became of each.
//
// Nothing here waits: the answers of the broker arrive through ack on the
// goroutine that reads the connection, and deliver reports the outcomes without a
// lock held. Safe for concurrent use.
//
// This is the outbound half of the MQTT session state (MQTT v5, 4.1). It lives in
// memory.
type outbound struct {
	log     *slog.Logger
	count   *counters
	durable bool // open publishes survive a lost connection
	qos2    bool // some sender may publish with QoS 2
	confirm bool // some sender publishes with more than QoS 0, and on_qos_downgrade is fail
	// wake asks for deliver to be called from a goroutine that holds no locks.
	wake func()
	// fence limits when a PUBLISH may be started; nil: always.
	fence *gobridge.Fence
	// timer fires when expire should be called.
	timer *time.Timer

	conn      atomic.Pointer[guardConn]
	available atomic.Pointer[gobridge.Error] // why nothing can be handed over, nil: it can

	mu       sync.Mutex
	c        *guardConn // nil: not connected
	ready    bool       // Send may be called
	closed   bool
	limits   serverLimits
	slots    []slot   // of packet identifier i+1
	free     []uint16 // identifiers below len(slots)+1 that are free
	inflight int      // slots that count against the server's receive maximum
	queue    fifo[queued]
	zero     fifo[unflushed]
	seq      uint64
	flushedTo,
	appended uint64 // offsets in the outgoing stream of c
	progress int64 // when the last acknowledgement came
	wakeAt   int64 // what the timer is set to, 0: not set

	done       []outcome
	spare      []outcome
	flushing   []gobridge.Completion
	delivering bool
	becomeOpen bool // call the notify functions once everything in done is delivered
	notify     []func()
	shut       bool // the fence let nothing pass; expire looks at it again

	// struck holds the ids of messages that timed out once and were handed back; a
	// second time on a fresh connection is charged (B3).
	struck map[string]struct{}

	// swept is set once the broker has let go of the QoS 2 identifiers that an
	// earlier process may have left with it; sweeping while that is under way.
	swept, sweeping bool

	suspect string // id of the message that the last connections were closed over, see blame
	strikes int    // how many of them in a row

	warnedQoS, warnedRetain bool

	pub   wire.Publish
	props []wire.UserProperty
}

// maxStruck bounds the memory of outbound.struck.
const maxStruck = 4096

func newOutbound(durable bool, log *slog.Logger, count *counters, wake func()) *outbound {
	o := &outbound{durable: durable, log: log, count: count, wake: wake, timer: time.NewTimer(time.Hour)}
	o.timer.Stop()
	o.available.Store(gobridge.ErrNotConnected)
	return o
}

// send takes one message, or says why not.
func (o *outbound) send(from *sender, m *gobridge.Outbound) error {
	if e := o.available.Load(); e != nil {
		return e
	}
	if err := gobridge.ValidateTopic(m.Address); err != nil {
		return o.unfit(err)
	}
	now := monotonic()
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.ready || o.c == nil {
		return gobridge.ErrNotConnected
	}
	if o.fence != nil && o.fenced(now) {
		return gobridge.ErrLeaseLost
	}
	qos, retain := o.rules(from, m.Envelope)
	if err := o.encode(m, qos, retain); err != nil {
		return o.unfit(err)
	}
	o.seq++
	q := queued{m: m, from: from, seq: o.seq, at: now, struck: o.wasStruck(m)}
	if o.queue.len() > 0 || !o.room(qos) {
		o.queue.push(q)
	} else if !o.transmit(q, qos, retain, now) {
		return gobridge.ErrNotConnected
	}
	o.armFor(now + timeoutOf(m, from))
	return nil
}

func (o *outbound) unfit(err error) error {
	o.count.publishFailures.Get(string(gobridge.AsError(err).Code)).Inc()
	return err
}

// wasStruck reports and forgets that the message timed out once before.
func (o *outbound) wasStruck(m *gobridge.Outbound) bool {
	if len(o.struck) == 0 {
		return false
	}
	_, ok := o.struck[m.Envelope.ID]
	delete(o.struck, m.Envelope.ID)
	return ok
}

// room reports whether a publish of that QoS may be transmitted now.
func (o *outbound) room(qos uint8) bool {
	if o.appended >= o.flushedTo+maxUnsent {
		return false
	}
	return qos == 0 || o.inflight < o.limits.receiveMaximum
}

// rules applies the sender's options and the server's limits.
func (o *outbound) rules(from *sender, e *gobridge.Envelope) (qos uint8, retain bool) {
	qos, retain = from.qos.Of(e.QoS), from.retain.Of(e.Retain)
	if qos > o.limits.maximumQoS {
		qos = o.limits.maximumQoS
		if !o.warnedQoS {
			o.warnedQoS = true
			o.log.Warn("broker limits the QoS of publishes: messages are sent with less than configured", "maximum_qos", qos)
		}
	}
	if retain && !o.limits.retain {
		retain = false
		if !o.warnedRetain {
			o.warnedRetain = true
			o.log.Warn("broker does not keep retained messages: the retain flag is cleared")
		}
	}
	return qos, retain
}

// encode prepares o.pub and o.props for the message, without its packet
// identifier, and checks the size of the packet.
func (o *outbound) encode(m *gobridge.Outbound, qos uint8, retain bool) error {
	var now time.Time
	if !m.Envelope.ExpiresAt.IsZero() {
		now = time.Now()
	}
	var err error
	if o.props, err = fillPublish(&o.pub, o.props[:0], m.Envelope, m.Address, now); err != nil {
		return err
	}
	o.pub.QoS, o.pub.Retain = qos, retain
	size, err := wire.PublishSize(&o.pub, o.props)
	if err != nil {
		return &gobridge.Error{Code: gobridge.CodePayloadTooLarge, Class: gobridge.ClassRejected, Op: "publish", Err: err}
	}
	if limit := o.limits.maximumPacket; limit > 0 && size > limit {
		return &gobridge.Error{
			Code: gobridge.CodePayloadTooLarge, Class: gobridge.ClassRejected,
			Op:   "publish",
			Err:  &oversizeError{Packet: wire.TypeName(wire.PUBLISH), Size: size, Max: limit},
			Hint: "the broker takes no larger packets",
		}
	}
	return nil
}

// transmit writes what encode prepared. It reports false when the connection is
// closing; nothing was written then. Called with mu held.
func (o *outbound) transmit(q queued, qos uint8, retain bool, now int64) bool {
	id := q.id
	if qos > 0 && id == 0 {
		id = o.allocate()
	}
	o.pub.PacketID = id
	written := false
	o.appended = o.c.append(func(dst []byte) []byte {
		before := len(dst)
		dst, _ = wire.AppendPublish(dst, &o.pub, o.props) // its only error is that of PublishSize
		if q.id != 0 {
			wire.SetDup(dst[before:])
		}
		written = true
		return dst
	})
	if !written {
		if q.id == 0 && qos > 0 {
			o.slots[id-1] = slot{}
			o.free = append(o.free, id)
		}
		return false
	}
	if qos == 0 {
		o.zero.push(unflushed{m: q.m, from: q.from, seq: q.seq, at: q.at, end: o.appended, struck: q.struck})
		return true
	}
	o.slots[id-1] = slot{
		m: q.m, from: q.from, seq: q.seq, queuedAt: q.at, sentAt: now,
		state: slotSent, qos: qos, retain: retain, struck: q.struck,
	}
	o.inflight++
	return true
}

// allocate returns a free packet identifier. The window is never larger than
// the number of identifiers, and identifiers of timed out publishes count
// against it, so there always is one.
func (o *outbound) allocate() uint16 {
	if n := len(o.free); n > 0 {
		id := o.free[n-1]
		o.free = o.free[:n-1]
		return id
	}
	o.slots = append(o.slots, slot{})
	return uint16(len(o.slots))
}

// fill transmits what waits, as far as the quota allows. Called with mu held.
func (o *outbound) fill(now int64) {
	if o.fence != nil && o.queue.len() > 0 && o.fenced(now) {
		o.fenceOff()
		return
	}
	for o.queue.len() > 0 && o.c != nil {
		q := *o.queue.at(0)
		var qos uint8
		var retain bool
		if q.id != 0 {
			s := &o.slots[q.id-1]
			qos, retain = s.qos, s.retain
		} else {
			qos, retain = o.rules(q.from, q.m.Envelope)
		}
		if !o.room(qos) {
			return
		}
		if err := o.encode(q.m, qos, retain); err != nil { // a smaller limit than at Send
			o.queue.pop()
			if q.id != 0 {
				o.giveUp(q.id, now)
			}
			o.finish(q.m, err)
			continue
		}
		if !o.transmit(q, qos, retain, now) {
			return
		}
		o.queue.pop()
	}
}

// ack takes an answer of the broker.
func (o *outbound) ack(c *guardConn, a wire.Ack) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if c != o.c {
		return
	}
	var s *slot
	if int(a.ID) <= len(o.slots) && o.slots[a.ID-1].state != slotFree {
		s = &o.slots[a.ID-1]
	}
	switch {
	case a.Type == wire.PUBREC && (s == nil || s.qos != 2):
		if a.Reason < reasonFailure {
			c.append(func(dst []byte) []byte {
				return wire.AppendAck(dst, wire.PUBREL, a.ID, wire.ReasonPacketIDNotFound)
			})
		}
	case o.sweeping:
		if a.Type == wire.PUBCOMP && a.ID == maxOpen {
			o.swept, o.sweeping = true, false
			o.becomeOpen = true
		}
	case s == nil || s.sentAt == 0: // late, or for a publish not sent again yet
	case a.Type == wire.PUBACK && s.qos == 1, a.Type == wire.PUBREC && a.Reason >= reasonFailure && s.state == slotSent:
		o.answered(a, s)
	case a.Type == wire.PUBREC:
		s.state = slotReleased
		c.append(func(dst []byte) []byte { return wire.AppendAck(dst, wire.PUBREL, a.ID, wire.ReasonSuccess) })
	case a.Type == wire.PUBCOMP && s.state == slotReleased:
		// The broker took the message with its PUBREC: that it no longer knows the
		// identifier only says that it has completed before.
		a.Reason = wire.ReasonSuccess
		o.answered(a, s)
	}
}

// reasonFailure is the lowest reason code that is a failure (MQTT v5, 2.4).
const reasonFailure = 0x80

// answered ends the publish of slot s.
func (o *outbound) answered(a wire.Ack, s *slot) {
	now := monotonic()
	o.progress = now
	if s.m != nil {
		if a.Reason >= reasonFailure {
			o.finish(s.m, publishRefused(a.Reason, string(a.ReasonString), s.from.throttle))
		} else {
			o.count.publishLatency.Observe(now - s.queuedAt)
			o.done = append(o.done, outcome{m: s.m})
		}
	}
	o.release(a.ID)
	o.fill(now)
}

// release frees a packet identifier that counted against the quota.
func (o *outbound) release(id uint16) {
	o.slots[id-1] = slot{}
	o.free = append(o.free, id)
	o.inflight--
}

// finish decides a message that was not confirmed. Called with mu held.
func (o *outbound) finish(m *gobridge.Outbound, err error) {
	o.count.publishFailures.Get(string(gobridge.AsError(err).Code)).Inc()
	o.done = append(o.done, outcome{m, err})
}

// flushed takes note that the first total bytes of the stream have reached the
// kernel: QoS 0 messages among them are done.
func (o *outbound) flushed(c *guardConn, total uint64) {
	o.mu.Lock()
	if c != o.c || total <= o.flushedTo {
		o.mu.Unlock()
		return
	}
	o.flushedTo = total
	for o.zero.len() > 0 && o.zero.at(0).end <= total {
		if z := o.zero.pop(); z.m != nil {
			o.done = append(o.done, outcome{m: z.m})
		}
	}
	waiting := o.queue.len()
	if waiting > 0 {
		o.fill(monotonic())
	}
	wrote := o.queue.len() < waiting
	wake := len(o.done) > 0 && !o.delivering
	o.mu.Unlock()
	if wrote {
		c.flush()
	}
	if wake {
		o.wake()
	}
}

// flush sends what is buffered.
func (o *outbound) flush() {
	if c := o.conn.Load(); c != nil {
		c.flush()
	}
}

// deliver reports the outcomes, in order, each exactly once, and then tells the
// users that the senders are available where that has become so. The caller
// holds no lock. Calls do not overlap: one that finds another at work leaves the
// outcomes to it.
func (o *outbound) deliver() {
	o.mu.Lock()
	if o.delivering {
		o.mu.Unlock()
		return
	}
	o.delivering = true
	for {
		if len(o.done) == 0 {
			if !o.becomeOpen {
				break
			}
			o.becomeOpen = false
			if o.c == nil || o.closed {
				break
			}
			o.ready = true
			o.available.Store(nil)
			notify := o.notify
			o.mu.Unlock()
			for _, f := range notify {
				f()
			}
			o.mu.Lock()
			continue
		}
		batch := o.done
		o.done = o.spare[:0]
		o.mu.Unlock()
		o.report(batch)
		clear(batch)
		if cap(batch) > keepItems {
			batch = nil
		}
		o.mu.Lock()
		o.spare = batch[:0]
	}
	o.delivering = false
	o.mu.Unlock()
}

// report calls Done for each outcome and then Flush once for each completion.
func (o *outbound) report(batch []outcome) {
	o.flushing = o.flushing[:0]
	var last gobridge.Completion
	for i := range batch {
		m := batch[i].m
		c := m.Completion // m belongs to its owner again after Done
		c.Done(m, batch[i].err)
		if c == last {
			continue
		}
		last = c
		known := false
		for _, f := range o.flushing {
			known = known || f == c
		}
		if !known {
			o.flushing = append(o.flushing, c)
		}
	}
	for _, c := range o.flushing {
		c.Flush()
	}
	clear(o.flushing)
}

// bytesOf returns the bytes of s without copying them: to be read only.
func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }

// started is the zero of monotonic.
var started = time.Now()

// monotonic is a time in nanoseconds that no clock change moves; never 0.
func monotonic() int64 { return int64(time.Since(started)) + 1 }

// stringOf returns the string of b without copying it, valid as long as b is not
// changed.
func stringOf(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
