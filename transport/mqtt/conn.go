package mqtt

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gobridge/gobridge/transport/mqtt/wire"
)

// packetHandler receives what a guardConn keeps from the MQTT library. publish,
// ack, burstEnd and admit are called by the goroutine that reads the connection,
// never two at a time; flushed by whoever wrote. None may block on the network,
// and flushed must not call Close, which waits for the writer.
//
// The library closes a connection while its reader may still be inside one of
// these: a handler that outlives the connection compares c with the one it
// serves.
type packetHandler interface {
	// publish takes one PUBLISH. Its slices are valid until publish returns.
	publish(c *guardConn, p *wire.Publish)
	// ack takes a PUBACK, PUBREC, PUBREL or PUBCOMP; its reason string is valid
	// until ack returns.
	ack(c *guardConn, a wire.Ack)
	// burstEnd is called after a run of publish and ack calls, before the reader
	// blocks: the place to flush what they caused.
	burstEnd(c *guardConn)
	// flushed reports that the first total bytes of the outgoing stream have been
	// handed to the kernel. Totals of two writers may arrive in either order: the
	// largest holds. The goroutine that called flush may be the caller.
	flushed(c *guardConn, total uint64)
	// admit decides whether the next PUBLISH, of size bytes on the wire, may be read
	// now. After false the reader asks again each time resume is called, and
	// reads nothing until admit agrees.
	admit(c *guardConn, size int) bool
}

// guardOptions are the bounds of a guardConn.
type guardOptions struct {
	// MaxPacket is the Maximum Packet Size announced to the server, in bytes; it must
	// be set. It is applied to the length field, before anything is buffered.
	MaxPacket uint32
	Logger    *slog.Logger
}

// oversizeError says that the server sent a packet larger than the Maximum
// Packet Size it was told [MQTT-3.1.2-24].
type oversizeError struct {
	Packet    string
	Size, Max int // bytes
}

func (e *oversizeError) Error() string {
	return fmt.Sprintf("mqtt: %s of %d bytes is over the announced maximum packet size of %d (reason 0x%02X)",
		e.Packet, e.Size, e.Max, wire.ReasonPacketTooLarge)
}

const (
	readBuffer = 64 << 10
	// burstBytes bounds how much is read before burstEnd is called although more is
	// waiting, and with it how long an acknowledgement stays in memory.
	burstBytes = 64 << 10
	// closeGrace bounds how long Close waits for a peer that does not read.
	closeGrace = time.Second
	dumpBytes  = 32
	// fixedHeader is the longest fixed header, in bytes.
	fixedHeader = 5
)

// guardConn is the network connection given to the MQTT library. It takes PUBLISH
// and the four acknowledgements out of the incoming stream, bounded and checked,
// and hands every other packet to the library unchanged; and it is the one place
// where outgoing packets, the library's and the bridge's, join in whole.
//
// Read is for one goroutine, the library's reader. Everything else is safe from
// any goroutine. The reading half is in this file, the writing half in
// connwrite.go.
type guardConn struct {
	nc     net.Conn
	h      packetHandler
	max    int
	logger *slog.Logger
	start  time.Time

	// Of the reader alone.
	buf      []byte // readBuffer bytes; buf[r:w] has been read and not consumed
	r, w     int
	big      []byte // kept from the last frame larger than buf, until the reader waits
	handover []byte // what is left of the packet the library is reading
	greeted  bool   // the CONNACK has been handed over
	readErr  error
	burst    int  // bytes read since the last burstEnd
	active   bool // something was dispatched since the last burstEnd
	pub      wire.Publish
	tryRead  *rawOp // nil where only blocking reads are possible

	lastReadAt atomic.Int64 // nanoseconds since start
	isPaused   atomic.Bool
	resumed    chan struct{}

	closing   chan struct{}
	closeOnce sync.Once
	closeErr  error

	out outStream
}

var (
	_ net.Conn    = (*guardConn)(nil)
	_ sync.Locker = (*guardConn)(nil)
)

// newGuardConn takes over nc and starts its writer goroutine, which Close stops.
func newGuardConn(nc net.Conn, h packetHandler, opts guardOptions) *guardConn {
	c := &guardConn{
		nc: nc, h: h, max: int(min(uint64(opts.MaxPacket), 5+wire.MaxRemaining)), logger: opts.Logger, start: time.Now(),
		buf:     make([]byte, readBuffer),
		resumed: make(chan struct{}, 1),
		closing: make(chan struct{}),
	}
	c.tryRead, c.out.tryWrite = rawOps(nc)
	c.startWriter()
	return c
}

// Read hands the library the next bytes of a packet that is its own. Before it
// waits for one it dispatches the message packets that stand in front. A call
// that returns the end of a packet dispatches nothing, so what follows a
// CONNACK in one segment waits until the library has dealt with it and reads again.
//
// A packet that breaks the protocol is answered with a DISCONNECT and ends the
// stream with a *wire.MalformedError or an *oversizeError.
func (c *guardConn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if len(c.handover) == 0 {
		if c.readErr == nil {
			c.readErr = c.readPackets()
		}
		if c.readErr != nil {
			return 0, c.readErr
		}
	}
	n := copy(p, c.handover)
	c.handover = c.handover[n:]
	return n, nil
}

// readPackets dispatches packets until one is for the library.
func (c *guardConn) readPackets() error {
	for {
		frame, err := c.nextFrame()
		if err != nil {
			return c.fail(frame, err)
		}
		if c.isClosing() {
			return net.ErrClosed
		}
		switch typ := frame[0] >> 4; typ {
		case wire.PUBLISH:
			if err := wire.ParsePublish(frame[0], wire.Body(frame), &c.pub); err != nil {
				return c.fail(frame, err)
			}
			c.active = true
			c.h.publish(c, &c.pub)
		case wire.PUBACK, wire.PUBREC, wire.PUBREL, wire.PUBCOMP:
			var a wire.Ack
			if err := wire.ParseAck(frame[0], wire.Body(frame), &a); err != nil {
				return c.fail(frame, err)
			}
			c.active = true
			c.h.ack(c, a)
		default:
			c.greeted = c.greeted || typ == wire.CONNACK
			c.handover = frame
			return nil
		}
	}
}

// nextFrame returns the next whole packet and consumes it. The frame is valid
// until the next call. With an error, it holds the bytes that caused it, if any.
func (c *guardConn) nextFrame() ([]byte, error) {
	for {
		typ, total, ok, err := wire.Header(c.buf[c.r:c.w])
		switch {
		case err != nil:
			return c.buf[c.r:min(c.w, c.r+fixedHeader)], err
		case !ok:
			if err := c.fill(); err != nil {
				return nil, err
			}
			continue
		}
		if err := c.checkHeader(typ, total); err != nil {
			return c.buf[c.r:min(c.w, c.r+total)], err
		}
		if typ == wire.PUBLISH {
			if err := c.awaitAdmission(total); err != nil {
				return nil, err
			}
		}
		if total > len(c.buf) {
			return c.readBig(total)
		}
		for c.w-c.r < total {
			if err := c.fill(); err != nil {
				return nil, err
			}
		}
		frame := c.buf[c.r : c.r+total : c.r+total]
		c.r += total
		return frame, nil
	}
}

// checkHeader refuses what must not come from a server, or not yet, or not so
// large.
func (c *guardConn) checkHeader(typ byte, total int) error {
	what, reason := "", wire.ReasonProtocolError
	switch typ {
	case 0:
		what, reason = "reserved packet type", wire.ReasonMalformed
	case wire.CONNECT, wire.SUBSCRIBE, wire.UNSUBSCRIBE, wire.PINGREQ:
		what = "packet that only a client may send"
	case wire.CONNACK:
		if c.greeted {
			what = "second CONNACK"
		}
	case wire.AUTH, wire.DISCONNECT:
	default:
		if !c.greeted {
			what = "packet before the CONNACK" // [MQTT-3.2.0-1]
		}
	}
	if what != "" {
		return &wire.MalformedError{Packet: wire.TypeName(typ), What: what, Reason: reason}
	}
	if total > c.max {
		return &oversizeError{Packet: wire.TypeName(typ), Size: total, Max: c.max}
	}
	return nil
}

// awaitAdmission waits until the handler has room for a PUBLISH of size bytes.
func (c *guardConn) awaitAdmission(size int) error {
	if c.h.admit(c, size) {
		return nil
	}
	c.isPaused.Store(true)
	defer c.isPaused.Store(false)
	c.endBurst()
	for !c.h.admit(c, size) { // asked after isPaused is set, so that no resume is missed
		select {
		case <-c.resumed:
		case <-c.out.failed:
			return c.writeError()
		case <-c.closing:
			return net.ErrClosed
		}
	}
	return nil
}

// readBig reads a frame larger than the buffer into one of its own size.
func (c *guardConn) readBig(total int) ([]byte, error) {
	frame := c.big
	if cap(frame) < total {
		frame = make([]byte, total)
	}
	frame = frame[:total]
	n := copy(frame, c.buf[c.r:c.w])
	c.r, c.w = 0, 0
	for n < total {
		m, err := c.readSocket(frame[n:])
		if err != nil {
			return nil, err
		}
		n += m
	}
	c.big = frame
	return frame, nil
}

// fill reads more bytes into the buffer, which has room: what is in it is less
// than one frame, and a frame that does not fit is not read into it.
func (c *guardConn) fill() error {
	switch {
	case c.r == c.w:
		c.r, c.w = 0, 0
	case len(c.buf)-c.w < readBuffer/4:
		c.w = copy(c.buf, c.buf[c.r:c.w])
		c.r = 0
	}
	n, err := c.readSocket(c.buf[c.w:])
	c.w += n
	return err
}

// readSocket reads what there is. It ends the burst before it has to wait, or at
// the latest after burstBytes.
func (c *guardConn) readSocket(p []byte) (int, error) {
	if c.burst >= burstBytes {
		c.endBurst()
	}
	if c.active && c.tryRead != nil {
		n, err := c.tryRead.once(p)
		if n > 0 || err != nil {
			return c.didRead(n, err)
		}
	}
	c.endBurst()
	c.big = nil
	return c.didRead(c.nc.Read(p))
}

func (c *guardConn) didRead(n int, err error) (int, error) {
	if n > 0 {
		c.burst += n
		c.lastReadAt.Store(int64(time.Since(c.start)))
		return n, nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return 0, err
}

func (c *guardConn) endBurst() {
	c.burst = 0
	if c.active {
		c.active = false
		c.h.burstEnd(c)
	}
}

// fail ends the stream: it tells a peer that broke the protocol why, and completes
// the error for people.
func (c *guardConn) fail(frame []byte, err error) error {
	c.endBurst()
	if malformed, ok := errors.AsType[*wire.MalformedError](err); ok {
		malformed.Dump = hex.EncodeToString(frame[:min(len(frame), dumpBytes)])
		c.refuse(malformed.Reason, err)
		return err
	}
	if _, ok := errors.AsType[*oversizeError](err); ok {
		c.refuse(wire.ReasonPacketTooLarge, err)
		return err
	}
	if werr := c.writeError(); werr != nil && !c.isClosing() {
		return werr // the cause: a failed write ends the reading too
	}
	if errors.Is(err, io.EOF) && c.w > c.r {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (c *guardConn) refuse(reason byte, err error) {
	c.logger.Error("server broke the protocol, closing", "err", err)
	c.disconnect(disconnectFor(reason))
}

// disconnectFor appends a DISCONNECT with the reason, for guardConn.disconnect.
func disconnectFor(reason byte) func([]byte) []byte {
	return func(dst []byte) []byte { return wire.AppendDisconnect(dst, reason) }
}

// paused reports whether the reader waits for resume: a silence of the
// connection is then deliberate.
func (c *guardConn) paused() bool { return c.isPaused.Load() }

// resume makes a paused reader ask admit again. It does no harm to one that is
// not paused.
func (c *guardConn) resume() {
	select {
	case c.resumed <- struct{}{}:
	default: // a wake-up is pending already
	}
}

// lastRead is the time of the last successful read from the socket; at first the
// time of creation.
func (c *guardConn) lastRead() time.Time {
	return c.start.Add(time.Duration(c.lastReadAt.Load()))
}

// closed is closed when Close begins.
func (c *guardConn) closed() <-chan struct{} { return c.closing }

func (c *guardConn) isClosing() bool {
	select {
	case <-c.closing:
		return true
	default:
		return false
	}
}

// Close writes what is buffered, for at most closeGrace, closes the socket and
// waits for the writer goroutine. It may be called more than once and from any
// goroutine, also while Read runs; every call returns only when all is done. No packet is
// taken from the stream after Close has begun; one already taken may still be on
// its way to the handler.
func (c *guardConn) Close() error {
	c.closeOnce.Do(func() {
		close(c.closing)
		// The writer may be stuck in a write to a peer that does not read.
		cut := time.AfterFunc(closeGrace, func() { _ = c.socket().Close() })
		c.stopWriter()
		inTime := cut.Stop()
		if !inTime || c.writeError() != nil {
			// Closing TLS in good order would try to write once more, for seconds.
			c.closeErr = c.socket().Close()
			return
		}
		c.closeErr = c.nc.Close()
	})
	return c.closeErr
}

// socket is the connection beneath TLS or websocket.
func (c *guardConn) socket() net.Conn {
	nc := c.nc
	for {
		outer, ok := nc.(interface{ NetConn() net.Conn })
		if !ok {
			return nc
		}
		nc = outer.NetConn()
	}
}

// LocalAddr and RemoteAddr are those of the socket.
func (c *guardConn) LocalAddr() net.Addr  { return c.nc.LocalAddr() }
func (c *guardConn) RemoteAddr() net.Addr { return c.nc.RemoteAddr() }

// SetReadDeadline sets the deadline of the socket.
func (c *guardConn) SetReadDeadline(t time.Time) error { return c.nc.SetReadDeadline(t) }

// SetDeadline and SetWriteDeadline refuse: outgoing packets are buffered and
// written by several goroutines, and only Close may cut a write short.
func (c *guardConn) SetDeadline(time.Time) error      { return os.ErrNoDeadline }
func (c *guardConn) SetWriteDeadline(time.Time) error { return os.ErrNoDeadline }
