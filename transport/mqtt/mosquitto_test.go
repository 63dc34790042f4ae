package mqtt

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/bridgetest"
	"github.com/gobridge/gobridge/metric"
)

// forwarder hands what a session receives to the sender of another one, and
// acknowledges what that confirms: the least that a route does.
type forwarder struct {
	from, to *running

	mu   sync.Mutex
	held []*gobridge.Outbound // in order of receipt; the destination is away
	open map[*gobridge.Outbound]*gobridge.Delivery
	room int
}

func startForwarder(t *testing.T, from, to *running, room int) *forwarder {
	f := &forwarder{from: from, to: to, open: map[*gobridge.Outbound]*gobridge.Delivery{}, room: room}
	to.Sender("out").Notify(f.available)
	f.from.receiveEmit(t, f.emit)
	return f
}

func (f *forwarder) emit(batch []*gobridge.Delivery) (int, error) {
	f.mu.Lock()
	n := 0
	for n < len(batch) && len(f.open) < f.room {
		d := batch[n]
		n++
		m := &gobridge.Outbound{Envelope: &d.Envelope, Address: "out/" + d.Envelope.Topic, Completion: f}
		f.open[m] = d
		f.hold(m)
	}
	f.send()
	f.mu.Unlock()
	f.to.Sender("out").Flush()
	return n, nil
}

// hold keeps the messages that wait in the order of their numbers, which is that of
// receipt.
func (f *forwarder) hold(m *gobridge.Outbound) {
	at, _ := slices.BinarySearchFunc(f.held, m, func(a, b *gobridge.Outbound) int {
		return f.open[a].ReceivedAt.Compare(f.open[b].ReceivedAt)
	})
	f.held = slices.Insert(f.held, at, m)
}

func (f *forwarder) send() {
	for len(f.held) > 0 && f.to.Sender("out").Send(f.held[0]) == nil {
		f.held = f.held[1:]
	}
}

func (f *forwarder) available() {
	f.mu.Lock()
	f.send()
	f.mu.Unlock()
	f.to.Sender("out").Flush()
}

func (f *forwarder) Done(m *gobridge.Outbound, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		f.hold(m)
		return
	}
	f.open[m].Ack()
	delete(f.open, m)
}

func (f *forwarder) Flush() {
	f.from.Receiver().Flush()
	f.from.Receiver().Resume()
	f.available()
}

// A backlog of 6,000 with a window of 192: this version of mosquitto runs far past
// the window once acknowledgements follow. Nothing is lost, dropped or
// disconnected (V1).
//
// Covers: S1-612
func TestBacklogPastTheWindowOnMosquitto(t *testing.T) {
	t.Parallel()
	const n = 6000
	broker := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	use := func() *gobridge.SessionUse {
		return testUse(broker.URL(), gobridge.ModePersistent, topics(1, "in/#"), keepAlive(2))
	}
	first := startSession(t, use())
	first.awaitReady(t)
	first.stop()
	publisher := bridgetest.StartPublisher(t, bridgetest.PublisherConfig{Addr: broker.Addr(), Topic: "in/a", N: n, QoS: 1, PayloadSize: 100})
	publisher.Wait(t, testWait)

	r := startSession(t, use())
	to, _ := r.receive(t)
	got := to.wait(t, 192)
	acked := 0
	peak := 0
	settle := func() {
		if acked == len(got) {
			got = to.wait(t, acked+1)
		}
		got[acked].Ack()
		r.Receiver().Flush()
		peak = max(peak, r.Health().UnsettledCount)
		acked++
	}
	for began := time.Now(); time.Since(began) < 4*time.Second && acked < n/2; {
		settle()
		time.Sleep(time.Millisecond)
	}
	for acked < n {
		settle()
	}
	for i, d := range got {
		var number int
		if _, err := fmt.Sscan(string(d.Envelope.Payload), &number); err != nil || number != i {
			t.Fatalf("delivery %d is %.20q", i, d.Envelope.Payload)
		}
	}
	t.Logf("at most %d unsettled at once, %d counted past the window of 192", peak, r.value(metric.MQTTReceiveWindowExceeded))
	r.wantValue(t, 0, metric.MQTTRouterOverflowDropped)
	r.wantValue(t, 0, metric.MQTTRouterDropped)
	r.wantValue(t, 0, metric.MQTTReconnects)
	eventually(t, "all settled", func() bool { return r.Health().UnsettledCount == 0 })
	r.stop()
	last := startSession(t, use())
	left, _ := last.receive(t)
	last.awaitReady(t)
	time.Sleep(100 * time.Millisecond)
	left.mu.Lock()
	defer left.mu.Unlock()
	if len(left.got) != 0 {
		t.Errorf("%d messages came again although all were acknowledged", len(left.got))
	}
}

// Links are cut while messages pass: at QoS 1 and 2 none is lost, the order holds,
// and at QoS 2 none comes twice.
//
// Covers: S1-301, G01
func TestCutLinksLoseNothing(t *testing.T) {
	t.Parallel()
	for _, qos := range []byte{1, 2} {
		t.Run(fmt.Sprintf("QoS %d", qos), func(t *testing.T) {
			const n = 3000
			source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
			destination := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
			sourceLink := bridgetest.NewProxy(t, source.Addr())
			destinationLink := bridgetest.NewProxy(t, destination.Addr())
			collector := bridgetest.StartCollector(t, bridgetest.CollectorConfig{Addr: destination.Addr(), Filter: "out/#"})

			to := startSession(t, testUse(destinationLink.URL(), gobridge.ModePersistent, nil, preserveQoS))
			from := startSession(t, testUse(sourceLink.URL(), gobridge.ModePersistent, topics(int(qos), "in/#")))
			startForwarder(t, from, to, 192)
			from.awaitReady(t)
			collector.OnCount(n/6, func() { destinationLink.Cut() })
			collector.OnCount(2*n/6, func() { sourceLink.Cut() })
			collector.OnCount(3*n/6, func() { destinationLink.Cut(); sourceLink.Cut() })
			collector.OnCount(4*n/6, func() { sourceLink.Cut() })
			publisher := bridgetest.StartPublisher(t, bridgetest.PublisherConfig{Addr: source.Addr(), Topic: "in/a", N: n, QoS: qos, Rate: 3000, MessageIDs: true})
			publisher.Wait(t, 30*time.Second)
			if !collector.WaitFor(n, 30*time.Second) {
				t.Errorf("%d of %d arrived", collector.Count(), n)
			}
			collector.WaitQuiet(200*time.Millisecond, 5*time.Second)
			report := collector.Report(publisher.Ledger())
			t.Log(report)
			if len(report.Lost) > 0 || report.OutOfOrder > 0 || report.ForeignCount > 0 {
				t.Errorf("lost %d, out of order %d, foreign %v", len(report.Lost), report.OutOfOrder, report.Foreign)
			}
			if qos == 2 && report.Unexplained > 0 {
				t.Errorf("%d duplicates at QoS 2", report.Unexplained)
			}
			if from.value(metric.MQTTReconnects) == 0 || to.value(metric.MQTTReconnects) == 0 {
				t.Error("a link was never cut")
			}
		})
	}
}

// The destination's broker is away for a while, with its state lost: what was
// under way goes to it again.
//
// Covers: S1-301, G01
func TestDestinationRestartWithoutStateLosesNothing(t *testing.T) {
	t.Parallel()
	const n = 2000
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	destination := bridgetest.NewFakeBroker(t)
	forget := func(_ *bridgetest.FakeConn, _ *packets.Connect, connack *packets.Connack) {
		connack.SessionPresent = false
	}
	sink := destination.Auto(bridgetest.AutoConfig{Connack: forget})
	to := startSession(t, testUse(destination.URL(), gobridge.ModePersistent, nil))
	from := startSession(t, testUse(source.URL(), gobridge.ModePersistent, topics(1, "in/#")))
	startForwarder(t, from, to, 192)
	from.awaitReady(t)
	publisher := bridgetest.StartPublisher(t, bridgetest.PublisherConfig{Addr: source.Addr(), Topic: "in/a", N: n, QoS: 1, Rate: 4000})
	for _, at := range []int{300, 800, 1300} {
		sink.Wait(testWait, func(s bridgetest.AutoStats) bool { return s.Received >= at })
		destination.CutAll()
	}
	publisher.Wait(t, testWait)
	sink.Wait(testWait, func(bridgetest.AutoStats) bool { return sink.Report(publisher.Ledger()).Received == n })
	report := sink.Report(publisher.Ledger())
	t.Log(report)
	if len(report.Lost) > 0 || report.OutOfOrder > 0 {
		t.Errorf("lost %d, out of order %d", len(report.Lost), report.OutOfOrder)
	}
	if to.value(metric.MQTTSessionResumeLost) == 0 {
		t.Error("the lost session was not noticed")
	}
}
