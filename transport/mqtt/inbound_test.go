package mqtt

import (
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/metric"
	"github.com/gobridge/gobridge/transport/mqtt/wire"
)

// tapeConn is a connection that records what is written and says nothing.
type tapeConn struct {
	net.Conn
	closed chan struct{}

	mu      sync.Mutex
	written []byte
	changed sync.Cond
}

func newTapeConn() *tapeConn {
	c := &tapeConn{closed: make(chan struct{})}
	c.changed.L = &c.mu
	return c
}

func (c *tapeConn) Read([]byte) (int, error)         { <-c.closed; return 0, net.ErrClosed }
func (c *tapeConn) Close() error                     { close(c.closed); return nil }
func (c *tapeConn) SetReadDeadline(time.Time) error  { return nil }
func (c *tapeConn) SetWriteDeadline(time.Time) error { return nil }

func (c *tapeConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.written = append(c.written, p...)
	c.changed.Broadcast()
	return len(p), nil
}

// acks returns the identifiers of the PUBACK and PUBREC packets written, once all
// of total bytes are.
func (c *tapeConn) acks(total uint64) []uint16 {
	c.mu.Lock()
	defer c.mu.Unlock()
	for uint64(len(c.written)) < total {
		c.changed.Wait()
	}
	var ids []uint16
	for b := c.written; len(b) > 0; {
		typ, n, _, _ := wire.Header(b)
		var a wire.Ack
		if err := wire.ParseAck(b[0], wire.Body(b[:n]), &a); err != nil {
			panic(err)
		}
		if typ == wire.PUBACK || typ == wire.PUBREC {
			ids = append(ids, a.ID)
		}
		b = b[n:]
	}
	return ids
}

// message is one message as the broker of the model sees it.
type message struct {
	id      uint16
	qos     byte
	payload string
}

// inboundModel is a broker with a window of its own liking, a route that takes
// everything, and connections that come and go.
type inboundModel struct {
	in       *inbound
	tape     *tapeConn
	conn     *guardConn
	unacked  []message // of the broker, in the order of sending
	received []message // on this connection, in the order of receipt
	next     int
	lastID   uint16

	taken   []*gobridge.Delivery
	settled map[string]bool
}

func (m *inboundModel) emit(batch []*gobridge.Delivery) (int, error) {
	m.taken = append(m.taken, batch...)
	return len(batch), nil
}

func (m *inboundModel) connect(present bool) {
	m.tape = newTapeConn()
	m.conn = newGuardConn(m.tape, newRecorder(), guardOptions{MaxPacket: 1 << 20, Logger: slog.New(slog.DiscardHandler)})
	m.in.connected(m.conn, present)
	m.received = nil
	if !present {
		m.unacked = nil
	}
	for _, msg := range m.unacked {
		m.deliver(msg, true)
	}
}

func (m *inboundModel) disconnect() {
	_ = m.conn.Close()
	m.in.lost(m.conn)
}

func (m *inboundModel) deliver(msg message, dup bool) {
	if _, err := m.in.publish(m.conn, &wire.Publish{Dup: dup, QoS: msg.qos, PacketID: msg.id, Topic: []byte("in/a"), Payload: []byte(msg.payload)}); err != nil {
		panic(err)
	}
	m.received = append(m.received, msg)
	m.in.pump()
}

func (m *inboundModel) publish(qos byte) {
	for {
		m.lastID = m.lastID%50 + 1 // few identifiers, so that they are used again soon
		if !slices.ContainsFunc(m.unacked, func(o message) bool { return o.id == m.lastID }) {
			break
		}
	}
	m.next++
	msg := message{id: m.lastID, qos: qos, payload: fmt.Sprint(m.next)}
	m.unacked = append(m.unacked, msg)
	m.deliver(msg, false)
}

// check compares what was acknowledged on this connection with what must have
// been: everything received up to the first that is not settled, in that order.
func (m *inboundModel) check(t *rapid.T) {
	m.conn.flush()
	acked := m.tape.acks(m.conn.offset())
	var want []uint16
	for _, msg := range m.received {
		if !m.settled[msg.payload] {
			break
		}
		want = append(want, msg.id)
		m.unacked = slices.DeleteFunc(m.unacked, func(o message) bool { return o.payload == msg.payload })
		if msg.qos == 2 {
			m.in.pubrel(m.conn, msg.id)
		}
	}
	if !slices.Equal(acked, want) {
		t.Fatalf("acknowledged %v, want %v", acked, want)
	}
	if got, want := m.in.health().unsettled, len(m.received)-len(want); got != want {
		t.Fatalf("%d unsettled, want %d", got, want)
	}
	seen := map[string]bool{}
	for _, d := range m.taken {
		if p := string(d.Envelope.Payload); seen[p] {
			t.Fatalf("%s was dispatched twice", p)
		} else {
			seen[p] = true
		}
	}
}

// Whatever the order of settlements, cuts and resumes: acknowledgements follow the
// order of receipt on their connection, and a message is dispatched once.
func TestInboundKeepsOrderAndDispatchesOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := newInbound(slog.New(slog.DiscardHandler), newCounters(metric.NewRegistry(), "s"))
		in.window, in.budget, in.maxBody, in.durable = 10, 1<<20, 1<<10, true
		in.filters = []string{"#"}
		m := &inboundModel{in: in, settled: map[string]bool{}}
		in.emit, in.received = m.emit, true
		m.connect(false)
		defer m.disconnect()
		t.Repeat(map[string]func(*rapid.T){
			"publish": func(t *rapid.T) {
				if len(m.unacked) > 40 {
					t.Skip()
				}
				m.publish(rapid.SampledFrom([]byte{1, 1, 2}).Draw(t, "qos"))
			},
			"settle": func(t *rapid.T) {
				if len(m.taken) == 0 {
					t.Skip()
				}
				d := rapid.SampledFrom(m.taken).Draw(t, "delivery")
				m.settled[string(d.Envelope.Payload)] = true
				d.Ack()
			},
			"cut": func(t *rapid.T) {
				m.disconnect()
				for _, d := range m.taken { // some settle while the link is down
					if rapid.IntRange(0, 4).Draw(t, "settles") == 0 {
						m.settled[string(d.Envelope.Payload)] = true
						d.Ack()
					}
				}
				m.connect(rapid.Bool().Draw(t, "present"))
			},
			"": m.check,
		})
		held := int64(0)
		for _, d := range m.taken {
			if !d.Settled() {
				held += int64(len(d.Envelope.Payload)) + deliveryOverhead
			}
		}
		blocked := int64(0)
		for i := in.tail; i != in.head; i++ {
			if d := *in.at(i); d.settled {
				blocked += d.size
			}
		}
		if in.held-blocked != held {
			t.Fatalf("%d bytes held (%d of them settled), want %d", in.held, blocked, held)
		}
	})
}
