package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/gobridge/gobridge/bridgetest"
	"github.com/gobridge/gobridge/examples"
)

// member returns the config of one member of a $share group: its client ids are its
// own and stay the same, so that its broker keeps what it had in flight.
func member(t *testing.T, source, dest string, n int) *config {
	cfg := between(t, source, dest)
	cfg.topics = []doc{{"topic": "$share/bridges/in/#", "qos": 1}}
	cfg.source["client_id"] = fmt.Sprintf("member-%d", n)
	cfg.dest["client_id"] = fmt.Sprintf("member-%d-out", n)
	return cfg
}

// Three bridges share one subscription: each takes a part of the messages. mosquitto
// goes on giving a persistent member its part while it is away, beside what it had in
// flight: only when it comes back under its own client id is nothing lost.
//
// Covers: S1-801, S1-802, S1-803, S1-804
func TestShareMembersLoseNothingWhenOneIsKilled(t *testing.T) {
	t.Parallel()
	n, kills := pick(6000, 60_000), pick(2, 10)
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{LogPublishes: true})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	link := bridgetest.NewProxy(t, dest.Addr())
	link.Delay(10 * time.Millisecond) // keeps messages in flight
	col := collect(t, dest.Addr(), "out/#")
	var configs []*config
	var members []*bridge
	for i := range 3 {
		cfg := member(t, source.URL(), link.URL(), i)
		b := cfg.start(t)
		b.waitReady("")
		configs, members = append(configs, cfg), append(members, b)
	}
	pub := bridgetest.StartPublisher(t, bridgetest.PublisherConfig{
		Addr: source.Addr(), Topic: "in/x", N: n, QoS: 1, PayloadSize: 100, Rate: pick(1500.0, 3000.0), MessageIDs: true,
	})
	var away time.Duration
	for i := range kills {
		at := n * (2*i + 1) / (2*kills + 1)
		mustCount(t, col, at, members[0], time.Minute)
		victim := i % len(members)
		members[victim].Kill9()
		down := time.Now()
		// The others go on meanwhile.
		mustCount(t, col, at+n/(4*kills+2), members[(victim+1)%len(members)], time.Minute)
		members[victim] = configs[victim].start(t)
		members[victim].waitReady("")
		away += time.Since(down)
	}
	r := finish(t, pub, col, n, members[0], time.Minute)
	var parts []int
	open := 0
	for i, b := range members {
		b.settled()
		tr := trafficTo(source.Log(), fmt.Sprintf("member-%d", i))
		parts, open = append(parts, tr.acked), open+sum(tr.openAtEnd)
		if tr.acked < n/10 {
			t.Errorf("member %d took %d of %d messages", i, tr.acked, n)
		}
		b.quietLosses()
	}
	t.Logf("%v; %d kills, away for %v, taken by each %v, in flight when killed %d", r, kills, away.Round(time.Millisecond), parts, open)
	nothingLost(t, r)
	if open == 0 {
		t.Error("nothing was in flight when a member was killed")
	}
	if r.Unexplained > open {
		t.Errorf("%d duplicates, want at most the %d in flight", r.Unexplained, open)
	}
	for _, b := range members {
		b.stop()
	}
}

// One config for every instance: the host name makes them different clients, and what
// is needed for that is said once.
//
// Covers: S1-810, S1-813, S1-814, S1-815, S1-816
func TestClientIDSuffixIsWhatTheBrokerSees(t *testing.T) {
	t.Parallel()
	const n = 50
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	cfg := member(t, source.URL(), dest.URL(), 0)
	cfg.source["client_id_suffix"] = "hostname"
	cfg.dest["client_id_suffix"] = "nonce"
	col := collect(t, dest.Addr(), "out/#")
	host := hostname(t)
	var out []string
	for range 2 {
		b := cfg.start(t)
		b.waitReady("")
		if lines := b.logged("level=WARN", "$share on a persistent session", "member-0-"+host); len(lines) != 1 {
			t.Errorf("warnings of the client id: %q, want one", lines)
		}
		out = append(out, clientsOf(dest.Log(), "member-0-out-"))
		b.stop()
	}
	if in := clientsOf(source.Log(), "member-0-"); in != host+" "+host {
		t.Errorf("the source saw the suffixes %q, want %q twice", in, host)
	}
	first, second, _ := strings.Cut(out[1], " ")
	if out[0] != first || len(first) != 8 || len(second) != 8 || first == second {
		t.Errorf("the destination saw the suffixes %q, want another nonce for each process", out[1])
	}
	// The session of the host name was there all the time.
	pub := publishN(t, source.Addr(), "in/x", n)
	pub.Wait(t, patience)
	b := cfg.start(t)
	exactlyOnce(t, finish(t, pub, col, n, b, patience))
	b.stop()
}

// The example for several instances works as it stands.
func TestScaleOutExampleWorks(t *testing.T) {
	t.Parallel()
	all, err := examples.All()
	i := slices.IndexFunc(all, func(e examples.Example) bool { return e.Name == "scale-out" })
	if err != nil || i < 0 {
		t.Fatalf("no example: %v", err)
	}
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	text := strings.NewReplacer("127.0.0.1:1883", source.Addr(), "127.0.0.1:2883", dest.Addr()).Replace(string(all[i].Config))
	file := filepath.Join(t.TempDir(), "gobridge.yaml")
	if err := os.WriteFile(file, []byte(text+"http: { listen: \"127.0.0.1:0\" }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := run(t, file)
	b.waitReady("")
	sub := subscriber(t, dest.Addr(), "telemetry/#")
	publish(t, client(t, source.Addr()), &packets.Publish{Topic: "telemetry/hall/1", QoS: 1, Payload: []byte("21.5")})
	if m := sub.MustReceive(t, patience); m.Topic != "telemetry/hall/1" || string(m.Payload) != "21.5" {
		t.Errorf("got %q on %q", m.Payload, m.Topic)
	}
	if in := clientsOf(source.Log(), "telemetry-in-"); in != hostname(t) {
		t.Errorf("the source saw the suffix %q", in)
	}
	b.conserved()
	b.stop()
}

// clientsOf lists what follows the prefix in the client ids that a broker accepted.
func clientsOf(log, prefix string) string {
	var all []string
	for line := range strings.Lines(log) {
		_, id, connected := strings.Cut(line, " as "+prefix)
		if connected && strings.Contains(line, "New client connected") {
			all = append(all, strings.Fields(id)[0])
		}
	}
	return strings.Join(all, " ")
}

func hostname(t *testing.T) string {
	t.Helper()
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	return name
}
