package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/gobridge/gobridge/bridgetest"
)

// The managed subscription history lets a new process see that nothing changed: it
// does not subscribe again, so that no retained message comes a second time.
func TestRestartWithEqualFiltersDoesNotSubscribe(t *testing.T) {
	t.Parallel()
	const n, restarts = 50, 3
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{LogPublishes: true})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	cfg := viaOutbox(t, source.URL(), dest.URL())
	cfg.topics = []doc{{"topic": "in/#", "qos": 1}, {"topic": "more/#", "qos": 1}}
	col := collect(t, dest.Addr(), "out/#")
	c := client(t, source.Addr())
	for i := range n {
		publish(t, c, &packets.Publish{Topic: fmt.Sprintf("in/%d", i), QoS: 1, Retain: true, Payload: fmt.Append(nil, i)})
	}
	packetsFrom := func(kind string) int { return strings.Count(source.Log(), "Received "+kind+" from "+sourceID) }
	b := cfg.start(t)
	mustCount(t, col, n, b, patience)
	b.waitReady("")
	first := packetsFrom("SUBSCRIBE")
	if first == 0 {
		t.Fatal("no SUBSCRIBE in the log of the source: the test proves nothing")
	}
	for i := range restarts {
		if i%2 == 0 {
			b.stop()
		} else {
			b.waitDepth(0, patience) // what is sent and not completed yet would be repeated
			b.Kill9()
		}
		b = cfg.start(t)
		b.waitReady("")
		publish(t, c, &packets.Publish{Topic: "in/live", QoS: 1, Payload: fmt.Append(nil, n+i)})
		mustCount(t, col, n+i+1, b, patience)
		if s := b.sessionHealth("source"); !s.SessionPresent || s.SubscriptionsActive != 2 {
			t.Errorf("session %+v, want it resumed with 2 filters", s)
		}
	}
	if got := packetsFrom("SUBSCRIBE"); got != first {
		t.Errorf("%d SUBSCRIBE after %d restarts, want the first %d only", got, restarts, first)
	}

	// A changed config is carried out, and only the change.
	b.stop()
	cfg.topics = []doc{{"topic": "in/#", "qos": 1}, {"topic": "new/#", "qos": 1}}
	b = cfg.start(t)
	b.waitReady("")
	b.eventually(patience, "the filter that nobody wants is unsubscribed", func() bool { return packetsFrom("UNSUBSCRIBE") == 1 })
	if got := packetsFrom("SUBSCRIBE"); got != first+1 {
		t.Errorf("%d SUBSCRIBE after a change of one filter, want %d", got, first+1)
	}
	publish(t, c, &packets.Publish{Topic: "more/x", QoS: 1, Payload: []byte("nobody wants this")})
	publish(t, c, &packets.Publish{Topic: "new/x", QoS: 1, Payload: fmt.Append(nil, n+restarts)})
	mustCount(t, col, n+restarts+1, b, patience)
	if !col.WaitQuiet(500*time.Millisecond, patience) {
		t.Error("messages still arrive")
	}
	r := col.Report(bridgetest.Ledger{Sent: n + restarts + 1, Acked: n + restarts + 1})
	t.Log(r)
	if len(r.Lost) > 0 || r.Duplicates > 0 || r.ForeignCount > 0 {
		t.Errorf("want each message once: %v", r)
	}
	b.stop()
}
