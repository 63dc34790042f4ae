package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/eclipse/paho.golang/packets"

	"github.com/gobridge/gobridge/admin"
	"github.com/gobridge/gobridge/bridgetest"
)

// queued is a bridge whose durable session keeps messages at the source while the
// bridge is away.
type queued struct {
	*config
	source, dest *bridgetest.Mosquitto
	col          *bridgetest.Collector // of out/in/x
	sent         int                   // messages of in/x
}

// newQueued lets a bridge with these filters run once, so that its broker has its
// session.
func newQueued(t *testing.T, filters ...string) *queued {
	t.Helper()
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{LogPublishes: true})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	q := &queued{config: between(t, source.URL(), dest.URL()), source: source, dest: dest, col: collect(t, dest.Addr(), "out/in/x")}
	q.filters(filters...)
	b := q.start(t)
	b.waitReady("")
	b.stop()
	return q
}

// filters makes these the ones of the config.
func (q *queued) filters(filters ...string) {
	q.topics = nil
	for _, f := range filters {
		q.topics = append(q.topics, doc{"topic": f, "qos": 1})
	}
}

// publish sends n messages to a topic of the source. Those of in/x are numbered over
// all calls.
func (q *queued) publish(t *testing.T, topic string, n int) {
	t.Helper()
	c := client(t, q.source.Addr())
	defer c.Close()
	for i := range n {
		payload := fmt.Sprintf("%s %d", topic, i)
		if topic == "in/x" {
			payload = string(numbered(q.sent))
			q.sent++
		}
		publish(t, c, &packets.Publish{Topic: topic, QoS: 1, Payload: []byte(payload)})
	}
}

// arrivedOnce waits for each message of in/x and expects it once and in order.
func (q *queued) arrivedOnce(t *testing.T, b *bridge) {
	t.Helper()
	mustCount(t, q.col, q.sent, b, patience)
	r := q.col.Report(bridgetest.Ledger{Sent: q.sent, Acked: q.sent})
	if len(r.Lost)+r.Duplicates+r.OutOfOrder+r.ForeignCount > 0 {
		t.Errorf("want each message once and in order: %v", r)
	}
}

// run runs a subcommand against the bridge, which must end with that exit code and say
// each of the texts.
func (b *bridge) run(code int, line string, texts ...string) {
	b.t.Helper()
	stdout, stderr, got := command(b.t, nil, append(strings.Fields(line), "--url", b.url)...)
	b.t.Logf("gobridge %s: exit code %d\n%s%s", line, got, stdout, stderr)
	if got != code {
		b.t.Errorf("gobridge %s ends with exit code %d, want %d", line, got, code)
	}
	for _, text := range texts {
		if !strings.Contains(stdout+stderr, text) {
			b.t.Errorf("gobridge %s says nothing of %q", line, text)
		}
	}
}

// states returns the filters of the source with their states, as the table of
// subscriptions list shows them.
func (b *bridge) states() []string {
	b.t.Helper()
	stdout, stderr, code := command(b.t, nil, "subscriptions", "list", "--url", b.url)
	if code != 0 {
		b.t.Fatalf("subscriptions list: exit code %d\n%s", code, stderr)
	}
	var all []string
	for line := range strings.Lines(stdout) {
		if f := strings.Fields(line); len(f) == 4 && f[0] == "source" && f[1] == sourceID {
			all = append(all, f[2]+" "+f[3])
		}
	}
	slices.Sort(all)
	return all
}

func (b *bridge) wantStates(want ...string) {
	b.t.Helper()
	if got := b.states(); !slices.Equal(got, want) {
		b.t.Errorf("subscriptions list shows %q, want %q", got, want)
	}
}

// A filter leaves the config with messages in the queue of the broker: they become dead
// letters, each with its evidence, nothing else changes, and redriven they arrive.
func TestQueueOfARemovedFilterIsDeadLettered(t *testing.T) {
	t.Parallel()
	n := pick(40, 1000)
	q := newQueued(t, "in/#", "old/#", "$share/group/gone/#")
	for range 4 {
		q.publish(t, "in/x", n/4)
		q.publish(t, "old/x", n/4)
	}
	q.publish(t, "gone/x", n)
	old := bridgetest.StartCollector(t, bridgetest.CollectorConfig{Addr: q.dest.Addr(), Filter: "out/old/#", ClientID: "old"})
	q.filters("in/#")
	b := q.start(t)
	b.waitReady("")
	q.arrivedOnce(t, b)
	b.expect(counts{
		"messages_received": float64(3 * n), "messages_sent": float64(n), "messages_dropped": 0,
		"dlq_entries": float64(2 * n), "dlq_entries category=subscription_removed": float64(2 * n),
		"mqtt_router_unmatched_dropped": 0, "mqtt_session_resume_lost": 0,
	})
	b.settled()
	expectAcked(t, q.source, 3*n)
	b.wantStates("$share/group/gone/# removed", "in/# granted", "old/# removed")
	b.run(0, "subscriptions list", "SESSION", "CLIENT ID", "FILTER", "STATE")
	page := ask[admin.DLQPage](t, "dlq", "list", "--url", b.url)
	if page.Depth != 2*n {
		t.Errorf("dlq list shows a depth of %d, want %d", page.Depth, 2*n)
	}
	for _, d := range page.DeadLetters {
		if d.Category != "subscription_removed" || d.Code != "SUBSCRIPTION_REMOVED" || d.SourceID != "in" || !strings.Contains(d.LastError, "/#") {
			t.Fatalf("dead letter %+v", d)
		}
	}
	b.conserved()

	// What comes later is not delivered to the bridge any more.
	q.publish(t, "old/x", 1)
	q.publish(t, "in/x", 1)
	q.arrivedOnce(t, b)
	b.expect(counts{"messages_received": float64(3*n + 1), "dlq_entries": float64(2 * n)})

	job := ask[admin.Job](t, "dlq", "redrive", "--all", "--url", b.url)
	if job.Total != 2*n || job.Done != 2*n || job.Failed != 0 {
		t.Errorf("redrive: %+v", job)
	}
	sub := old.Report(bridgetest.Ledger{})
	if sub.ForeignCount != n { // "old/x 7" is no number of a ledger
		t.Errorf("%d messages of the removed filter arrived after the redrive, want %d", sub.ForeignCount, n)
	}
	if page := ask[admin.DLQPage](t, "dlq", "list", "--url", b.url); page.Depth != 0 {
		t.Errorf("depth %d after the redrive", page.Depth)
	}
	b.waitReady("")
	b.stop()
}

// Without a dead-letter queue the same stands still before anything is acknowledged,
// and says why: that messages are dropped when they fail, which has to be written then,
// permits no loss of a queue. The way out that is named works: the filter comes back,
// its queue is drained, and it goes.
func TestQueueOfARemovedFilterWithoutADeadLetterQueue(t *testing.T) {
	t.Parallel()
	const n = 40
	q := newQueued(t, "in/#", "old/#")
	q.stores["dlq"] = doc{"type": "none"}
	q.policy["on_permanent_failure"], q.policy["on_expired"] = "drop", "drop"
	q.publish(t, "in/x", n)
	q.publish(t, "old/x", n)
	q.filters("in/#")
	b := q.start(t)
	reason, _ := b.waitNotReady("source", patience)
	b.eventually(patience, "readiness says why", func() bool {
		reason, _ = b.waitNotReady("source", patience)
		return strings.Contains(reason, "old/#")
	})
	t.Logf("reason: %s", reason)
	if !strings.Contains(reason, "dead-letter queue") {
		t.Errorf("reason %q does not name the dead-letter queue", reason)
	}
	if status, body := b.get("/livez"); status != 200 {
		t.Errorf("/livez answers %d %s", status, body)
	}
	expectAcked(t, q.source, 0)
	b.expect(counts{"messages_received": 0})
	b.stop()

	q.filters("in/#", "old/#")
	b = q.start(t)
	b.waitReady("")
	q.arrivedOnce(t, b)
	b.expect(counts{"messages_sent": 2 * n, "mqtt_session_resume_lost": 0})
	b.run(0, "sessions drain source", "source: drained")
	expectAcked(t, q.source, 2*n)
	b.conserved()
	b.stop()

	q.filters("in/#")
	b = q.start(t)
	b.waitReady("")
	b.wantStates("in/# granted", "old/# removed")
	q.publish(t, "in/x", n)
	q.arrivedOnce(t, b)
	b.quietLosses()
	b.conserved()
	b.stop()
}

// Where there is a dead-letter queue and the policy drops all the same, the loss of the
// queue was asked for.
func TestQueueOfARemovedFilterIsDroppedByPolicy(t *testing.T) {
	t.Parallel()
	const n = 40
	q := newQueued(t, "in/#", "old/#")
	q.publish(t, "in/x", n)
	q.publish(t, "old/x", n)
	q.filters("in/#")
	q.policy["on_permanent_failure"] = "drop"
	b := q.start(t)
	b.waitReady("")
	q.arrivedOnce(t, b)
	b.expect(counts{"messages_sent": n, "messages_dropped": n, "messages_dropped reason=subscription_removed": n, "dlq_entries": 0})
	b.settled()
	expectAcked(t, q.source, 2*n)
	b.conserved()
	b.stop()
}

// The data directory is lost and the broker has a session: the bridge touches nothing
// and says how to go on. A seed of the running bridge is enough, and keeps the queue
// unless it is to be discarded.
func TestLostHistoryIsSeededOnTheRunningBridge(t *testing.T) {
	t.Parallel()
	for _, discard := range []bool{false, true} {
		t.Run(map[bool]string{false: "keep", true: "discard"}[discard], func(t *testing.T) {
			t.Parallel()
			n := pick(50, 2000)
			q := newQueued(t, "in/#")
			q.publish(t, "in/x", n)
			if err := os.RemoveAll(q.bridge["data_dir"].(string)); err != nil {
				t.Fatal(err)
			}
			b := q.start(t)
			var reason string
			b.eventually(patience, "readiness names the ways out", func() bool {
				reason, _ = b.waitNotReady("source", patience)
				return strings.Contains(reason, "gobridge subscriptions seed source") && strings.Contains(reason, "--discard")
			})
			t.Logf("reason: %s", reason)
			if lines := b.logged("level=ERROR", "gobridge subscriptions seed source"); len(lines) != 1 {
				t.Errorf("errors that name the way out: %q, want one", lines)
			}
			b.run(0, "subscriptions list", "source: not known what its broker holds", "gobridge subscriptions seed source keeps the queue")
			b.run(1, "sessions drain source", "source")
			b.run(1, "subscriptions seed absent", `there is no session "absent"`, "source")
			b.run(2, "subscriptions seed source --discard --filter old/#", "exclude each other")
			expectAcked(t, q.source, 0)
			if b.sessionHealth("source").Connected {
				t.Error("connected while nothing is known of the session")
			}

			if discard {
				b.run(0, "subscriptions seed source --discard", "discards the session")
				b.waitReady("")
				expectAcked(t, q.source, 0)
				q.sent = 0 // the queue is gone
			} else {
				b.run(0, "subscriptions seed source", "in/#")
				b.waitReady("")
			}
			q.arrivedOnce(t, b)
			q.publish(t, "in/x", n)
			q.arrivedOnce(t, b)
			b.settled()
			b.wantStates("in/# granted")
			b.expect(counts{"messages_sent": float64(q.sent), "mqtt_session_resume_lost": 0, "session_rebuilds": 0})
			b.quietLosses()
			b.conserved()
			b.stop()
			// The next start needs nobody.
			b = q.start(t)
			b.waitReady("")
			b.stop()
		})
	}
}

// By hand: a session is drained, goes on, is ended at its broker, and goes on again.
func TestSessionsAreDrainedEndedAndRetried(t *testing.T) {
	t.Parallel()
	n := pick(300, 5000)
	q := newQueued(t, "in/#")
	q.publish(t, "in/x", n)
	b := q.start(t)
	b.run(0, "sessions drain source", "source: drained")
	// Everything that was queued has been delivered and acknowledged before the answer.
	if tr := trafficTo(q.source.Log(), sourceID); tr.acked != n {
		t.Errorf("drained with %d of %d messages acknowledged", tr.acked, n)
	}
	q.arrivedOnce(t, b)
	if h := b.sessionHealth("source"); h.SubscriptionsActive != 0 || !h.Connected {
		t.Errorf("health after the drain: %+v", h)
	}
	reason, _ := b.waitNotReady("source", patience)
	if !strings.Contains(reason, "gobridge sessions retry source") {
		t.Errorf("readiness says %q after the drain", reason)
	}
	b.wantStates("in/# wanted")
	c := client(t, q.source.Addr())
	ack, err := c.Publish(t.Context(), &packets.Publish{Topic: "in/x", QoS: 1, Payload: []byte("nobody has subscribed")})
	if err != nil || ack.Reason != packets.PubackNoMatchingSubscribers {
		t.Errorf("a message after the drain is answered 0x%02X, %v; want that nobody has subscribed", ack.Reason, err)
	}
	c.Close()

	b.run(0, "sessions retry source", "source: tries again")
	b.waitReady("")
	b.wantStates("in/# granted")
	q.publish(t, "in/x", n)
	q.arrivedOnce(t, b)
	b.settled()

	b.run(0, "sessions end source", "source: ended")
	reason, _ = b.waitNotReady("source", patience)
	if !strings.Contains(reason, "gobridge sessions retry source") {
		t.Errorf("readiness says %q after the end", reason)
	}
	if h := b.sessionHealth("source"); h.Connected {
		t.Errorf("health after the end: %+v", h)
	}
	// The broker has no session of that client id.
	probe := bridgetest.MustConnect(t, bridgetest.ClientConfig{Addr: q.source.Addr(), ClientID: sourceID})
	if probe.Connack().SessionPresent {
		t.Error("the session is still at its broker")
	}
	probe.Close()

	b.run(0, "sessions retry source", "source: tries again")
	b.waitReady("")
	q.publish(t, "in/x", n)
	q.arrivedOnce(t, b)
	b.settled()
	b.run(1, "sessions retry absent", `there is no session "absent"`)
	b.expect(counts{"messages_sent": float64(3 * n), "mqtt_session_resume_lost": 0, "session_rebuilds": 0})
	b.quietLosses()
	b.conserved()
	b.stop()
}
