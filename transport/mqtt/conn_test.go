package mqtt

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/google/go-cmp/cmp"

	"github.com/gobridge/gobridge/transport/mqtt/wire"
)

// recorder is a packetHandler that notes what it is told, in order.
type recorder struct {
	mu     sync.Mutex
	events []string
	bursts int

	total   atomic.Uint64
	written chan struct{} // capacity 1: signalled by flushed
	onAdmit func(c *guardConn, size int) bool
	onEvent func(c *guardConn)
	quiet   bool // count bursts and totals alone
}

func newRecorder() *recorder { return &recorder{written: make(chan struct{}, 1)} }

func (r *recorder) publish(c *guardConn, p *wire.Publish) {
	if !r.quiet {
		r.note(fmt.Sprintf("publish %d %s %.20s", p.PacketID, p.Topic, p.Payload))
	}
	if r.onEvent != nil {
		r.onEvent(c)
	}
}

func (r *recorder) ack(c *guardConn, a wire.Ack) {
	if !r.quiet {
		r.note(fmt.Sprintf("%s %d %d", wire.TypeName(a.Type), a.ID, a.Reason))
	}
	if r.onEvent != nil {
		r.onEvent(c)
	}
}

func (r *recorder) burstEnd(*guardConn) {
	r.mu.Lock()
	r.bursts++
	r.mu.Unlock()
}

func (r *recorder) flushed(_ *guardConn, total uint64) {
	for old := r.total.Load(); total > old && !r.total.CompareAndSwap(old, total); old = r.total.Load() {
	}
	select {
	case r.written <- struct{}{}:
	default:
	}
}

func (r *recorder) admit(c *guardConn, size int) bool { return r.onAdmit == nil || r.onAdmit(c, size) }

func (r *recorder) note(event string) {
	r.mu.Lock()
	r.events = append(r.events, event)
	r.mu.Unlock()
}

func (r *recorder) seen() ([]string, int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events), r.bursts
}

// tcpPair returns the two ends of a loopback connection.
func tcpPair(t testing.TB) (near, far net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	near, err = net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close(); far.Close() })
	return near, far
}

// pairs are the kinds of connection a guardConn behaves differently on: one with
// non-blocking system calls and one without.
var pairs = map[string]func(t testing.TB) (near, far net.Conn){
	"tcp":  tcpPair,
	"pipe": func(testing.TB) (near, far net.Conn) { return net.Pipe() },
}

func guard(t testing.TB, nc net.Conn, h packetHandler, maxPacket uint32) *guardConn {
	t.Helper()
	c := newGuardConn(nc, h, guardOptions{MaxPacket: maxPacket, Logger: slog.New(slog.DiscardHandler)})
	t.Cleanup(func() { c.Close() })
	return c
}

const testMaxPacket = 1 << 20

func publishFrame(t testing.TB, qos byte, id uint16, topic string, payload []byte) []byte {
	t.Helper()
	frame, err := wire.AppendPublish(nil, &wire.Publish{QoS: qos, PacketID: id, Topic: []byte(topic), Payload: payload}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return frame
}

var (
	connack  = []byte{0x20, 3, 0, 0, 0}
	pingresp = []byte{0xd0, 0}
)

// conversation is a stream of every kind of packet with what must come of it:
// events of the handler and, in their place, the packets of the library.
func conversation(t testing.TB) (stream []byte, events []string) {
	big := bytes.Repeat([]byte("large"), 30_000)
	add := func(event string, frame []byte) {
		stream = append(stream, frame...)
		events = append(events, event)
	}
	add("library CONNACK", connack)
	add("publish 0 a first", publishFrame(t, 0, 0, "a", []byte("first")))
	add("PUBACK 1 0", wire.AppendAck(nil, wire.PUBACK, 1, 0))
	add("library PINGRESP", pingresp)
	add("PUBREC 2 151", wire.AppendAck(nil, wire.PUBREC, 2, 0x97))
	add("library SUBACK", []byte{0x90, 4, 0xff, 0xff, 0, 1})
	add("publish 3 b largelargelargelarge", publishFrame(t, 1, 3, "b", big))
	add("publish 4 c largelargelargelarge", publishFrame(t, 2, 4, "c", big[:70_000]))
	add("PUBREL 4 0", wire.AppendAck(nil, wire.PUBREL, 4, 0))
	add("library UNSUBACK", []byte{0xb0, 4, 0xff, 0xfe, 0, 0})
	add("PUBCOMP 5 0", wire.AppendAck(nil, wire.PUBCOMP, 5, 0))
	add("publish 6 d last", publishFrame(t, 1, 6, "d", []byte("last")))
	add("library DISCONNECT", []byte{0xe0, 2, 0x97, 0})
	return stream, events
}

// readLibrary reads packets as the library does, noting each, until an error.
func readLibrary(c *guardConn, r *recorder) error {
	for {
		packet, err := packets.ReadPacket(c)
		if err != nil {
			return err
		}
		r.note("library " + packet.PacketType())
	}
}

func TestGuardConnFramesAnySegmentation(t *testing.T) {
	stream, want := conversation(t)
	segmentations := map[string]int{"a byte at a time": 1, "7 bytes": 7, "4096 bytes": 4096, "all at once": len(stream)}
	for kind, pair := range pairs {
		for name, size := range segmentations {
			if kind == "tcp" && size == 1 {
				continue // the kernel joins them; the pipe does not
			}
			t.Run(kind+"/"+name, func(t *testing.T) {
				t.Parallel()
				near, far := pair(t)
				r := newRecorder()
				c := guard(t, near, r, testMaxPacket)
				var wg sync.WaitGroup
				wg.Go(func() {
					for segment := range slices.Chunk(stream, size) {
						if _, err := far.Write(segment); err != nil {
							t.Error(err)
							break
						}
					}
					far.Close()
				})
				if err := readLibrary(c, r); !errors.Is(err, io.EOF) {
					t.Errorf("reading ended with %v, want EOF", err)
				}
				wg.Wait()
				events, _ := r.seen()
				if diff := cmp.Diff(want, events); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		}
	}
}

func TestGuardConnBatchesThousandsOfPacketsOfOneSegment(t *testing.T) {
	stream := slices.Clone(connack)
	var want []string
	for i := range 5000 {
		id := uint16(i + 1)
		stream = append(stream, publishFrame(t, 1, id, "t", []byte("x"))...)
		stream = wire.AppendAck(stream, wire.PUBACK, id, 0)
		want = append(want, fmt.Sprintf("publish %d t x", id), fmt.Sprintf("PUBACK %d 0", id))
	}
	near, far := tcpPair(t)
	r := newRecorder()
	c := guard(t, near, r, testMaxPacket)
	var wg sync.WaitGroup
	wg.Go(func() {
		far.Write(stream)
		far.Close()
	})
	if err := readLibrary(c, r); !errors.Is(err, io.EOF) {
		t.Errorf("reading ended with %v, want EOF", err)
	}
	wg.Wait()
	events, bursts := r.seen()
	if diff := cmp.Diff(append([]string{"library CONNACK"}, want...), events); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if bursts == 0 || bursts > 200 {
		t.Errorf("%d bursts for 10000 packets", bursts)
	}
}

func TestGuardConnDispatchesNothingBehindTheConnackBeforeTheNextRead(t *testing.T) {
	for kind, pair := range pairs {
		t.Run(kind, func(t *testing.T) {
			near, far := pair(t)
			r := newRecorder()
			c := guard(t, near, r, testMaxPacket)
			var wg sync.WaitGroup
			wg.Go(func() {
				far.Write(slices.Concat(connack, publishFrame(t, 1, 1, "t", []byte("x")), pingresp))
			})
			got := make([]byte, len(connack))
			if _, err := io.ReadFull(c, got); err != nil {
				t.Fatal(err)
			}
			if events, _ := r.seen(); len(events) > 0 {
				t.Errorf("dispatched before the library was done with the CONNACK: %q", events)
			}
			if n, err := io.ReadFull(c, got[:len(pingresp)]); err != nil {
				t.Fatal(n, err)
			}
			if events, _ := r.seen(); !slices.Equal(events, []string{"publish 1 t x"}) {
				t.Errorf("got %q, want the publish", events)
			}
			wg.Wait()
		})
	}
}

// Covers: S1-209, S1-210, S1-615
func TestGuardConnRefusesWhatBreaksTheProtocol(t *testing.T) {
	malformed := func(packet, what string, reason byte, dump string) error {
		return &wire.MalformedError{Packet: packet, What: what, Reason: reason, Dump: dump}
	}
	large := publishFrame(t, 1, 1, "topic", make([]byte, 2000))
	for _, tt := range []struct {
		name   string
		stream []byte
		want   error
		reason byte
	}{
		{"malformed PUBLISH", slices.Concat(connack, []byte{0x36, 4, 0, 1, 't', 0}), malformed("PUBLISH", "QoS 3", 0x81, "360400017400"), 0x81},
		{"protocol error in a PUBLISH", slices.Concat(connack, []byte{0x30, 4, 0, 1, '#', 0}), malformed("PUBLISH", "wildcard in the topic", 0x82, "300400012300"), 0x82},
		{"malformed PUBACK", slices.Concat(connack, []byte{0x40, 1, 0}), malformed("PUBACK", "no packet identifier", 0x81, "400100"), 0x81},
		{"length of five bytes", slices.Concat(connack, []byte{0x40, 0xff, 0xff, 0xff, 0xff, 1}), malformed("PUBACK", "remaining length", 0x81, "40ffffffff"), 0x81},
		{"reserved type", slices.Concat(connack, []byte{0x00, 0}), malformed("reserved packet", "reserved packet type", 0x81, "0000"), 0x81},
		{"SUBSCRIBE from a server", slices.Concat(connack, []byte{0x82, 0}), malformed("SUBSCRIBE", "packet that only a client may send", 0x82, "8200"), 0x82},
		{"second CONNACK", slices.Concat(connack, []byte{0x20, 3, 0, 0, 0}), malformed("CONNACK", "second CONNACK", 0x82, "2003000000"), 0x82},
		{"PUBLISH before the CONNACK", []byte{0x30, 4, 0, 1, 't', 0}, malformed("PUBLISH", "packet before the CONNACK", 0x82, "300400017400"), 0x82},
		{"oversize PUBLISH", slices.Concat(connack, large[:10]), &oversizeError{Packet: "PUBLISH", Size: len(large), Max: 1000}, 0x95},
		{"oversize CONNACK", []byte{0x20, 0xff, 0xff, 0xff, 0x7f}, &oversizeError{Packet: "CONNACK", Size: 268_435_460, Max: 1000}, 0x95},
		{"dump of a long packet", slices.Concat(connack, []byte{0x36, 100}, bytes.Repeat([]byte{'s'}, 100)), malformed("PUBLISH", "QoS 3", 0x81, "3664"+strings.Repeat("73", 30)), 0x81},
	} {
		t.Run(tt.name, func(t *testing.T) {
			near, far := tcpPair(t)
			r := newRecorder()
			c := guard(t, near, r, 1000)
			if _, err := far.Write(append(tt.stream, publishFrame(t, 0, 0, "after", nil)...)); err != nil {
				t.Fatal(err)
			}
			err := readLibrary(c, r)
			if diff := cmp.Diff(tt.want, err); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
			if again := readLibrary(c, r); again != err {
				t.Errorf("the next read fails with %v, want the same error", again)
			}
			if events, _ := r.seen(); slices.ContainsFunc(events, func(e string) bool { return strings.HasPrefix(e, "publish") }) {
				t.Errorf("dispatched %q", events)
			}
			c.Close()
			sent, err := io.ReadAll(far)
			if want := []byte{0xe0, 1, tt.reason}; err != nil || !bytes.Equal(sent, want) {
				t.Errorf("the server got %x, %v; want %x", sent, err, want)
			}
		})
	}
}

func TestGuardConnReportsAnEndInsideAPacket(t *testing.T) {
	near, far := tcpPair(t)
	r := newRecorder()
	c := guard(t, near, r, testMaxPacket)
	far.Write(slices.Concat(connack, publishFrame(t, 0, 0, "t", []byte("payload"))[:5]))
	far.Close()
	if err := readLibrary(c, r); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %v, want an unexpected EOF", err)
	}
}

func TestGuardConnPausesUntilTheHandlerHasRoom(t *testing.T) {
	for kind, pair := range pairs {
		t.Run(kind, func(t *testing.T) {
			near, far := pair(t)
			r := newRecorder()
			var open atomic.Bool
			asked := make(chan int, 10)
			r.onAdmit = func(_ *guardConn, size int) bool {
				asked <- size
				return open.Load()
			}
			c := guard(t, near, r, testMaxPacket)
			frame := publishFrame(t, 1, 1, "t", []byte("x"))
			var wg sync.WaitGroup
			wg.Go(func() {
				far.Write(slices.Concat(connack, wire.AppendAck(nil, wire.PUBACK, 9, 0), frame))
				far.Close()
			})
			ended := make(chan error, 1)
			wg.Go(func() { ended <- readLibrary(c, r) })
			for range 2 { // once, and again after the pause began
				if size := <-asked; size != len(frame) {
					t.Errorf("asked to admit %d bytes, want %d", size, len(frame))
				}
			}
			if !c.paused() {
				t.Error("not paused while the handler has no room")
			}
			if events, bursts := r.seen(); bursts != 1 || !slices.Equal(events, []string{"library CONNACK", "PUBACK 9 0"}) {
				t.Errorf("before the pause: %d bursts, %q", bursts, events)
			}
			c.resume()
			<-asked // still no room
			open.Store(true)
			c.resume()
			if err := <-ended; !errors.Is(err, io.EOF) {
				t.Errorf("reading ended with %v, want EOF", err)
			}
			if c.paused() {
				t.Error("still paused")
			}
			if events, _ := r.seen(); !slices.Equal(events, []string{"library CONNACK", "PUBACK 9 0", "publish 1 t x"}) {
				t.Errorf("got %q", events)
			}
			wg.Wait()
		})
	}
}

func TestGuardConnCloseEndsAPause(t *testing.T) {
	near, far := tcpPair(t)
	r := newRecorder()
	asked := make(chan struct{}, 2)
	r.onAdmit = func(*guardConn, int) bool {
		asked <- struct{}{}
		return false
	}
	c := guard(t, near, r, testMaxPacket)
	far.Write(slices.Concat(connack, publishFrame(t, 0, 0, "t", nil)))
	ended := make(chan error, 1)
	go func() { ended <- readLibrary(c, r) }()
	<-asked
	<-asked
	c.Close()
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v, want net.ErrClosed", err)
	}
	select {
	case <-c.closed():
	default:
		t.Error("closed() is not closed")
	}
}

func TestGuardConnLastReadAdvancesWithTheSocket(t *testing.T) {
	near, far := tcpPair(t)
	c := guard(t, near, newRecorder(), testMaxPacket)
	created := c.lastRead()
	far.Write(connack)
	if _, err := io.ReadFull(c, make([]byte, len(connack))); err != nil {
		t.Fatal(err)
	}
	if !c.lastRead().After(created) || time.Since(c.lastRead()) > time.Minute {
		t.Errorf("created at %v, last read at %v", created, c.lastRead())
	}
}

func TestGuardConnConcurrentCloseStopsDispatch(t *testing.T) {
	for kind, pair := range pairs {
		t.Run(kind, func(t *testing.T) {
			for range 20 {
				near, far := pair(t)
				r := newRecorder()
				started := make(chan struct{})
				r.onEvent = sync.OnceValue(func() func(*guardConn) {
					var once sync.Once
					return func(*guardConn) { once.Do(func() { close(started) }) }
				})()
				c := guard(t, near, r, testMaxPacket)
				var wg sync.WaitGroup
				wg.Go(func() {
					defer far.Close()
					frame := slices.Repeat(publishFrame(t, 0, 0, "t", []byte("x")), 50)
					if _, err := far.Write(connack); err != nil {
						return
					}
					for {
						if _, err := far.Write(frame); err != nil {
							return
						}
					}
				})
				reading := make(chan struct{})
				go func() {
					defer close(reading)
					if err := readLibrary(c, r); err == nil {
						t.Error("reading ended without an error")
					}
				}()
				<-started
				for range 3 {
					wg.Go(func() { c.Close() })
				}
				<-reading
				after, _ := r.seen()
				wg.Wait()
				if _, err := c.Read(make([]byte, 10)); err == nil {
					t.Error("a read after Close succeeded")
				}
				if later, _ := r.seen(); len(later) != len(after) {
					t.Errorf("%d packets dispatched after Close", len(later)-len(after))
				}
			}
		})
	}
}

func TestGuardConnReceivesAndSendsWithoutAllocating(t *testing.T) {
	stream := slices.Repeat(slices.Concat(publishFrame(t, 1, 1, "t", make([]byte, 256)), wire.AppendAck(nil, wire.PUBACK, 1, 0)), 100)
	stream = append(stream, pingresp...)
	near, far := tcpPair(t)
	r := newRecorder()
	r.quiet = true
	c := guard(t, near, r, testMaxPacket)
	far.Write(connack)
	in := make([]byte, len(connack))
	if _, err := io.ReadFull(c, in); err != nil {
		t.Fatal(err)
	}
	sink := make([]byte, 64<<10)
	allocs := testing.AllocsPerRun(50, func() {
		far.Write(stream)
		if _, err := io.ReadFull(c, in[:2]); err != nil {
			t.Fatal(err)
		}
		c.append(func(dst []byte) []byte { return append(dst, stream...) })
		c.flush()
		io.ReadFull(far, sink[:len(stream)])
	})
	if allocs > 0 {
		t.Errorf("%v allocations for 400 packets, want 0", allocs)
	}
}

func FuzzGuardConn(f *testing.F) {
	stream, _ := conversation(f)
	f.Add(stream[:400], uint64(1))
	f.Add(slices.Concat(connack, publishFrame(f, 0, 0, "t", []byte("x")), []byte{0x36, 0}, pingresp), uint64(3))
	f.Add([]byte{0x20, 0x80, 0x80, 0x80, 0x80, 1}, uint64(9))
	f.Fuzz(func(t *testing.T, stream []byte, cut uint64) {
		near, far := net.Pipe()
		r := newRecorder()
		c := newGuardConn(near, r, guardOptions{MaxPacket: 100_000, Logger: slog.New(slog.DiscardHandler)})
		p := make([]byte, 1+cut%50)
		var wg sync.WaitGroup
		wg.Go(func() {
			defer far.Close()
			for rest := stream; len(rest) > 0; {
				n := min(int(1+cut%97), len(rest))
				cut = cut*6364136223846793005 + 1
				if _, err := far.Write(rest[:n]); err != nil {
					return
				}
				rest = rest[n:]
			}
		})
		wg.Go(func() { io.Copy(io.Discard, far) })
		var handed []byte
		for {
			n, err := c.Read(p)
			handed = append(handed, p[:n]...)
			if err != nil {
				break
			}
		}
		events, _ := r.seen()
		if _, err := c.Read(p); err == nil {
			t.Error("a read after the error succeeded")
		}
		if later, _ := r.seen(); len(later) != len(events) {
			t.Errorf("%d packets dispatched after the error", len(later)-len(events))
		}
		c.Close()
		wg.Wait()
		for len(handed) > 0 { // the library got whole packets, of the kinds that are its own
			typ, total, ok, err := wire.Header(handed)
			if !ok || err != nil || total > len(handed) || typ >= wire.PUBLISH && typ <= wire.PUBCOMP {
				t.Fatalf("the library was handed %x", handed)
			}
			handed = handed[total:]
		}
	})
}

func BenchmarkGuardConnReceive(b *testing.B) {
	frame := publishFrame(b, 1, 1, "site/line/temperature", make([]byte, 256))
	stream := slices.Repeat(frame, 200)
	near, far := tcpPair(b)
	r := newRecorder()
	r.quiet = true
	c := guard(b, near, r, testMaxPacket)
	far.Write(connack)
	in := make([]byte, len(connack))
	if _, err := io.ReadFull(c, in); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.SetBytes(int64(len(frame)))
	for i := 0; i < b.N; i += 200 {
		far.Write(stream)
		far.Write(pingresp)
		if _, err := io.ReadFull(c, in[:2]); err != nil {
			b.Fatal(err)
		}
	}
}
