package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/bridgetest"
)

// Readiness says what is wrong, in time, and takes it back.
func TestReadinessTellsTheTruth(t *testing.T) {
	t.Parallel()
	const keepAlive = 2 * time.Second
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	in, out := bridgetest.NewProxy(t, source.Addr()), bridgetest.NewProxy(t, dest.Addr())
	cfg := between(t, in.URL(), out.URL())
	for _, s := range []doc{cfg.source, cfg.dest} {
		s["keep_alive"], s["connect_timeout"] = keepAlive.String(), "1s"
	}
	b := cfg.start(t)
	b.waitReady("")
	if stdout, _, code := command(t, nil, "status", "--url", b.url); code != 0 {
		t.Errorf("status exits with %d while ready:\n%s", code, stdout)
	}
	limit := keepAlive*3/2 + 250*time.Millisecond // and a poll of the answer
	for _, fault := range []struct {
		name, session string
		begin, end    func()
	}{
		{"source down", "source", source.Stop, source.Start},
		{"destination down", "destination", dest.Stop, dest.Start},
		{"source in a black hole", "source", func() { in.BlackHole(true) }, func() { in.BlackHole(false) }},
		{"destination in a black hole", "destination", func() { out.BlackHole(true) }, func() { out.BlackHole(false) }},
	} {
		fault.begin()
		reason, took := b.waitNotReady(fault.session, 10*time.Second)
		t.Logf("%s: not ready after %v: %s", fault.name, took.Round(time.Millisecond), reason)
		if took > limit {
			t.Errorf("%s: not ready after %v, want at most %v", fault.name, took, limit)
		}
		if status, body := b.get("/livez"); status != 200 {
			t.Errorf("%s: /livez answers %d %s", fault.name, status, body)
		}
		if _, _, code := command(t, nil, "status", "--url", b.url); code != 1 {
			t.Errorf("%s: status exits with %d, want 1", fault.name, code)
		}
		fault.end()
		b.waitReady("")
	}
	b.stop()
}

// A refused filter is named.
func TestRefusedFilterIsNotReady(t *testing.T) {
	t.Parallel()
	var allowed atomic.Bool
	fake := bridgetest.NewFakeBroker(t)
	fake.Auto(bridgetest.AutoConfig{Grant: func(o packets.SubOptions) byte {
		if o.Topic == "secret/#" && !allowed.Load() {
			return packets.SubackNotauthorized
		}
		return o.QoS
	}})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	cfg := between(t, fake.URL(), dest.URL())
	cfg.source["reconnect_delay"], cfg.source["reconnect_max_delay"] = "1s", "4s" // also between tries of a filter
	cfg.topics = []doc{{"topic": "in/#", "qos": 1}, {"topic": "secret/#", "qos": 1}}
	b := cfg.start(t)
	var refusal string
	b.eventually(patience, "the refused filter and the code 0x87 are named", func() bool {
		_, r := b.ready()
		i := slices.IndexFunc(r.Reasons, func(r gobridge.Reason) bool {
			return r.SessionID == "source" && strings.Contains(r.Reason, "secret/#") && strings.Contains(r.Reason, "0x87")
		})
		if i >= 0 {
			refusal = r.Reasons[i].Reason
		}
		return i >= 0
	})
	t.Log(refusal)
	if s := b.sessionHealth("source"); s.SubscriptionsWanted != 2 || s.SubscriptionsActive != 1 || !s.Connected {
		t.Errorf("session %+v, want connected with 1 of 2 filters", s)
	}
	if status, body := b.get("/readyz?level=connected"); status != 200 {
		t.Errorf("level connected answers %d %s", status, body)
	}
	if status, _ := b.get("/readyz?level=subscribed"); status != 503 {
		t.Errorf("level subscribed answers %d, want 503", status)
	}
	allowed.Store(true)
	b.waitReady("")
	b.stop()
}

// A route on which nothing moves is not ready either.
func TestStalledRouteIsNotReady(t *testing.T) {
	t.Parallel()
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	fake := bridgetest.NewFakeBroker(t)
	var wedged atomic.Bool
	wedged.Store(true)
	fake.Auto(bridgetest.AutoConfig{PubAck: func(*packets.Publish) (byte, bool) {
		if wedged.Load() {
			return packets.PubackUnspecifiedError, false
		}
		return 0, false
	}})
	cfg := between(t, source.URL(), fake.URL())
	cfg.policy = doc{
		"send_timeout": "500ms", "send_retry_budget": "1m",
		"backoff": doc{"initial_interval": "100ms", "max_interval": "200ms"},
	}
	b := cfg.start(t)
	b.waitReady("")
	publish(t, client(t, source.Addr()), &packets.Publish{Topic: "in/x", QoS: 1, Payload: []byte("poison")})
	reason, took := b.waitNotReady("r", patience)
	b.eventually(patience, "a stall", func() bool {
		_, r := b.ready()
		return strings.Contains(fmt.Sprint(r.Reasons), "stalled")
	})
	t.Logf("not ready after %v: %s", took.Round(time.Millisecond), reason)
	wedged.Store(false)
	b.waitReady("")
	b.expectCounter(1, "messages_sent")
	b.conserved()
	b.stop()
}

// The number of series follows from the config, not from the messages.
func TestManyTopicsMakeNoSeries(t *testing.T) {
	t.Parallel()
	n := pick(2000, 100_000)
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	b := between(t, source.URL(), dest.URL()).start(t)
	b.waitReady("")
	pub := client(t, source.Addr())
	publish(t, pub, &packets.Publish{Topic: "in/first", QoS: 1})
	b.expectCounter(1, "messages_sent")
	before := b.metrics()
	for i := range n {
		if err := pub.PublishAsync(t.Context(), &packets.Publish{Topic: fmt.Sprintf("in/%d/x", i), QoS: 1, Payload: []byte("p")}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if !within(2*time.Minute, func() bool { return b.counter("messages_sent") == float64(n+1) }) {
		t.Fatalf("%v of %d messages sent", b.counter("messages_sent"), n+1)
	}
	after := b.metrics()
	t.Logf("%d series after %d topics", len(after), n)
	if len(after) != len(before) {
		for series := range after {
			if _, ok := before[series]; !ok {
				t.Errorf("new series %s", series)
			}
		}
	}
	b.quietLosses()
	b.conserved()
	b.stop()
}

// A broker that shortens the session expiry is worth a warning.
func TestShortenedSessionExpiryIsLogged(t *testing.T) {
	t.Parallel()
	fake := bridgetest.NewFakeBroker(t)
	fake.Auto(bridgetest.AutoConfig{Connack: func(_ *bridgetest.FakeConn, connect *packets.Connect, connack *packets.Connack) {
		if e := connect.Properties.SessionExpiryInterval; connect.CleanStart || e == nil || *e == 0 {
			t.Errorf("a persistent session connects with clean start %t and expiry %v", connect.CleanStart, e)
		}
		connack.Properties.SessionExpiryInterval = new(uint32(5))
	}})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	b := between(t, fake.URL(), dest.URL()).start(t)
	b.waitReady("")
	if lines := b.logged("level=WARN", "expiry", "5"); len(lines) == 0 {
		t.Errorf("no warning names the 5 s that the broker grants:\n%s", b.Stderr())
	}
	b.stop()
}

// The config that the README shows works as it stands there.
func TestReadmeConfigWorks(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(readme), "```yaml\n")
	text, _, closed := strings.Cut(rest, "```")
	if !ok || !closed {
		t.Fatal("the README has no yaml block")
	}
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	// The ports it names may be taken here, and so may that of the HTTP listener.
	for port, addr := range map[string]string{"127.0.0.1:1883": source.Addr(), "127.0.0.1:2883": dest.Addr()} {
		if strings.Count(text, port) != 1 {
			t.Fatalf("the README's config names %s %d times, want once", port, strings.Count(text, port))
		}
		text = strings.Replace(text, port, addr, 1)
	}
	dir := t.TempDir()
	file := dir + "/gobridge.yaml"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if stdout, stderr, code := command(t, nil, "validate", file); code != 0 {
		t.Errorf("validate: exit code %d\n%s%s", code, stdout, stderr)
	}
	if err := os.WriteFile(file, []byte(text+"http: { listen: \"127.0.0.1:0\" }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := run(t, file)
	b.waitReady("")
	sub := subscriber(t, dest.Addr(), "plant-7/#")
	publish(t, client(t, source.Addr()), &packets.Publish{Topic: "sensors/hall/1", QoS: 1, Payload: []byte("21.5")})
	if m := sub.MustReceive(t, patience); m.Topic != "plant-7/sensors/hall/1" || string(m.Payload) != "21.5" {
		t.Errorf("got %q on %q", m.Payload, m.Topic)
	}
	b.conserved()
	b.stop()
}
