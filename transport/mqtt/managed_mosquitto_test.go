package mqtt

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/bridgetest"
	"github.com/gobridge/gobridge/metric"
)

// subscribes counts the SUBSCRIBE packets of the session in the broker's log.
func subscribes(broker *bridgetest.Mosquitto) int {
	return strings.Count(broker.Log(), "Received SUBSCRIBE from client")
}

// publishAll publishes at QoS 1 and waits for the acknowledgements.
func publishAll(t *testing.T, c *bridgetest.Client, topic string, retain bool, payloads ...string) {
	t.Helper()
	for _, p := range payloads {
		if _, err := c.Publish(t.Context(), &packets.Publish{Topic: topic, Payload: []byte(p), QoS: 1, Retain: retain}); err != nil {
			t.Fatalf("publish %s: %v", p, err)
		}
	}
}

// A process starts again with 50 messages queued and retained topics: nothing is
// subscribed to, nothing is replayed, all 50 arrive, once and in order (V7).
func TestRestartedProcessReplaysNothingOnMosquitto(t *testing.T) {
	const queued = 50
	broker := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{LogPublishes: true})
	client := bridgetest.MustConnect(t, bridgetest.ClientConfig{Addr: broker.Addr(), ClientID: "publisher"})
	publishAll(t, client, "in/retained", true, "r0")
	publishAll(t, client, "in/retained/too", true, "r1")
	h := newFakeHistory()
	start := func() *running {
		return startManaged(t, testUse(broker.URL(), gobridge.ModePersistent, topics(1, "in/#")), h)
	}
	first := start()
	to, _ := first.receive(t)
	for _, d := range to.wait(t, 2) { // the subscription is new
		d.Ack()
	}
	first.Receiver().Flush()
	first.awaitReady(t)
	first.stop()
	before := subscribes(broker)
	if before == 0 {
		t.Fatal("the broker's log does not show the SUBSCRIBE of the first process")
	}
	var want []string
	for i := range queued {
		want = append(want, fmt.Sprint(i))
	}
	publishAll(t, client, "in/a", false, want...)

	second := start()
	to, _ = second.receive(t)
	for _, d := range to.wait(t, queued) {
		d.Ack()
	}
	second.Receiver().Flush()
	second.awaitReady(t)
	publishAll(t, client, "in/a", false, "last") // behind whatever could be replayed
	got := payloads(to.wait(t, queued+1))
	if fmt.Sprint(got) != fmt.Sprint(append(want, "last")) {
		t.Errorf("arrived: %v", got)
	}
	if after := subscribes(broker); after != before {
		t.Errorf("%d SUBSCRIBE packets after the restart", after-before)
	}
	second.wantValue(t, 0, metric.MQTTSessionResumeLost)
}

// A config narrows in/# to in/a/#: in/b does not arrive any more.
func TestNarrowedFilterOnMosquitto(t *testing.T) {
	broker := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	client := bridgetest.MustConnect(t, bridgetest.ClientConfig{Addr: broker.Addr(), ClientID: "publisher"})
	h := newFakeHistory()
	start := func(filter string) *running {
		return startManaged(t, testUse(broker.URL(), gobridge.ModePersistent, topics(1, filter)), h)
	}
	first := start("in/#")
	first.awaitReady(t)
	first.stop()
	second := start("in/a/#")
	to, _ := second.receive(t)
	second.awaitReady(t)
	publishAll(t, client, "in/b", false, "unwanted")
	publishAll(t, client, "in/a/x", false, "wanted")
	if got := payloads(to.wait(t, 1)); got[0] != "wanted" {
		t.Errorf("arrived: %v", got)
	}
	second.wantValue(t, 0, metric.MQTTRouterUnmatchedDropped)
	if got := second.Health().UnsettledCount; got != 1 {
		t.Errorf("%d unsettled: in/b came all the same", got)
	}
	h.want(t, granted("1", "in/a/#")...)
}

// The broker forgets everything while the bridge is down: the first connect says
// so, and the session works again.
func TestBrokerThatForgotWhileTheBridgeWasDownOnMosquitto(t *testing.T) {
	broker := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{Volatile: true})
	h := newFakeHistory()
	start := func() *running {
		return startManaged(t, testUse(broker.URL(), gobridge.ModePersistent, topics(1, "in/#")), h)
	}
	first := start()
	first.awaitReady(t)
	first.wantValue(t, 0, metric.MQTTSessionResumeLost)
	first.stop()
	broker.Restart()
	second := start()
	to, _ := second.receive(t)
	second.awaitReady(t)
	second.wantValue(t, 1, metric.MQTTSessionResumeLost)
	client := bridgetest.MustConnect(t, bridgetest.ClientConfig{Addr: broker.Addr(), ClientID: "publisher"})
	publishAll(t, client, "in/a", false, "again")
	to.wait(t, 1)
}

// Processes end with their link cut at ever later moments of the subscribing:
// whatever got through, the next one that becomes ready receives everything.
func TestProcessThatDiesWhileSubscribingOnMosquitto(t *testing.T) {
	broker := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	h := newFakeHistory()
	wanted := topics(1, "in/a", "in/b", "in/c", "in/d", "in/e", "in/f", "in/g", "in/h", "in/i", "in/j")
	for i := range 10 {
		link := bridgetest.NewProxy(t, broker.Addr())
		r := startManaged(t, testUse(link.URL(), gobridge.ModePersistent, wanted), h)
		time.Sleep(time.Duration(i) * time.Millisecond)
		link.Cut()
		r.stop()
	}
	last := startManaged(t, testUse(broker.URL(), gobridge.ModePersistent, wanted), h)
	to, _ := last.receive(t)
	last.awaitReady(t)
	client := bridgetest.MustConnect(t, bridgetest.ClientConfig{Addr: broker.Addr(), ClientID: "publisher"})
	for _, w := range wanted {
		publishAll(t, client, w.Topic, false, w.Topic)
	}
	to.wait(t, len(wanted))
}
