package bridgetest

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// lastPublishID bounds the packet ids of publishes; those above are for SUBSCRIBE
// and UNSUBSCRIBE.
const lastPublishID = uint16(65000)

// Message is one received PUBLISH.
type Message struct {
	Topic      string
	Payload    []byte
	QoS        byte
	Retain     bool
	Dup        bool
	PacketID   uint16
	Properties *packets.Properties
	At         time.Time

	client *Client
}

// Ack answers the message with PUBACK or PUBREC and the given reason code (0 is
// success); for QoS 0 it does nothing. A QoS 2 message that was refused (0x80 and
// up) or answered is complete for this client once PUBREL came.
func (m *Message) Ack(reason byte) error { return m.client.ack(m.QoS, m.PacketID, reason) }

// UserProperty returns the first user property with that key.
func (m *Message) UserProperty(key string) (string, bool) {
	i := slices.IndexFunc(m.Properties.User, func(u packets.User) bool { return u.Key == key })
	if i < 0 {
		return "", false
	}
	return m.Properties.User[i].Value, true
}

// Session is the client's half of an MQTT session (MQTT v5 section 4.1): publishes
// that are not acknowledged, and the ids of QoS 2 messages it has received and not
// yet released. It serves one client at a time.
type Session struct {
	mu       sync.Mutex
	changed  *sync.Cond // room in the window, or the end of the client
	client   *Client    // nil between two connections
	open     map[uint16]*openPublish
	lastID   uint16
	serial   uint64
	received map[uint16]bool // QoS 2 ids answered with PUBREC
}

// openPublish is a publish that the broker has not acknowledged.
type openPublish struct {
	packet   *packets.Publish
	serial   uint64 // first order of sending
	released bool   // PUBREC came, PUBREL was sent: PUBCOMP is due
	resumed  bool   // sent again after a reconnect
	resent   int
	done     func(Ack)
}

// NewSession returns an empty session.
func NewSession() *Session {
	s := &Session{open: make(map[uint16]*openPublish), received: make(map[uint16]bool)}
	s.changed = sync.NewCond(&s.mu)
	return s
}

// Open returns the number of publishes that are not acknowledged.
func (s *Session) Open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// attach makes c the client of the session. With Session Present 1 the open
// publishes are sent again in their first order (MQTT v5 section 4.4); with 0 they
// are completed with ErrSessionLost.
func (s *Session) attach(c *Client) {
	s.mu.Lock()
	s.client = c
	if !c.connack.SessionPresent {
		lost := s.takeOpen()
		clear(s.received)
		s.mu.Unlock()
		complete(lost, ErrSessionLost)
		return
	}
	defer s.mu.Unlock()
	for _, o := range s.inOrder() {
		o.resumed = true
		if o.released {
			_ = c.out.put(&packets.Pubrel{PacketID: o.packet.PacketID})
			continue
		}
		o.packet.Duplicate = true
		o.resent++
		_ = c.out.put(o.packet)
	}
}

// detach ends the client's use of the session. A session that nobody can resume
// completes its open publishes.
func (s *Session) detach(c *Client, resumable bool) {
	s.mu.Lock()
	s.client = nil
	var lost []*openPublish
	if !resumable {
		lost = s.takeOpen()
	}
	s.changed.Broadcast()
	s.mu.Unlock()
	complete(lost, fmt.Errorf("%w: %w", ErrDisconnected, c.Err()))
}

func complete(publishes []*openPublish, err error) {
	for _, o := range publishes {
		if o.done != nil {
			o.done(Ack{Resent: o.resent, Err: err})
		}
	}
}

// inOrder and takeOpen need mu.
func (s *Session) inOrder() []*openPublish {
	return slices.SortedFunc(maps.Values(s.open), func(a, b *openPublish) int { return cmp.Compare(a.serial, b.serial) })
}

func (s *Session) takeOpen() []*openPublish {
	all := s.inOrder()
	clear(s.open)
	return all
}

func (s *Session) publish(ctx context.Context, c *Client, p *packets.Publish, done func(Ack)) error {
	stop := context.AfterFunc(ctx, s.changed.Broadcast)
	defer stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.open) >= c.window && s.client == c && ctx.Err() == nil {
		s.changed.Wait()
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if s.client != c {
		return fmt.Errorf("publish: %w", ErrDisconnected)
	}
	for {
		s.lastID = s.lastID%lastPublishID + 1
		if s.open[s.lastID] == nil {
			break
		}
	}
	p.PacketID = s.lastID
	s.serial++
	s.open[p.PacketID] = &openPublish{packet: p, serial: s.serial, done: done}
	// From here on the session owns p: if the connection is already gone, the next
	// one sends it or completes it.
	_ = c.out.put(p)
	return nil
}

// idNotFound is the reason code Packet Identifier not found.
const idNotFound = 0x92

// acknowledge ends an open publish. A broker that does not know the id any more had
// completed it before the reconnect: no error then (MQTT v5 section 3.7.2.1).
func (s *Session) acknowledge(id uint16, reason byte) {
	s.mu.Lock()
	o := s.open[id]
	delete(s.open, id)
	s.changed.Broadcast()
	s.mu.Unlock()
	if o == nil {
		return
	}
	if o.resumed && o.released && reason == idNotFound {
		reason = 0
	}
	if o.done != nil {
		o.done(Ack{Reason: reason, Resent: o.resent})
	}
}

// release handles PUBREC: a refusal ends the publish, anything else is answered
// with PUBREL (0x92 when the id is not known).
func (s *Session) release(c *Client, id uint16, reason byte) {
	if reason >= 0x80 {
		s.acknowledge(id, reason)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	rel := &packets.Pubrel{PacketID: id}
	if o := s.open[id]; o != nil {
		o.released = true
	} else {
		rel.ReasonCode = idNotFound
	}
	_ = c.out.put(rel)
}

// firstSight reports whether a QoS 2 id is new.
func (s *Session) firstSight(id uint16) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.received[id]
}

func (s *Session) setReceived(id uint16, held bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if held {
		s.received[id] = true
	} else {
		delete(s.received, id)
	}
}

// read is the reading goroutine: it ends with the connection.
func (c *Client) read(reader *bufio.Reader) {
	err := c.readPackets(reader)
	c.mu.Lock()
	c.err = err
	c.mu.Unlock()
	close(c.done)
	c.out.fail(err)
	c.session.detach(c, c.cfg.Session != nil)
}

func (c *Client) readPackets(reader *bufio.Reader) error {
	silence := time.Duration(c.cfg.KeepAlive) * 1500 * time.Millisecond
	for {
		if silence > 0 {
			_ = c.conn.SetReadDeadline(time.Now().Add(silence))
		}
		packet, err := readPacket(reader)
		if err != nil {
			return err
		}
		switch p := packet.Content.(type) {
		case *packets.Publish:
			c.receive(p)
		case *packets.Puback:
			c.session.acknowledge(p.PacketID, p.ReasonCode)
		case *packets.Pubrec:
			c.session.release(c, p.PacketID, p.ReasonCode)
		case *packets.Pubcomp:
			c.session.acknowledge(p.PacketID, p.ReasonCode)
		case *packets.Pubrel:
			c.session.setReceived(p.PacketID, false)
			_ = c.out.put(&packets.Pubcomp{PacketID: p.PacketID})
		case *packets.Suback, *packets.Unsuback:
			c.mu.Lock()
			waiting := c.replies[packet.PacketID()]
			delete(c.replies, packet.PacketID())
			c.mu.Unlock()
			if waiting != nil {
				waiting <- packet
			}
		case *packets.Disconnect:
			c.mu.Lock()
			c.disconnect = p
			c.mu.Unlock()
			return fmt.Errorf("broker sent DISCONNECT 0x%02X", p.ReasonCode)
		}
	}
}

func (c *Client) receive(p *packets.Publish) {
	if p.QoS == 2 && !c.session.firstSight(p.PacketID) {
		_ = c.out.put(&packets.Pubrec{PacketID: p.PacketID})
		return
	}
	m := &Message{
		Topic: p.Topic, Payload: p.Payload, QoS: p.QoS, Retain: p.Retain, Dup: p.Duplicate,
		PacketID: p.PacketID, Properties: p.Properties, At: time.Now(), client: c,
	}
	if c.cfg.OnMessage != nil {
		c.cfg.OnMessage(m)
	} else {
		c.mu.Lock()
		c.inbox = append(c.inbox, m)
		c.mu.Unlock()
		select {
		case c.arrived <- struct{}{}:
		default:
		}
	}
	if !c.cfg.ManualAck {
		_ = c.ack(m.QoS, m.PacketID, 0)
	}
}

func (c *Client) ack(qos byte, id uint16, reason byte) error {
	switch qos {
	case 1:
		return c.out.put(&packets.Puback{PacketID: id, ReasonCode: reason})
	case 2:
		if reason < 0x80 {
			c.session.setReceived(id, true)
		}
		return c.out.put(&packets.Pubrec{PacketID: id, ReasonCode: reason})
	}
	return nil
}

// ping sends PINGREQ twice per keep-alive until the connection ends.
func (c *Client) ping() {
	ticker := time.NewTicker(time.Duration(c.cfg.KeepAlive) * time.Second / 2)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			_ = c.out.put(&packets.Pingreq{})
		case <-c.done:
			return
		}
	}
}
