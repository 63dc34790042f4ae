package bridgetest

import (
	"net"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// fakeWait bounds every wait of a scripted test.
const fakeWait = 10 * time.Second

// FakeBroker is an MQTT v5 broker that does what a test tells it. Without
// [FakeBroker.Auto] it says nothing by itself but PINGRESP: the test takes each
// connection with Accept and plays the broker's part packet by packet.
//
//	fb := bridgetest.NewFakeBroker(t)
//	// ... start the client under test against fb.URL()
//	conn := fb.Accept()
//	conn.ExpectConnect()
//	conn.ConnAck(&packets.Connack{Properties: &packets.Properties{ReceiveMaximum: new(uint16(5))}})
//	conn.Grant(conn.ExpectSubscribe())
//	conn.Send(&packets.Publish{Topic: "t", QoS: 1, PacketID: 1})
//	conn.Expect(packets.PUBACK)
//	conn.Disconnect(packets.DisconnectServerBusy)
type FakeBroker struct {
	t        testing.TB
	ln       net.Listener
	wg       sync.WaitGroup
	accepted chan *FakeConn

	mu      sync.Mutex
	auto    *Auto
	closing bool
	conns   []*FakeConn
	records []Record
}

// Record is one packet that the broker received.
type Record struct {
	Epoch  int // number of the connection, from 1
	At     time.Time
	Packet *packets.ControlPacket
}

// NewFakeBroker listens on a random port of 127.0.0.1 and closes everything in the
// Cleanup.
func NewFakeBroker(t testing.TB) *FakeBroker {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen for the fake broker: %v", err)
	}
	fb := &FakeBroker{t: t, ln: ln, accepted: make(chan *FakeConn, 1024)}
	fb.wg.Go(fb.accept)
	t.Cleanup(func() {
		_ = ln.Close()
		fb.mu.Lock()
		fb.closing = true
		conns := fb.conns
		fb.mu.Unlock()
		for _, c := range conns {
			c.Reset()
		}
		fb.wg.Wait()
	})
	return fb
}

// Addr returns host:port.
func (fb *FakeBroker) Addr() string { return fb.ln.Addr().String() }

// URL returns the broker as a tcp:// URL.
func (fb *FakeBroker) URL() string { return "tcp://" + fb.Addr() }

// Accept returns the next connection; its CONNECT is still to be expected. It ends
// the test when none comes within 10 s.
func (fb *FakeBroker) Accept() *FakeConn {
	fb.t.Helper()
	select {
	case c := <-fb.accepted:
		return c
	case <-time.After(fakeWait):
		fb.t.Fatalf("fake broker: no connection within %v", fakeWait)
		return nil
	}
}

// Connections returns the number of connections accepted so far.
func (fb *FakeBroker) Connections() int {
	fb.mu.Lock()
	defer fb.mu.Unlock()
	return len(fb.conns)
}

// Records returns every packet received so far, over all connections, PINGREQ
// included. With [AutoConfig.DropRecords] it stays empty.
func (fb *FakeBroker) Records() []Record {
	fb.mu.Lock()
	defer fb.mu.Unlock()
	return fb.records[:len(fb.records):len(fb.records)]
}

// CutAll resets all live connections (RST).
func (fb *FakeBroker) CutAll() {
	fb.mu.Lock()
	conns := fb.conns
	fb.mu.Unlock()
	for _, c := range conns {
		c.Reset()
	}
}

func (fb *FakeBroker) record(epoch int, p *packets.ControlPacket) {
	fb.mu.Lock()
	defer fb.mu.Unlock()
	if fb.auto != nil && fb.auto.cfg.DropRecords {
		return
	}
	fb.records = append(fb.records, Record{Epoch: epoch, At: time.Now(), Packet: p})
}

func (fb *FakeBroker) accept() {
	for {
		raw, err := fb.ln.Accept()
		if err != nil {
			return // closed in the Cleanup
		}
		c := newFakeConn(fb, raw.(*net.TCPConn))
		fb.mu.Lock()
		fb.conns = append(fb.conns, c)
		c.Epoch = len(fb.conns)
		auto, closing := fb.auto, fb.closing
		fb.mu.Unlock()
		if closing {
			c.Reset()
			continue
		}
		fb.wg.Go(c.out.run)
		if auto != nil {
			fb.wg.Go(func() { auto.serve(c) })
			continue
		}
		fb.wg.Go(c.readAll)
		fb.accepted <- c
	}
}
