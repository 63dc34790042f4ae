package mqtt

import (
	"net"
	"sync"
	"time"
)

const (
	// inlineWrites bounds how often one flush writes before it leaves the rest to the
	// writer goroutine, so that no caller is kept busy by the packets of others.
	inlineWrites = 4
	// keepWrite is the largest write buffer, in bytes, that is kept for reuse.
	keepWrite = 256 << 10
)

// outStream is the outgoing half of a guardConn: one buffer that packets are
// appended to and one that is being written, by a single owner at a time. The
// owner is either a goroutine inside flush, for as long as the socket takes
// bytes without blocking, or the writer goroutine.
type outStream struct {
	mu       sync.Mutex
	buf      []byte // appended, in order after taken
	taken    []byte // being written; touched by the owner alone
	off      int    // how much of taken is written
	appended uint64 // bytes since the start
	written  uint64 // bytes since the start
	busy     bool   // taken has an owner
	handed   bool   // and it is the writer goroutine
	last     bool   // a DISCONNECT has been appended
	stopped  bool
	err      error // the first failed write

	tryWrite *rawOp        // nil where only blocking writes are possible
	wake     chan struct{} // capacity 1
	failed   chan struct{} // closed with err set
	done     chan struct{} // closed when the writer goroutine has returned
}

func (c *guardConn) startWriter() {
	c.out.wake = make(chan struct{}, 1)
	c.out.failed = make(chan struct{})
	c.out.done = make(chan struct{})
	go c.writeLoop()
}

// append adds whole packets: f appends them to dst and returns it. f runs under
// the lock of the stream, so it must be short. The result is the offset in the
// stream after them. Nothing is sent before flush, and f is not called once the
// connection is closing or broken.
func (c *guardConn) append(f func(dst []byte) []byte) uint64 {
	o := &c.out
	o.mu.Lock()
	defer o.mu.Unlock()
	o.add(f)
	return o.appended
}

// add is append with the lock held.
func (o *outStream) add(f func(dst []byte) []byte) {
	if o.last || o.stopped || o.err != nil {
		return
	}
	before := len(o.buf)
	o.buf = f(o.buf)
	o.appended += uint64(len(o.buf) - before)
}

// disconnect sends what is buffered and, as the last packet, the DISCONNECT that f
// appends: nothing may follow it [MQTT-3.14.4-2], so everything later is left out,
// another DISCONNECT too.
func (c *guardConn) disconnect(f func(dst []byte) []byte) {
	c.out.mu.Lock()
	c.out.add(f)
	c.out.last = true
	c.out.mu.Unlock()
	c.flush()
}

// offset is the number of bytes appended so far.
func (c *guardConn) offset() uint64 {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	return c.out.appended
}

// flush sends what is buffered without ever blocking: what the socket does not
// take at once is left to the writer goroutine, as is everything on a connection
// that can only be written blocking (TLS, websocket). It calls
// packetHandler.flushed, so the caller must hold no lock that flushed takes.
func (c *guardConn) flush() {
	o := &c.out
	o.mu.Lock()
	if o.busy || len(o.buf) == 0 || o.err != nil {
		o.mu.Unlock()
		return // an owner looks again before it leaves
	}
	o.busy = true
	if o.tryWrite != nil {
		for range inlineWrites {
			o.take()
			o.mu.Unlock()
			n, err := o.tryWrite.once(o.taken)
			o.mu.Lock()
			c.didWrite(n, err)
			if n < len(o.taken) || len(o.buf) == 0 {
				break
			}
		}
	}
	written := o.written
	o.busy = o.err == nil && (o.off < len(o.taken) || len(o.buf) > 0)
	o.handed = o.busy
	o.shrink()
	wake := o.busy || o.stopped // a stopping writer waits for this owner
	o.mu.Unlock()
	c.h.flushed(c, written)
	if wake {
		c.wakeWriter()
	}
}

// take makes what is buffered the next to be written. The lock is held, and taken
// has been written.
func (o *outStream) take() {
	o.taken, o.buf, o.off = o.buf, o.taken[:0], 0
	if cap(o.buf) > keepWrite {
		o.buf = nil
	}
}

// shrink gives back a large buffer that has been written. The lock is held.
func (o *outStream) shrink() {
	if o.off == len(o.taken) && cap(o.taken) > keepWrite {
		o.taken, o.off = nil, 0
	}
}

// didWrite accounts for one write by the owner. The lock is held.
func (c *guardConn) didWrite(n int, err error) {
	o := &c.out
	o.off += n
	o.written += uint64(n)
	if err == nil {
		return
	}
	o.err = err
	close(o.failed)
	if !o.stopped {
		// The reader finds out by itself, after the DISCONNECT that may explain it;
		// but not on every kind of failure.
		_ = c.nc.SetReadDeadline(time.Now().Add(closeGrace))
	}
}

func (c *guardConn) wakeWriter() {
	select {
	case c.out.wake <- struct{}{}:
	default: // awake already
	}
}

// writeLoop writes, blocking, whatever flush leaves to it. Close ends it, after
// it has written what is buffered.
func (c *guardConn) writeLoop() {
	o := &c.out
	defer close(o.done)
	for range o.wake {
		o.mu.Lock()
		if o.busy && !o.handed {
			o.mu.Unlock()
			continue // its owner wakes us when it leaves
		}
		o.busy, o.handed = true, true
		for o.err == nil {
			if o.off == len(o.taken) {
				if len(o.buf) == 0 {
					break
				}
				o.take()
			}
			rest := o.taken[o.off:]
			o.mu.Unlock()
			n, err := c.nc.Write(rest)
			o.mu.Lock()
			c.didWrite(n, err)
			written := o.written
			o.mu.Unlock()
			c.h.flushed(c, written)
			o.mu.Lock()
		}
		o.busy, o.handed = false, false
		o.shrink()
		stopped := o.stopped
		o.mu.Unlock()
		if stopped {
			return
		}
	}
}

// stopWriter lets the writer goroutine write what is buffered and waits for it.
func (c *guardConn) stopWriter() {
	c.out.mu.Lock()
	c.out.stopped = true
	c.out.mu.Unlock()
	c.wakeWriter()
	<-c.out.done
}

func (c *guardConn) writeError() error {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	return c.out.err
}

// Lock begins one packet of the library, which writes a packet in several pieces
// between Lock and Unlock.
func (c *guardConn) Lock() { c.out.mu.Lock() }

// Unlock ends a packet of the library and sends it.
func (c *guardConn) Unlock() {
	c.out.mu.Unlock()
	c.flush()
}

// Write buffers a piece of a packet. The caller holds the lock.
func (c *guardConn) Write(p []byte) (int, error) {
	o := &c.out
	if o.err != nil {
		return 0, o.err
	}
	if o.stopped || o.last {
		return 0, net.ErrClosed
	}
	o.buf = append(o.buf, p...)
	o.appended += uint64(len(p))
	return len(p), nil
}
