package mqtt

import (
	"bytes"
	"log/slog"
	"sync"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/transport/mqtt/wire"
)

// deliveryOverhead is what a delivery is taken to hold beside its payload and
// metadata, in bytes.
const deliveryOverhead = 512

// attachment says whether a delivery can still be acknowledged to the broker.
type attachment uint8

const (
	// attached: it stands in the ring of the current connection.
	attached attachment = iota
	// detached: its connection is gone and the broker will send it again.
	detached
	// gone: nothing will ever be written for it (QoS 0 is always gone).
	gone
)

// delivery is one message received, and how it is settled. Its fields below the
// identifier stand under the mutex of inbound.
type delivery struct {
	gobridge.Delivery
	in   *inbound
	id   uint16
	qos  byte
	size int64 // bytes it holds

	place   attachment
	settled bool
	dropped bool // acknowledged and dropped on receipt: it has no content
	refused bool // given back: it stays unacknowledged, and the broker must send it again
}

var _ gobridge.Settler = (*delivery)(nil)

// Ack settles the delivery: its acknowledgement goes out in its turn.
func (d *delivery) Ack() {
	if d.qos > 0 {
		d.in.settle(d)
	}
}

// Retry leaves the delivery unacknowledged and asks for a recovery of the session,
// because MQTT cannot give one message back: the broker sends it again over the next
// connection, and it is then a new delivery. The wait is not observed; recoveries keep
// a distance of their own. ErrNotSupported: the broker will not send it again.
func (d *delivery) Retry(_ time.Duration, reason error) error {
	if !d.Redeliverable {
		return gobridge.ErrNotSupported
	}
	return d.in.giveBack(d, reason)
}

// Extend is not supported: MQTT has no deadline for a settlement.
func (d *delivery) Extend(time.Time) error { return gobridge.ErrNotSupported }

// inbound is the receiving half of a session: what came from the broker, in the
// order of receipt, until it is settled and acknowledged in that order
// [MQTT-4.6.0-2]; and the router that offers it to the route (router.go).
//
// At QoS 2 the PUBREC waits for the settlement, because until then the broker still
// owns the message (V2); PUBREL is answered at once.
//
// Safe for concurrent use. No callback runs with mu held.
type inbound struct {
	log      *slog.Logger
	count    *counters
	window   int   // the announced receive maximum
	budget   int64 // bytes of QoS 1 and 2 deliveries, beyond which the reader pauses
	maxBody  int
	durable  bool   // the broker sends unsettled messages again
	identity string // which property names a message
	session  string // id, for people

	mu       sync.Mutex
	c        *guardConn // nil: not connected
	stopped  bool
	arrivals uint64 // PUBLISH packets
	// draining: the connection is about to be made anew. Nothing is offered to the
	// route, and what comes from the broker is not looked at.
	draining bool
	// ring holds the QoS 1 and 2 deliveries of the connection, in order of receipt,
	// from tail to head; its length is a power of two.
	ring       []*delivery
	tail, head uint64
	used       identifiers // of the deliveries in the ring
	// detached are the deliveries of earlier connections, by packet identifier.
	detached map[uint16]*delivery
	// recorded are the QoS 2 identifiers between PUBREC and PUBREL, each with the
	// connection that its PUBREC went out on.
	recorded map[uint16]*guardConn
	held     int64 // bytes of QoS 1 and 2 deliveries
	paused   bool  // admit said no
	warned   struct{ window, pause bool }
	poison   map[string]bool // violation classes that have been logged

	router
}

func newInbound(log *slog.Logger, count *counters) *inbound {
	in := &inbound{
		log: log, count: count,
		detached: map[uint16]*delivery{},
		recorded: map[uint16]*guardConn{},
		poison:   map[string]bool{},
	}
	in.idle.L = &in.mu
	in.timer = time.NewTimer(time.Hour)
	in.timer.Stop()
	return in
}

// connected makes c the connection to acknowledge on. Without present the
// broker has forgotten what it had sent.
func (in *inbound) connected(c *guardConn, present bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.c = c
	if present {
		return
	}
	for _, d := range in.detached {
		in.letGo(d)
	}
	clear(in.detached)
	clear(in.recorded)
}

// lost takes note that the connection c has gone. What was received and not
// acknowledged keeps its place in the route; when the broker sends it again, it
// is found by its identifier and not offered twice (B7).
func (in *inbound) lost(c *guardConn) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if c != in.c {
		return
	}
	in.c, in.paused = nil, false
	for ; in.tail != in.head; in.tail++ {
		d := *in.at(in.tail)
		*in.at(in.tail) = nil
		switch {
		case !in.durable || d.refused || d.dropped:
			in.letGo(d)
		default:
			if old := in.detached[d.id]; old != nil {
				in.letGo(old)
			}
			d.place = detached
			in.detached[d.id] = d
		}
	}
	in.used.clear()
	if !in.durable {
		clear(in.recorded)
	}
}

// letGo gives up the tie of a delivery to the broker. Called with mu held.
func (in *inbound) letGo(d *delivery) {
	d.place = gone
	if d.settled {
		in.countLate(d)
		in.held -= d.size
	}
}

// countLate counts a settlement that no longer reaches the broker, which
// delivers the message again. Called with mu held.
func (in *inbound) countLate(d *delivery) {
	if in.durable && !d.dropped {
		in.count.ackAfterReconnect.Inc()
	}
}

func (in *inbound) at(i uint64) **delivery { return &in.ring[i&uint64(len(in.ring)-1)] }

// unsettled counts the packets that await their protocol settlement. Called with
// mu held.
func (in *inbound) unsettled() int { return int(in.head - in.tail) }

// attach gives a delivery its turn to be acknowledged. Called with mu held.
func (in *inbound) attach(d *delivery) {
	if in.unsettled() == len(in.ring) {
		bigger := make([]*delivery, max(16, 2*len(in.ring)))
		for i := in.tail; i != in.head; i++ {
			bigger[i&uint64(len(bigger)-1)] = *in.at(i)
		}
		in.ring = bigger
	}
	d.place = attached
	*in.at(in.head) = d
	in.head++
	in.used.add(d.id)
}

// settle takes the settlement of a QoS 1 or 2 delivery.
func (in *inbound) settle(d *delivery) {
	in.mu.Lock()
	if d.settled || d.refused {
		in.mu.Unlock()
		return
	}
	d.settled = true
	switch d.place {
	case attached:
		in.acknowledge()
	case gone:
		in.countLate(d)
		in.held -= d.size
	}
	c := in.unpause()
	in.mu.Unlock()
	if c != nil {
		c.resume()
	}
}

// giveBack takes the settlement of a QoS 1 or 2 delivery of a durable session by
// Retry.
func (in *inbound) giveBack(d *delivery, reason error) error {
	in.mu.Lock()
	if d.settled || d.refused {
		in.mu.Unlock()
		return nil
	}
	if err := in.recovery.failure(); err != nil {
		in.mu.Unlock()
		return err
	}
	if d.place == gone {
		in.mu.Unlock()
		return errGivenUpByBroker
	}
	in.leave(d, reason)
	c := in.unpause()
	in.mu.Unlock()
	if c != nil {
		c.resume()
	}
	return nil
}

// errGivenUpByBroker: the broker lost its session since, or gave the message up.
var errGivenUpByBroker = &gobridge.Error{
	Code: gobridge.CodeNotSupported, Class: gobridge.ClassPermanent,
	Op: "the broker no longer has the message, so it cannot be asked for again",
}

// leave leaves a delivery to the broker: it is dispatched anew when the broker sends it
// again, which takes another connection. Where the connection has gone already, the
// next one is enough. Called with mu held.
func (in *inbound) leave(d *delivery, reason error) {
	if d.place == attached {
		in.recovery.request(reason)
	}
	in.abandon(d)
}

// abandon ends the life of a delivery that stays unacknowledged. Called with mu held.
func (in *inbound) abandon(d *delivery) {
	d.refused = true
	in.held -= d.size // nobody holds it any more
	d.size = 0
	if d.place == detached {
		delete(in.detached, d.id)
		d.place = gone
	}
}

// unpause returns the connection whose reader should ask again, nil when none
// waits. Called with mu held.
func (in *inbound) unpause() *guardConn {
	if !in.paused || in.held >= in.budget {
		return nil
	}
	in.paused = false
	return in.c
}

// acknowledge writes the acknowledgements whose turn has come, up to the oldest
// unsettled delivery. Called with mu held.
func (in *inbound) acknowledge() {
	for !in.withheld && in.tail != in.head {
		d := *in.at(in.tail)
		if !d.settled {
			return
		}
		*in.at(in.tail) = nil
		in.tail++
		in.used.remove(d.id)
		in.held -= d.size
		d.place = gone
		typ := wire.PUBACK
		if d.qos == 2 {
			typ = wire.PUBREC
			in.recorded[d.id] = in.c
		}
		in.write(typ, d.id, wire.ReasonSuccess)
	}
}

func (in *inbound) write(typ byte, id uint16, reason byte) {
	in.c.append(func(dst []byte) []byte { return wire.AppendAck(dst, typ, id, reason) })
}

// pubrel answers a PUBREL.
func (in *inbound) pubrel(c *guardConn, id uint16) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if c != in.c {
		return
	}
	reason := wire.ReasonSuccess
	if _, ok := in.recorded[id]; !ok {
		reason = wire.ReasonPacketIDNotFound
	}
	delete(in.recorded, id)
	in.write(wire.PUBCOMP, id, reason)
}

// publish takes one PUBLISH. It reports whether the router should be pumped
// before the burst ends, and whether the packet broke the protocol.
func (in *inbound) publish(c *guardConn, p *wire.Publish) (pump bool, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if c != in.c || in.stopped {
		return false, nil
	}
	in.arrivals++
	if p.QoS > 0 {
		switch known, err := in.again(p); {
		case err != nil:
			return false, err
		case known:
			return false, nil
		}
	}
	if in.draining {
		in.count.stalePurged.Inc()
		return false, nil
	}
	if class := in.violation(p); class != "" {
		in.dropPoison(p, class)
		return false, nil
	}
	if p.QoS > 0 && in.unsettled() >= in.window {
		in.count.windowExceeded.Inc()
		if !in.warned.window {
			in.warned.window = true
			in.log.Warn("broker sends past the receive maximum: its messages are kept while the ingress memory budget has room",
				"receive_maximum", in.window)
		}
	}
	if err := in.route(p); err != nil {
		return false, err
	}
	return !in.full && in.queue.len() >= min(pumpAt, in.window/2+1), nil
}

// again deals with a packet identifier that is known already. Called with mu
// held.
func (in *inbound) again(p *wire.Publish) (known bool, err error) {
	if c, ok := in.recorded[p.PacketID]; ok {
		// Not a new message before its PUBREL [MQTT-4.3.3-10]. What is sent again on a later
		// connection has DUP [MQTT-3.3.1-1]; without it, a broker that came back with an
		// older state of the session has given the identifier to another message.
		if p.QoS == 2 && (p.Dup || c == in.c) {
			in.recorded[p.PacketID] = in.c
			in.write(wire.PUBREC, p.PacketID, wire.ReasonSuccess)
			return true, nil
		}
		delete(in.recorded, p.PacketID) // the broker has forgotten
	}
	if in.used.has(p.PacketID) {
		if p.Dup {
			return true, nil // sent again on a live connection: one answer serves both
		}
		return false, &wire.MalformedError{
			Packet: wire.TypeName(wire.PUBLISH), What: "packet identifier of a message that is not acknowledged yet", Reason: wire.ReasonProtocolError,
		}
	}
	d := in.detached[p.PacketID]
	if d == nil {
		return false, nil
	}
	delete(in.detached, p.PacketID)
	// Without DUP, or with other content, it is another message: the broker has given
	// the first one up (its expiry may have passed) and uses the identifier anew.
	if !p.Dup || !d.same(p) {
		in.letGo(d)
		return false, nil
	}
	in.attach(d)
	in.acknowledge()
	return true, nil
}

// same reports whether p is the message of d.
func (d *delivery) same(p *wire.Publish) bool {
	return d.qos == p.QoS && d.Envelope.Topic == string(p.Topic) && bytes.Equal(d.Envelope.Payload, p.Payload)
}

// violation names the limit that p breaks, "" for none.
func (in *inbound) violation(p *wire.Publish) string {
	switch {
	case len(p.Payload) > in.maxBody:
		return "payload_size"
	case p.MetadataBytes > MetadataAllowance:
		return "metadata_size"
	case p.UserCount > MaxUserProperties:
		return "user_properties"
	}
	return ""
}

// dropPoison acknowledges, in its turn, and drops a message that breaks a limit:
// without an acknowledgement it would come back for ever. Called with mu held.
func (in *inbound) dropPoison(p *wire.Publish, class string) {
	in.count.poisonDropped.Inc()
	if p.UserCount > wire.MaxUserKept {
		in.count.userPropertiesTruncated.Inc()
		in.log.Debug("user properties cut before decoding", "count", p.UserCount, "kept", p.UserKept)
	}
	if !in.poison[class] {
		in.poison[class] = true
		in.log.Error("message breaks a limit and is acknowledged and dropped; further ones of this class are only counted",
			"class", class, "topic", string(p.Topic), "payload_bytes", len(p.Payload),
			"metadata_bytes", p.MetadataBytes, "user_properties", p.UserKept)
	}
	if p.QoS > 0 {
		in.discard(p)
	}
}

// discard acknowledges in its turn a message that is not kept. Called with mu
// held.
func (in *inbound) discard(p *wire.Publish) {
	in.attach(&delivery{in: in, id: p.PacketID, qos: p.QoS, settled: true, dropped: true})
	in.acknowledge()
}

// admit reports whether a PUBLISH of size bytes may be read (V1). Before a
// receiver exists nothing can make room, so everything is read and publish
// decides.
func (in *inbound) admit(c *guardConn, size int) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if c != in.c || in.stopped || in.draining || !in.received && !in.withheld || in.held == 0 ||
		in.held+int64(size)+deliveryOverhead <= in.budget {
		return true
	}
	in.paused = true
	if !in.warned.pause {
		in.warned.pause = true
		in.log.Warn("ingress memory budget is spent: reading pauses until messages are settled", "held_bytes", in.held)
	}
	return false
}

// stop ends the taking of messages: what still comes is not touched, and the
// broker delivers it again.
func (in *inbound) stop() {
	in.mu.Lock()
	in.stopped = true
	c := in.c
	in.mu.Unlock()
	if c != nil {
		c.resume()
	}
}

// inboundHealth is a snapshot of inbound.
type inboundHealth struct {
	unsettled int
	oldest    time.Duration
	paused    bool
}

func (in *inbound) health() inboundHealth {
	in.mu.Lock()
	defer in.mu.Unlock()
	h := inboundHealth{unsettled: in.unsettled(), paused: in.paused}
	if h.unsettled > 0 {
		h.oldest = time.Since((*in.at(in.tail)).ReceivedAt)
	}
	return h
}

// identifiers is a set of packet identifiers, 8 KB once it is used.
type identifiers struct{ bits []uint64 }

func (s *identifiers) add(id uint16) {
	if s.bits == nil {
		s.bits = make([]uint64, 1<<16/64)
	}
	s.bits[id/64] |= 1 << (id % 64)
}

func (s *identifiers) remove(id uint16) { s.bits[id/64] &^= 1 << (id % 64) }

func (s *identifiers) has(id uint16) bool {
	return s.bits != nil && s.bits[id/64]&(1<<(id%64)) != 0
}

func (s *identifiers) clear() { clear(s.bits) }
