package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/gobridge/gobridge/transport/mqtt/wire"
)

const (
	topic          = "bench"
	handshakeLimit = 10 * time.Second
	publishBatch   = 64 // messages of a write, flat out
)

// link is one MQTT v5 connection, of either side: it publishes, acknowledges what it
// receives and counts it. Packets are framed and encoded by hand, acknowledgements
// leave once per burst of reads and nothing is allocated per message, so that the
// load costs little beside what is measured.
type link struct {
	conn   net.Conn
	reader *bufio.Reader
	window *window               // for what this side publishes
	tally  atomic.Pointer[tally] // for what this side receives; nil drops it
	asked  chan struct{}         // closed at the peer's first SUBSCRIBE
	size   int                   // bytes of a payload
	nextID uint16                // of the last message published
	wg     sync.WaitGroup        // serve
	closed atomic.Bool           // by this side
	failed atomic.Pointer[error] // why serve ended, unless this side closed

	writing sync.Mutex // a whole packet at a time
}

func newLink(conn net.Conn, size int) *link {
	return &link{
		conn: conn, reader: bufio.NewReaderSize(conn, max(64<<10, size+4096)), size: size,
		asked: make(chan struct{}),
	}
}

// dial connects as a client with a fresh session and subscribes to the topic at
// QoS 1 if asked to.
func dial(addr, clientID string, size int, subscribe bool) (*link, error) {
	conn, err := net.DialTimeout("tcp", addr, handshakeLimit)
	if err != nil {
		return nil, err
	}
	l := newLink(conn, size)
	if err := l.introduce(clientID, subscribe); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("%s on %s: %w", clientID, addr, err)
	}
	l.wg.Go(l.serve)
	return l, nil
}

func (l *link) introduce(clientID string, subscribe bool) error {
	_ = l.conn.SetDeadline(time.Now().Add(handshakeLimit))
	connect := &packets.Connect{
		ProtocolName: "MQTT", ProtocolVersion: 5, CleanStart: true, ClientID: clientID,
		Properties: &packets.Properties{ReceiveMaximum: new(uint16(65535))},
	}
	if _, err := connect.WriteTo(l.conn); err != nil {
		return err
	}
	answer, err := packets.ReadPacket(l.reader)
	if err != nil {
		return err
	}
	connack, ok := answer.Content.(*packets.Connack)
	if !ok || connack.ReasonCode >= 0x80 {
		return fmt.Errorf("CONNECT was answered with %s", answer)
	}
	l.window = newWindow(receiveMaximum(connack.Properties))
	if subscribe {
		sub := &packets.Subscribe{PacketID: 1, Properties: &packets.Properties{}, Subscriptions: []packets.SubOptions{{Topic: topic, QoS: 1}}}
		if _, err := sub.WriteTo(l.conn); err != nil {
			return err
		}
		if answer, err = packets.ReadPacket(l.reader); err != nil {
			return err
		}
		if suback, ok := answer.Content.(*packets.Suback); !ok || suback.Reasons[0] != 1 {
			return fmt.Errorf("SUBSCRIBE was answered with %s", answer)
		}
	}
	return l.conn.SetDeadline(time.Time{})
}

// accept takes the one client of a fake broker, which announces limit as its Receive
// Maximum and sends no more than limit unacknowledged messages itself.
func accept(ln *net.TCPListener, size, limit int) (*link, error) {
	_ = ln.SetDeadline(time.Now().Add(handshakeLimit))
	conn, err := ln.Accept()
	if err != nil {
		return nil, fmt.Errorf("no connection to the fake broker: %w", err)
	}
	l := newLink(conn, size)
	_ = conn.SetDeadline(time.Now().Add(handshakeLimit))
	p, err := packets.ReadPacket(l.reader)
	if err == nil {
		connect, ok := p.Content.(*packets.Connect)
		if !ok {
			err = fmt.Errorf("got %s, want CONNECT", p)
		} else {
			l.window = newWindow(min(limit, receiveMaximum(connect.Properties)))
			connack := &packets.Connack{Properties: &packets.Properties{ReceiveMaximum: new(uint16(limit))}}
			_, err = connack.WriteTo(conn)
		}
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("connection to the fake broker: %w", err)
	}
	_ = conn.SetDeadline(time.Time{})
	l.wg.Go(l.serve)
	return l, nil
}

// receiveMaximum is 65,535 where it is not announced (MQTT v5, 3.1.2.11.3).
func receiveMaximum(p *packets.Properties) int {
	if p == nil || p.ReceiveMaximum == nil {
		return 65535
	}
	return int(*p.ReceiveMaximum)
}

// serve reads until the connection ends.
func (l *link) serve() {
	err := l.read()
	if !l.closed.Load() {
		l.failed.Store(&err)
	}
	l.window.fail(err)
}

func (l *link) read() error {
	var acks []byte // not yet written
	acked := 0      // not yet released
	for {
		frame, err := l.next()
		if err != nil {
			return err
		}
		switch frame[0] >> 4 {
		case wire.PUBLISH:
			var p wire.Publish
			if err := wire.ParsePublish(frame[0], wire.Body(frame), &p); err != nil {
				return err
			}
			if p.QoS == 1 {
				acks = wire.AppendAck(acks, wire.PUBACK, p.PacketID, 0)
			}
			if t := l.tally.Load(); t != nil {
				if err := t.add(p.Payload); err != nil {
					return err
				}
			}
		case wire.PUBACK:
			var a wire.Ack
			if err := wire.ParseAck(frame[0], wire.Body(frame), &a); err != nil {
				return err
			}
			if a.Reason >= 0x80 {
				return fmt.Errorf("PUBACK with reason 0x%02X", a.Reason)
			}
			acked++
		default:
			if err := l.control(frame); err != nil {
				return err
			}
		}
		if l.reader.Buffered() > 0 {
			continue
		}
		if acked > 0 {
			l.window.release(acked)
			acked = 0
		}
		if len(acks) > 0 {
			if err := l.write(acks); err != nil {
				return err
			}
			acks = acks[:0]
		}
	}
}

// next returns the next packet, valid until the following call.
func (l *link) next() ([]byte, error) {
	for n := 2; ; n++ {
		head, err := l.reader.Peek(n)
		if err != nil {
			return nil, err
		}
		_, total, ok, err := wire.Header(head)
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		frame, err := l.reader.Peek(total)
		if err != nil {
			return nil, err
		}
		_, err = l.reader.Discard(total)
		return frame, err
	}
}

// control answers the packets that a client sends seldom.
func (l *link) control(frame []byte) error {
	p, err := packets.ReadPacket(bytes.NewReader(frame))
	if err != nil {
		return err
	}
	var answer io.WriterTo
	switch c := p.Content.(type) {
	case *packets.Subscribe:
		suback := &packets.Suback{PacketID: c.PacketID, Properties: &packets.Properties{}}
		for _, s := range c.Subscriptions {
			suback.Reasons = append(suback.Reasons, s.QoS)
		}
		answer = suback
		select {
		case <-l.asked:
		default:
			defer close(l.asked) // after the SUBACK
		}
	case *packets.Unsubscribe:
		answer = &packets.Unsuback{PacketID: c.PacketID, Properties: &packets.Properties{}, Reasons: make([]byte, len(c.Topics))}
	case *packets.Pingreq:
		answer = &packets.Pingresp{}
	case *packets.Pingresp:
		return nil
	case *packets.Disconnect:
		return fmt.Errorf("DISCONNECT with reason 0x%02X", c.ReasonCode)
	default:
		return fmt.Errorf("unexpected %s", p)
	}
	var b bytes.Buffer
	if _, err := answer.WriteTo(&b); err != nil {
		return err
	}
	return l.write(b.Bytes())
}

func (l *link) write(b []byte) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	_, err := l.conn.Write(b)
	return err
}

// publish sends the messages 0 to n-1 of a phase at QoS 1: as fast as the window
// allows when rate is 0, else one every 1/rate seconds on a fixed schedule that does
// not wait for acknowledgements while the window has room. A time stamp is taken
// before the window is asked for. One goroutine at a time.
func (l *link) publish(phase uint32, n, rate int) error {
	m := wire.Publish{QoS: 1, Topic: []byte(topic), Payload: make([]byte, l.size)}
	buf := make([]byte, 0, publishBatch*(l.size+32))
	start, batch := time.Now(), publishBatch
	for seq := 0; seq < n; {
		if rate > 0 {
			batch = 1
			time.Sleep(time.Until(start.Add(time.Duration(seq) * time.Second / time.Duration(rate))))
		}
		stamp(m.Payload, phase, uint32(seq))
		room, err := l.window.acquire(min(batch, n-seq))
		if err != nil {
			return err
		}
		buf = buf[:0]
		for i := range room {
			if i > 0 {
				stamp(m.Payload, phase, uint32(seq))
			}
			if l.nextID++; l.nextID == 0 {
				l.nextID = 1
			}
			m.PacketID = l.nextID
			if buf, err = wire.AppendPublish(buf, &m, nil); err != nil {
				return err
			}
			seq++
		}
		if err := l.write(buf); err != nil {
			return err
		}
	}
	return nil
}

// probe publishes one message of a phase at QoS 0.
func (l *link) probe(phase uint32) error {
	m := wire.Publish{Topic: []byte(topic), Payload: make([]byte, stampSize)}
	stamp(m.Payload, phase, 0)
	b, err := wire.AppendPublish(nil, &m, nil)
	if err != nil {
		return err
	}
	return l.write(b)
}

// failure returns why the connection ended, nil while it lives.
func (l *link) failure() error {
	if err := l.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// close ends the connection and waits for its reader.
func (l *link) close() {
	l.closed.Store(true)
	_ = l.conn.SetWriteDeadline(time.Now().Add(time.Second)) // before the lock: it frees a writer that is stuck
	_ = l.write([]byte{wire.DISCONNECT << 4, 0})             // the peer may be gone already
	_ = l.conn.Close()
	l.wg.Wait()
}
