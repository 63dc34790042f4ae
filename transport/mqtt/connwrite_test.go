package mqtt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gobridge/gobridge/transport/mqtt/wire"
)

func TestGuardConnKeepsBytesInOrderUnderMixedWriters(t *testing.T) {
	const writers, rounds = 6, 400
	for kind, pair := range pairs {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			near, far := pair(t)
			if tcp, ok := near.(*net.TCPConn); ok {
				if err := errors.Join(tcp.SetWriteBuffer(16<<10), far.(*net.TCPConn).SetReadBuffer(64<<10)); err != nil {
					t.Fatal(err)
				}
			}
			r := newRecorder()
			c := guard(t, near, r, testMaxPacket)
			var wg sync.WaitGroup
			for w := range writers {
				wg.Go(func() {
					for i := range rounds {
						frame := make([]byte, 8+(i*37+w*11)%900)
						binary.BigEndian.PutUint16(frame, uint16(w))
						binary.BigEndian.PutUint16(frame[2:], uint16(i))
						binary.BigEndian.PutUint32(frame[4:], uint32(len(frame)))
						if w%2 == 0 {
							c.append(func(dst []byte) []byte { return append(dst, frame...) })
							if i%3 == 0 {
								c.flush()
							}
							continue
						}
						c.Lock() // as the library does: one packet in pieces
						_, first := c.Write(frame[:3])
						_, second := c.Write(frame[3:])
						c.Unlock()
						if err := errors.Join(first, second); err != nil {
							t.Error(err)
						}
					}
					c.flush()
				})
			}
			next := make([]int, writers)
			header := make([]byte, 8)
			for n := range writers * rounds {
				if _, err := io.ReadFull(far, header); err != nil {
					t.Fatalf("after %d frames: %v", n, err)
				}
				w, i := binary.BigEndian.Uint16(header), binary.BigEndian.Uint16(header[2:])
				if int(w) >= writers || int(i) != next[w] {
					t.Fatalf("frame %d is number %d of writer %d, want %d", n, i, w, next[w])
				}
				next[w]++
				body := make([]byte, binary.BigEndian.Uint32(header[4:])-8)
				if _, err := io.ReadFull(far, body); err != nil || len(bytes.Trim(body, "\x00")) > 0 {
					t.Fatalf("body of frame %d: %v", n, err)
				}
			}
			wg.Wait()
			for r.total.Load() < c.offset() {
				<-r.written
			}
			if r.total.Load() != c.offset() {
				t.Errorf("flushed %d of %d bytes", r.total.Load(), c.offset())
			}
		})
	}
}

func TestGuardConnFlushNeverBlocks(t *testing.T) {
	t.Parallel()
	for kind, pair := range pairs {
		t.Run(kind, func(t *testing.T) {
			near, far := pair(t)
			c := guard(t, near, newRecorder(), testMaxPacket)
			block := make([]byte, 1<<20)
			const blocks = 10 // more than the sockets hold
			for range blocks {
				c.append(func(dst []byte) []byte { return append(dst, block...) })
				c.flush()
			}
			for i := range blocks {
				if _, err := io.ReadFull(far, block); err != nil {
					t.Errorf("block %d: %v", i, err)
				}
			}
		})
	}
}

// [MQTT-3.14.4-2]
func TestNothingFollowsADisconnect(t *testing.T) {
	for kind, pair := range pairs {
		t.Run(kind, func(t *testing.T) {
			near, far := pair(t)
			c := guard(t, near, newRecorder(), testMaxPacket)
			received := make(chan []byte, 1)
			go func() {
				b, _ := io.ReadAll(far)
				received <- b
			}()
			c.append(func(dst []byte) []byte { return wire.AppendAck(dst, wire.PUBACK, 1, 0) })
			c.disconnect(disconnectFor(0))
			c.append(func(dst []byte) []byte { return wire.AppendAck(dst, wire.PUBACK, 2, 0) })
			c.disconnect(disconnectFor(wire.ReasonProtocolError))
			c.Lock()
			_, err := c.Write([]byte{0xc0, 0})
			c.Unlock()
			if err == nil {
				t.Error("the library may write after the DISCONNECT")
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			if b := <-received; !bytes.Equal(b, []byte{0x40, 2, 0, 1, 0xe0, 0}) {
				t.Errorf("the server got %x", b)
			}
		})
	}
}

func TestGuardConnCloseWritesWhatIsBuffered(t *testing.T) {
	for kind, pair := range pairs {
		t.Run(kind, func(t *testing.T) {
			near, far := pair(t)
			r := newRecorder()
			c := guard(t, near, r, testMaxPacket)
			received := make(chan []byte, 1)
			go func() {
				b, _ := io.ReadAll(far)
				received <- b
			}()
			c.append(func(dst []byte) []byte { return wire.AppendDisconnect(dst, 0) })
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			if b := <-received; !bytes.Equal(b, []byte{0xe0, 0}) {
				t.Errorf("the server got %x, want e000", b)
			}
			if r.total.Load() != 2 {
				t.Errorf("flushed %d bytes, want 2", r.total.Load())
			}
			if n := c.append(func(dst []byte) []byte { t.Error("appended after Close"); return dst }); n != 2 {
				t.Errorf("offset %d after Close, want 2", n)
			}
			c.Lock()
			_, err := c.Write([]byte("x"))
			c.Unlock()
			if !errors.Is(err, net.ErrClosed) {
				t.Errorf("write after Close: %v, want net.ErrClosed", err)
			}
		})
	}
}

func TestGuardConnCloseDoesNotWaitForAPeerThatDoesNotRead(t *testing.T) {
	for kind, pair := range pairs {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			near, _ := pair(t)
			c := guard(t, near, newRecorder(), testMaxPacket)
			c.append(func(dst []byte) []byte { return append(dst, make([]byte, 16<<20)...) })
			c.flush()
			begin := time.Now()
			c.Close()
			if took := time.Since(begin); took < closeGrace/2 || took > closeGrace+5*time.Second {
				t.Errorf("closing took %v", took)
			}
		})
	}
}

func TestGuardConnFailedWriteEndsTheReading(t *testing.T) {
	t.Parallel()
	near, far := net.Pipe()
	broken := &brokenWrites{Conn: near, err: errors.New("no route")}
	r := newRecorder()
	c := guard(t, broken, r, testMaxPacket)
	ended := make(chan error, 1)
	go func() { ended <- readLibrary(c, r) }()
	c.append(func(dst []byte) []byte { return append(dst, "x"...) })
	c.flush()
	if err := <-ended; !errors.Is(err, broken.err) {
		t.Errorf("reading ended with %v, want the error of the write", err)
	}
	far.Close()
}

type brokenWrites struct {
	net.Conn
	err error
}

func (b *brokenWrites) Write([]byte) (int, error) { return 0, b.err }

func TestGuardConnFailedWriteEndsAPause(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	broken := &brokenWrites{Conn: near, err: errors.New("no route")}
	r := newRecorder()
	asked := make(chan struct{}, 2)
	r.onAdmit = func(*guardConn, int) bool {
		asked <- struct{}{}
		return false
	}
	c := guard(t, broken, r, testMaxPacket)
	go far.Write(slices.Concat(connack, publishFrame(t, 0, 0, "t", nil)))
	ended := make(chan error, 1)
	go func() { ended <- readLibrary(c, r) }()
	<-asked
	<-asked
	c.append(func(dst []byte) []byte { return append(dst, "x"...) })
	c.flush()
	if err := <-ended; !errors.Is(err, broken.err) {
		t.Errorf("reading ended with %v, want the error of the write", err)
	}
}

func BenchmarkGuardConnAppendFlush(b *testing.B) {
	for _, batch := range []int{1, 16} {
		b.Run(fmt.Sprintf("%d a flush", batch), func(b *testing.B) {
			frame := publishFrame(b, 1, 1, "site/line/temperature", make([]byte, 256))
			near, far := tcpPair(b)
			r := newRecorder()
			c := guard(b, near, r, testMaxPacket)
			go io.Copy(io.Discard, far)
			b.ReportAllocs()
			b.SetBytes(int64(len(frame)))
			for i := 0; b.Loop(); i++ {
				c.append(func(dst []byte) []byte { return append(dst, frame...) })
				if i%batch == 0 {
					c.flush()
				}
			}
		})
	}
}
