package bridgetest

import (
	"bufio"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// FakeConn is one connection of a [FakeBroker]. The Expect methods end the test and
// so belong on its goroutine; the others may be called from anywhere.
type FakeConn struct {
	Epoch int // number of the connection, from 1

	fb            *FakeBroker
	conn          *net.TCPConn
	reader        *bufio.Reader
	out           *sendQueue
	withholdPings atomic.Bool
	withholdClose atomic.Bool

	mu      sync.Mutex
	waiting []*packets.ControlPacket // received and not yet expected
	err     error                    // why reading ended
	arrived chan struct{}            // signals a change of waiting or err
}

func newFakeConn(fb *FakeBroker, conn *net.TCPConn) *FakeConn {
	return &FakeConn{
		fb: fb, conn: conn, reader: bufio.NewReaderSize(conn, 64<<10),
		out: newSendQueue(conn), arrived: make(chan struct{}, 1),
	}
}

// read returns the next packet that is not a PINGREQ; those are answered unless
// they are withheld.
func (c *FakeConn) read() (*packets.ControlPacket, error) {
	for {
		p, err := readPacket(c.reader)
		if err != nil {
			return nil, err
		}
		c.fb.record(c.Epoch, p)
		if p.Type != packets.PINGREQ {
			return p, nil
		}
		if !c.withholdPings.Load() {
			c.Send(&packets.Pingresp{})
		}
	}
}

// readAll queues packets for the Expect methods until the connection ends. It closes
// after a DISCONNECT, as a server must [MQTT-3.14.4-3].
func (c *FakeConn) readAll() {
	defer c.out.close()
	for {
		p, err := c.read()
		c.mu.Lock()
		if err != nil {
			c.err = err
		} else {
			c.waiting = append(c.waiting, p)
		}
		c.mu.Unlock()
		select {
		case c.arrived <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
		if p.Type == packets.DISCONNECT && !c.withholdClose.Load() {
			c.Close()
		}
	}
}

// next waits for a packet, or for the end of the connection (nil and the reason). ok
// is false when neither came in time.
func (c *FakeConn) next(timeout time.Duration) (p *packets.ControlPacket, ended error, ok bool) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		c.mu.Lock()
		if len(c.waiting) > 0 {
			p := c.waiting[0]
			c.waiting = c.waiting[1:]
			c.mu.Unlock()
			return p, nil, true
		}
		err := c.err
		c.mu.Unlock()
		if err != nil {
			return nil, err, true
		}
		select {
		case <-c.arrived:
		case <-timer.C:
			return nil, nil, false
		}
	}
}

// Expect returns the next packet, PINGREQ apart, and ends the test when it is of
// another type (packets.PUBLISH, ...) or does not come within 10 s.
func (c *FakeConn) Expect(packetType byte) *packets.ControlPacket {
	c.fb.t.Helper()
	want := packets.NewControlPacket(packetType).PacketType()
	p, ended, ok := c.next(fakeWait)
	switch {
	case !ok:
		c.fb.t.Fatalf("connection %d: no %s within %v", c.Epoch, want, fakeWait)
	case ended != nil:
		c.fb.t.Fatalf("connection %d: ended (%v) while waiting for %s", c.Epoch, ended, want)
	case p.Type != packetType:
		c.fb.t.Fatalf("connection %d: got %s, want %s: %s", c.Epoch, p.PacketType(), want, p)
	}
	return p
}

// ExpectConnect is Expect for a CONNECT.
func (c *FakeConn) ExpectConnect() *packets.Connect {
	c.fb.t.Helper()
	return c.Expect(packets.CONNECT).Content.(*packets.Connect)
}

// ExpectSubscribe is Expect for a SUBSCRIBE.
func (c *FakeConn) ExpectSubscribe() *packets.Subscribe {
	c.fb.t.Helper()
	return c.Expect(packets.SUBSCRIBE).Content.(*packets.Subscribe)
}

// ExpectPublish is Expect for a PUBLISH.
func (c *FakeConn) ExpectPublish() *packets.Publish {
	c.fb.t.Helper()
	return c.Expect(packets.PUBLISH).Content.(*packets.Publish)
}

// ExpectDisconnect is Expect for a DISCONNECT.
func (c *FakeConn) ExpectDisconnect() *packets.Disconnect {
	c.fb.t.Helper()
	return c.Expect(packets.DISCONNECT).Content.(*packets.Disconnect)
}

// ExpectNothing ends the test when a packet other than PINGREQ comes, or the
// connection ends, within d.
func (c *FakeConn) ExpectNothing(d time.Duration) {
	c.fb.t.Helper()
	if p, ended, ok := c.next(d); ok {
		c.fb.t.Fatalf("connection %d: got %v (end: %v), want nothing for %v", c.Epoch, p, ended, d)
	}
}

// ExpectClosed ends the test unless the client closes the connection within 10 s,
// with or without packets before it, which are returned.
func (c *FakeConn) ExpectClosed() []*packets.ControlPacket {
	c.fb.t.Helper()
	var before []*packets.ControlPacket
	for {
		p, ended, ok := c.next(fakeWait)
		if !ok {
			c.fb.t.Fatalf("connection %d: still open after %v; last packets: %v", c.Epoch, fakeWait, before)
		}
		if ended != nil {
			return before
		}
		before = append(before, p)
	}
}

// Handshake expects a CONNECT and answers it with connack, nil for plain success.
func (c *FakeConn) Handshake(connack *packets.Connack) *packets.Connect {
	c.fb.t.Helper()
	connect := c.ExpectConnect()
	if connack == nil {
		connack = &packets.Connack{}
	}
	c.ConnAck(connack)
	return connect
}

// ConnAck answers the CONNECT.
func (c *FakeConn) ConnAck(connack *packets.Connack) { c.Send(connack) }

// Grant answers a SUBSCRIBE with the given reason codes, or with the QoS asked for
// when there are none.
func (c *FakeConn) Grant(sub *packets.Subscribe, reasons ...byte) {
	if len(reasons) == 0 {
		for _, o := range sub.Subscriptions {
			reasons = append(reasons, o.QoS)
		}
	}
	c.Send(&packets.Suback{PacketID: sub.PacketID, Reasons: reasons})
}

// Send sends packets as they are (a PUBLISH with the packet id, DUP and QoS it says)
// and never blocks; on a connection that has ended it does nothing.
func (c *FakeConn) Send(ps ...packets.Packet) {
	for _, p := range ps {
		_ = c.out.put(p)
	}
}

// SendRaw sends bytes that need not be a packet.
func (c *FakeConn) SendRaw(b []byte) { _ = c.out.put(rawPacket(b)) }

// WithholdPings leaves PINGREQ unanswered while on.
func (c *FakeConn) WithholdPings(on bool) { c.withholdPings.Store(on) }

// WithholdClose leaves the connection open after a DISCONNECT while on.
func (c *FakeConn) WithholdClose(on bool) { c.withholdClose.Store(on) }

// Disconnect sends DISCONNECT with a reason code and closes the connection.
func (c *FakeConn) Disconnect(reason byte) {
	c.Send(&packets.Disconnect{ReasonCode: reason})
	c.Close()
}

// Close sends what is queued and closes the connection without DISCONNECT.
func (c *FakeConn) Close() { c.out.close() }

// Reset closes the connection with RST and drops what is queued.
func (c *FakeConn) Reset() {
	_ = c.conn.SetLinger(0)
	c.out.fail(net.ErrClosed)
}
