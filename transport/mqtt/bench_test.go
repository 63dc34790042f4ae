package mqtt

import (
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/metric"
	"github.com/gobridge/gobridge/transport/mqtt/wire"
)

// sinkConn is a connection that takes everything and says nothing.
type sinkConn struct {
	net.Conn
	closed chan struct{}
}

func (c *sinkConn) Read([]byte) (int, error)         { <-c.closed; return 0, net.ErrClosed }
func (c *sinkConn) Write(p []byte) (int, error)      { return len(p), nil }
func (c *sinkConn) Close() error                     { close(c.closed); return nil }
func (c *sinkConn) SetReadDeadline(time.Time) error  { return nil }
func (c *sinkConn) SetWriteDeadline(time.Time) error { return nil }

// straight is a route without an engine: it sends what it is offered and
// acknowledges what is confirmed.
type straight struct {
	s    *session
	free []*gobridge.Outbound
	open map[*gobridge.Outbound]*gobridge.Delivery
}

func (r *straight) emit(batch []*gobridge.Delivery) (int, error) {
	for _, d := range batch {
		m := r.free[len(r.free)-1]
		r.free = r.free[:len(r.free)-1]
		m.Envelope, m.Address, m.Completion = &d.Envelope, d.Envelope.Topic, r
		r.open[m] = d
		if err := r.s.senders["out"].Send(m); err != nil {
			return 0, err
		}
	}
	return len(batch), nil
}

func (r *straight) Done(m *gobridge.Outbound, _ error) {
	r.open[m].Ack()
	delete(r.open, m)
	r.free = append(r.free, m)
}

func (r *straight) Flush() {}

// BenchmarkMessage is the way of one QoS 1 message with four properties through
// the adapter, from the parsed PUBLISH to the PUBACK of its source; the sockets
// and the engine are left out.
func BenchmarkMessage(b *testing.B) {
	const window = 100
	use := testUse("tcp://127.0.0.1:1", gobridge.ModePersistent, topics(1, "in/#"))
	check(use, func(path, what, _ string) { b.Fatalf("%s: %s", path, what) })
	opened, err := openSession(use, gobridge.Env{Logger: slog.New(slog.DiscardHandler), Metrics: metric.NewRegistry()})
	if err != nil {
		b.Fatal(err)
	}
	s := opened.(*session)
	c := newGuardConn(&sinkConn{closed: make(chan struct{})}, s, guardOptions{MaxPacket: 1 << 20, Logger: s.log})
	defer c.Close()
	s.in.connected(c, true)
	s.out.connected(c, serverLimits{receiveMaximum: 1000, maximumQoS: 2, retain: true}, true)
	s.out.deliver()
	r := &straight{s: s, open: map[*gobridge.Outbound]*gobridge.Delivery{}}
	for range window {
		r.free = append(r.free, new(gobridge.Outbound))
	}
	s.in.emit, s.in.received = r.emit, true

	frame, err := wire.AppendPublish(nil, &wire.Publish{
		QoS: 1, PacketID: 1, Topic: []byte("in/site/line/machine"), Payload: make([]byte, 256), ContentType: []byte("application/json"),
	}, []wire.UserProperty{{Name: "mqtt.message-id", Value: "0123456789abcdef"}, {Name: "site", Value: "hamburg"}, {Name: "unit", Value: "kelvin"}})
	if err != nil {
		b.Fatal(err)
	}
	var p wire.Publish
	id := uint16(0)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if err := wire.ParsePublish(frame[0], wire.Body(frame), &p); err != nil {
			b.Fatal(err)
		}
		id = id%60_000 + 1
		p.PacketID = id
		s.publish(c, &p)
		if i%window != window-1 {
			continue
		}
		s.burstEnd(c)
		for len(r.free) < window { // again for what the writer goroutine held back
			for n := range s.out.slots {
				s.ack(c, wire.Ack{Type: wire.PUBACK, ID: uint16(n + 1)})
			}
			s.burstEnd(c)
		}
	}
}
