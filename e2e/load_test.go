package e2e

import (
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/gobridge/gobridge/bridgetest"
)

// publishN publishes n numbered messages to a topic of a broker at QoS 1, flat out.
func publishN(t *testing.T, addr, topic string, n int) *bridgetest.Publisher {
	t.Helper()
	return bridgetest.StartPublisher(t, bridgetest.PublisherConfig{Addr: addr, Topic: topic, N: n, QoS: 1, PayloadSize: 100})
}

// collect counts what arrives on a filter.
func collect(t *testing.T, addr, filter string) *bridgetest.Collector {
	t.Helper()
	return bridgetest.StartCollector(t, bridgetest.CollectorConfig{Addr: addr, Filter: filter})
}

// mustCount waits until n different messages have arrived. It ends the test with the
// state of the bridge after timeout.
func mustCount(t *testing.T, col *bridgetest.Collector, n int, b *bridge, timeout time.Duration) {
	t.Helper()
	if !col.WaitFor(n, timeout) {
		_, ready := b.ready()
		t.Fatalf("%d of %d messages arrived within %v; readiness: %+v", col.Count(), n, timeout, ready)
	}
}

// finish waits for the last message and late duplicates, and returns the verdict.
func finish(t *testing.T, pub *bridgetest.Publisher, col *bridgetest.Collector, n int, b *bridge, timeout time.Duration) bridgetest.Report {
	t.Helper()
	pub.Wait(t, timeout)
	mustCount(t, col, n, b, timeout)
	if !col.WaitQuiet(500*time.Millisecond, patience) {
		t.Errorf("messages still arrive after all %d are there", n)
	}
	return col.Report(pub.Ledger())
}

// nothingLost fails the test when a message is missing or came from nowhere.
func nothingLost(t *testing.T, r bridgetest.Report) {
	t.Helper()
	if len(r.Lost) > 0 || r.ForeignCount > 0 || r.SessionsLost > 0 {
		t.Errorf("want nothing lost: %v", r)
	}
}

// exactlyOnce fails the test when a message is missing or repeated.
func exactlyOnce(t *testing.T, r bridgetest.Report) {
	t.Helper()
	nothingLost(t, r)
	if r.Unexplained > 0 {
		t.Errorf("want no duplicate: %v", r)
	}
}

// client connects a plain client.
func client(t *testing.T, addr string) *bridgetest.Client {
	t.Helper()
	return bridgetest.MustConnect(t, bridgetest.ClientConfig{Addr: addr, ClientID: "test-client", CleanStart: true, KeepAlive: 30})
}

// publish sends one message and expects that its broker takes it.
func publish(t *testing.T, c *bridgetest.Client, p *packets.Publish) {
	t.Helper()
	ack, err := c.Publish(t.Context(), p)
	if err != nil || ack.Reason >= 0x80 {
		t.Fatalf("publish to %q: reason 0x%02X, %v", p.Topic, ack.Reason, err)
	}
}

// subscriber connects a plain client that has subscribed.
func subscriber(t *testing.T, addr, filter string) *bridgetest.Client {
	t.Helper()
	c := bridgetest.MustConnect(t, bridgetest.ClientConfig{Addr: addr, ClientID: "test-subscriber", CleanStart: true, KeepAlive: 30})
	codes, err := c.Subscribe(t.Context(), packets.SubOptions{Topic: filter, QoS: 2, RetainAsPublished: true})
	if err != nil || codes[0] > 2 {
		t.Fatalf("subscribe to %q: %v %v", filter, codes, err)
	}
	return c
}
