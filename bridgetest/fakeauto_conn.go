package bridgetest

import (
	"slices"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// heldAnswer is an acknowledgement that was held back or is on its slow way.
type heldAnswer struct {
	session *autoSession
	conn    *FakeConn
	id      uint16
	packet  packets.Packet
	final   bool      // it ends the client's publish
	at      time.Time // when it is due
}

// serve answers one connection until it ends.
func (a *Auto) serve(c *FakeConn) {
	defer c.out.close()
	first, err := c.read()
	if err != nil {
		return
	}
	connect, ok := first.Content.(*packets.Connect)
	if !ok {
		c.Disconnect(packets.DisconnectProtocolError)
		return
	}
	s := a.connect(c, connect)
	if s == nil {
		return
	}
	slow := make(chan heldAnswer, 65535) // at least the largest window: never blocks
	var wg sync.WaitGroup
	wg.Go(func() { a.answerSlowly(slow) })
	expiry := uint32(0)
	if e := connect.Properties.SessionExpiryInterval; e != nil {
		expiry = *e
	}
	for {
		p, err := c.read()
		if err != nil {
			break
		}
		if bye, ok := p.Content.(*packets.Disconnect); ok {
			if e := bye.Properties.SessionExpiryInterval; e != nil {
				expiry = *e
			}
			break
		}
		a.handle(s, c, p, slow)
	}
	a.leave(s, c, connect.ClientID, expiry)
	c.out.close()
	close(slow)
	wg.Wait()
}

func (a *Auto) handle(s *autoSession, c *FakeConn, packet *packets.ControlPacket, slow chan<- heldAnswer) {
	switch p := packet.Content.(type) {
	case *packets.Subscribe:
		a.subscribe(s, c, p)
	case *packets.Unsubscribe:
		c.Send(&packets.Unsuback{PacketID: p.PacketID, Reasons: make([]byte, len(p.Topics))})
	case *packets.Publish:
		a.take(s, c, p, slow)
	case *packets.Pubrel:
		reason, hold := byte(0), false
		if a.cfg.PubComp != nil {
			reason, hold = a.cfg.PubComp(p.PacketID)
		}
		comp := &packets.Pubcomp{PacketID: p.PacketID, ReasonCode: reason}
		a.reply(heldAnswer{session: s, conn: c, id: p.PacketID, packet: comp, final: true}, hold, nil)
	case *packets.Puback:
		a.settle(s, c, p.PacketID, p.ReasonCode, true)
	case *packets.Pubrec:
		a.settle(s, c, p.PacketID, p.ReasonCode, p.ReasonCode >= 0x80)
	case *packets.Pubcomp:
		a.complete(s, p.PacketID, 0) // its only other code, 0x92, says that it was completed before
	}
}

func (a *Auto) subscribe(s *autoSession, c *FakeConn, p *packets.Subscribe) {
	var reasons []byte
	for _, o := range p.Subscriptions {
		reason := o.QoS
		if a.cfg.Grant != nil {
			reason = a.cfg.Grant(o)
		}
		reasons = append(reasons, reason)
	}
	c.Grant(p, reasons...)
	a.mu.Lock()
	defer a.mu.Unlock()
	defer a.notify()
	if a.cfg.Source != nil && a.source == nil && slices.Min(reasons) < 0x80 {
		a.source = s
		a.pump()
	}
}

// take receives a client's publish and answers it.
func (a *Auto) take(s *autoSession, c *FakeConn, p *packets.Publish, slow chan<- heldAnswer) {
	a.mu.Lock()
	if s.conn != c { // taken over: what was still on its way counts for nothing
		a.mu.Unlock()
		return
	}
	if p.Duplicate {
		a.stats.ReceivedDup++
	}
	if p.QoS == 2 && s.incoming[p.PacketID] {
		a.stats.ReceivedRepeats++
	} else {
		a.stats.Received++
		if !a.cfg.DropRecords {
			a.published = append(a.published, p)
		}
	}
	if p.QoS > 0 {
		s.incoming[p.PacketID] = p.QoS == 2 // taken: until PUBREL the same id is a repeat
		a.stats.PeakOutstanding = max(a.stats.PeakOutstanding, len(s.incoming))
	}
	a.notify()
	a.mu.Unlock()
	if p.QoS == 0 {
		return
	}
	reason, hold := byte(0), false
	if a.cfg.PubAck != nil {
		reason, hold = a.cfg.PubAck(p)
	}
	answer := heldAnswer{session: s, conn: c, id: p.PacketID, final: p.QoS == 1 || reason >= 0x80, at: time.Now().Add(a.cfg.AckDelay)}
	if p.QoS == 1 {
		answer.packet = &packets.Puback{PacketID: p.PacketID, ReasonCode: reason}
	} else {
		answer.packet = &packets.Pubrec{PacketID: p.PacketID, ReasonCode: reason}
	}
	a.reply(answer, hold, slow)
}

// reply sends an answer now, through slow (if not nil and there is a delay), or keeps
// it for ReleaseHeld.
func (a *Auto) reply(h heldAnswer, hold bool, slow chan<- heldAnswer) {
	if !hold && slow != nil && a.cfg.AckDelay > 0 {
		slow <- h
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if hold {
		a.held = append(a.held, h)
		return
	}
	a.answer(h)
}

// answer sends h unless its connection has ended. It needs mu.
func (a *Auto) answer(h heldAnswer) {
	s := h.session
	if s.conn != h.conn {
		return
	}
	if h.final {
		delete(s.incoming, h.id)
	}
	h.conn.Send(h.packet)
}

// answerSlowly sends answers when they are due; after the end of the connection they
// are dropped at once.
func (a *Auto) answerSlowly(slow <-chan heldAnswer) {
	for h := range slow {
		timer := time.NewTimer(time.Until(h.at))
		select {
		case <-timer.C:
		case <-h.conn.out.ended:
		}
		timer.Stop()
		a.mu.Lock()
		a.answer(h)
		a.mu.Unlock()
	}
}

// settle handles the first answer to a source message: PUBACK, or PUBREC, which ends
// the message only when it refuses it.
func (a *Auto) settle(s *autoSession, c *FakeConn, id uint16, reason byte, final bool) {
	a.mu.Lock()
	if s.conn != c {
		a.mu.Unlock()
		return
	}
	m, i := s.open[id], slices.Index(s.due, id)
	switch {
	case m == nil || i < 0:
		a.stats.AcksUnknown++
	case i > 0:
		a.stats.AcksOutOfOrder++
		s.due = slices.Delete(s.due, i, i+1)
	default:
		s.due = s.due[1:]
	}
	if m != nil && !final {
		m.released = true
		if s.conn != nil {
			s.conn.Send(&packets.Pubrel{PacketID: id})
		}
	}
	a.notify()
	a.mu.Unlock()
	if m != nil && final {
		a.complete(s, id, reason)
	}
}

// complete ends a source message and sends the next ones.
func (a *Auto) complete(s *autoSession, id uint16, reason byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	defer a.notify()
	switch {
	case s.open[id] == nil:
		a.stats.AcksUnknown++
		return
	case reason >= 0x80:
		a.stats.SourceRefused++
	default:
		a.stats.SourceAcked++
	}
	delete(s.open, id)
	a.pump()
}
