package mqtt

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/google/go-cmp/cmp"

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
//
// Covers: S1-534
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
	t.Parallel()
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
	h.want(t, append(granted("1", "in/a/#"), removed("in/#"))...)
}

// The broker forgets everything while the bridge is down: the first connect says
// so, and the session works again.
//
// Covers: S1-302, S1-531, G02
func TestBrokerThatForgotWhileTheBridgeWasDownOnMosquitto(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
	broker := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	h := newFakeHistory()
	wanted := topics(1, "in/a", "in/b", "in/c", "in/d", "in/e", "in/f", "in/g", "in/h", "in/i", "in/j")
	first := startManaged(t, testUse(broker.URL(), gobridge.ModePersistent, wanted[:1]), h)
	first.awaitReady(t) // a session whose first CONNACK is lost has an unknown baseline
	first.stop()
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

// A filter leaves the config with messages in the broker's queue: exactly its own come
// as unwanted, everything else as ever, and nothing is lost.
func TestRemovedFiltersWithAQueueOnMosquitto(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, topic, filter string
		more                []string
	}{
		{"plain", "old/x", "old/x", []string{"in/a"}},
		{"wildcard", "old/x/y", "old/#", []string{"in/a"}},
		{"shared", "old/x", "$share/group/old/#", []string{"in/a"}},
		{"overlap", "in/b", "in/#", nil}, // in/a comes through it as well
	} {
		t.Run(tt.name, func(t *testing.T) {
			const n = 40
			broker := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{LogPublishes: true})
			client := bridgetest.MustConnect(t, bridgetest.ClientConfig{Addr: broker.Addr(), ClientID: "publisher"})
			h := newFakeHistory()
			holdSession(t, broker, h, append(tt.more, tt.filter)...)
			var want []string
			for i := range n {
				live, old := fmt.Sprintf("live %d", i), fmt.Sprintf("old %d", i)
				publishAll(t, client, "in/a", false, live)
				publishAll(t, client, tt.topic, false, old)
				want = append(want, live, "!"+old)
			}
			r := startManaged(t, testUse(broker.URL(), gobridge.ModePersistent, topics(1, "in/a")), h)
			to, _ := r.receive(t)
			got := to.wait(t, 2*n)
			if tt.name == "shared" { // its messages have a queue of their own
				slices.SortStableFunc(got, byNumber)
			}
			if diff := cmp.Diff(want, told(got)); diff != "" {
				t.Errorf("arrived (-want +got):\n%s", diff)
			}
			for _, d := range to.taken() {
				d.Ack()
			}
			r.Receiver().Flush()
			r.awaitReady(t)
			publishAll(t, client, tt.topic, false, "after")
			publishAll(t, client, "in/a", false, "live")
			if got := told(to.wait(t, 2*n+1)[2*n:]); len(got) != 1 || got[0] != "live" {
				t.Errorf("arrived after the removal: %v", got)
			}
			if !strings.Contains(broker.Log(), "Received UNSUBSCRIBE from client") {
				t.Error("no UNSUBSCRIBE in the broker's log")
			}
			h.want(t, append(granted("1", "in/a"), removed(tt.filter))...)
			r.wantValue(t, 0, metric.MQTTSessionResumeLost)
		})
	}
}

// holdSession leaves a session with these filters in the broker and in the history, as
// an earlier process would.
func holdSession(t *testing.T, broker *bridgetest.Mosquitto, h *fakeHistory, filters ...string) {
	t.Helper()
	earlier := bridgetest.MustConnect(t, bridgetest.ClientConfig{Addr: broker.Addr(), ClientID: "client", SessionExpiry: 3600})
	for _, f := range filters {
		if _, err := earlier.Subscribe(t.Context(), packets.SubOptions{Topic: f, QoS: 1}); err != nil {
			t.Fatal(err)
		}
	}
	earlier.Close()
	if h != nil {
		if err := h.Remember(t.Context(), testKey, granted("1", filters...)...); err != nil {
			t.Fatal(err)
		}
	}
}

// byNumber orders payloads of the form "live 7" by number, live before old.
func byNumber(a, b *gobridge.Delivery) int {
	var kindA, kindB string
	var i, j int
	_, _ = fmt.Sscan(string(a.Envelope.Payload), &kindA, &i)
	_, _ = fmt.Sscan(string(b.Envelope.Payload), &kindB, &j)
	if i != j {
		return i - j
	}
	return strings.Compare(kindA, kindB)
}

// The history is lost and the broker has a session with a queue: seeding keeps it,
// discarding loses it.
func TestUnknownBaselineOnMosquitto(t *testing.T) {
	t.Parallel()
	for _, discard := range []bool{false, true} {
		t.Run(fmt.Sprintf("discard=%t", discard), func(t *testing.T) {
			broker := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{LogPublishes: true})
			client := bridgetest.MustConnect(t, bridgetest.ClientConfig{Addr: broker.Addr(), ClientID: "publisher"})
			h := newFakeHistory()
			holdSession(t, broker, nil, "in/a", "old/#")
			publishAll(t, client, "in/a", false, "0", "1", "2")
			publishAll(t, client, "old/x", false, "3", "4")
			use := testUse(broker.URL(), gobridge.ModePersistent, topics(1, "in/a"))
			r := startManaged(t, use, h)
			to, _ := r.receive(t)
			standsStill(t, r, "gobridge subscriptions seed s keeps")
			if strings.Contains(broker.Log(), "Received PUBACK from client") {
				t.Error("something was acknowledged")
			}
			var further []string
			want := []string{"live"}
			if !discard {
				further = []string{"old/#"}
				want = []string{"0", "1", "2", "!3", "!4", "live"}
			}
			if err := seed(t.Context(), h, use, discard, further...); err != nil {
				t.Fatal(err)
			}
			r.Retry()
			r.awaitReady(t)
			publishAll(t, client, "in/a", false, "live")
			if diff := cmp.Diff(want, told(to.wait(t, len(want)))); diff != "" {
				t.Errorf("arrived (-want +got):\n%s", diff)
			}
		})
	}
}

// A drained session stays in the broker without subscriptions, an ended one goes.
func TestDrainAndEndOnMosquitto(t *testing.T) {
	t.Parallel()
	const n = 100
	broker := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{LogPublishes: true})
	client := bridgetest.MustConnect(t, bridgetest.ClientConfig{Addr: broker.Addr(), ClientID: "publisher"})
	h := newFakeHistory()
	holdSession(t, broker, h, "in/#")
	for i := range n {
		publishAll(t, client, "in/a", false, fmt.Sprint(i))
	}
	r := startManaged(t, testUse(broker.URL(), gobridge.ModePersistent, topics(1, "in/#"), window(10)), h)
	var settled atomic.Int64
	r.receiveEmit(t, func(batch []*gobridge.Delivery) (int, error) {
		settled.Add(int64(len(batch)))
		for _, d := range batch {
			d.Ack()
		}
		return len(batch), nil
	})
	r.awaitReady(t)
	if err := r.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := settled.Load(); got != n {
		t.Errorf("drained with %d of %d messages settled", got, n)
	}
	publishAll(t, client, "in/a", false, "nobody subscribes")
	r.Retry()
	r.awaitReady(t)
	if !r.Health().SessionPresent {
		t.Error("the session is gone after the drain")
	}
	if err := r.End(t.Context()); err != nil {
		t.Fatal(err)
	}
	publishAll(t, client, "in/a", false, "nobody has a session")
	r.Retry()
	r.awaitReady(t)
	if r.Health().SessionPresent {
		t.Error("the session is there after its end")
	}
	publishAll(t, client, "in/a", false, "last")
	eventually(t, "the last message arrives", func() bool { return settled.Load() == n+1 })
	r.wantValue(t, 0, metric.MQTTSessionResumeLost)
}

// mosquitto 2.0.11 does not restore shared subscriptions when it restarts, and says
// Session Present all the same: messages must go on coming.
func TestSharedSubscriptionSurvivesARestartOfMosquitto(t *testing.T) {
	broker := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	r := startManaged(t, testUse(broker.URL(), gobridge.ModePersistent, topics(1, "$share/g/in/#")), newFakeHistory())
	to, _ := r.receive(t)
	r.awaitReady(t)
	broker.Stop()
	eventually(t, "the loss of the connection is noticed", func() bool { return !r.Health().Connected })
	broker.Start()
	eventually(t, "the session is resumed", func() bool {
		h := r.Health()
		return h.Connected && h.SessionPresent && h.ServiceLevel == gobridge.LevelFull
	})
	client := bridgetest.MustConnect(t, bridgetest.ClientConfig{Addr: broker.Addr(), ClientID: "publisher"})
	publishAll(t, client, "in/a", false, "after the restart")
	to.wait(t, 1)[0].Ack()
}
