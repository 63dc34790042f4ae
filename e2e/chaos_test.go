package e2e

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gobridge/gobridge/bridgetest"
)

// chaos makes faults at random moments.
type chaos struct {
	*rand.Rand
	links []*bridgetest.Proxy
}

// newChaos logs its seed.
func newChaos(t *testing.T, links ...*bridgetest.Proxy) *chaos {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return &chaos{rand.New(rand.NewPCG(seed, 0)), links}
}

// last sleeps for as long as a fault lasts, or the time without one.
func (c *chaos) last(low, high time.Duration) {
	time.Sleep(low + time.Duration(c.Int64N(int64(high-low))))
}

// link disturbs one of the links.
func (c *chaos) link() {
	link := c.links[c.IntN(len(c.links))]
	switch c.IntN(8) {
	default:
		link.Cut()
	case 6:
		link.Stall(true)
		c.last(10*time.Millisecond, 300*time.Millisecond)
		link.Stall(false)
	case 7:
		link.BlackHole(true)
		c.last(10*time.Millisecond, 300*time.Millisecond)
		link.BlackHole(false)
	}
}

// impatient makes both sessions notice and repair faults quickly.
func impatient(cfg *config) {
	for _, s := range []doc{cfg.source, cfg.dest} {
		s["keep_alive"], s["connect_timeout"] = 2, "1s"
		s["reconnect_delay"], s["reconnect_max_delay"] = "10ms", "100ms"
	}
}

// Faults of links, brokers and the bridge, one after the other without time to
// recover: nothing is lost, and whoever drops duplicates sees the order.
func TestFaultsInARowLoseNothing(t *testing.T) {
	rounds := pick(25, 300)
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	in, out := bridgetest.NewProxy(t, source.Addr()), bridgetest.NewProxy(t, dest.Addr())
	out.Delay(5 * time.Millisecond)
	cfg := between(t, in.URL(), out.URL())
	impatient(cfg)
	cfg.destSession["session_mode"] = "persistent"
	col := collect(t, dest.Addr(), "out/#")
	b := cfg.start(t)
	b.waitReady("")

	const rate = 2000
	n := rounds * rate / 6
	pub := bridgetest.StartPublisher(t, bridgetest.PublisherConfig{Addr: source.Addr(), Topic: "in/x", N: n, QoS: 1, PayloadSize: 100, Rate: rate})
	c := newChaos(t, in, out)
	kills, restarts := 0, 0
	for range rounds {
		c.last(10*time.Millisecond, 150*time.Millisecond)
		switch c.IntN(10) {
		default:
			c.link()
		case 8:
			[]*bridgetest.Mosquitto{source, dest}[c.IntN(2)].Restart()
			restarts++
		case 9:
			b.Kill9()
			kills++
			b = cfg.start(t)
		}
	}
	r := finish(t, pub, col, n, b, time.Minute)
	t.Logf("%v; %d rounds, %d kills and %d restarts among them", r, rounds, kills, restarts)
	nothingLost(t, r)
	if r.OutOfOrder > 0 && len(r.Resent) == 0 {
		t.Errorf("%d messages out of order, want 0", r.OutOfOrder)
	}
	b.waitReady("")
	b.quietLosses()
	b.conserved()
	b.stop()
}

// Faults of the links alone repeat nothing at QoS 2. This takes brokers that keep to
// the protocol: mosquitto 2.0.11 publishes again what it has released when it is
// restarted, or cut off twice in short succession, against MQTT-4.3.3-6.
func TestQoS2IsExactlyOnceThroughLinkFaultsInARow(t *testing.T) {
	rounds := pick(40, 300)
	n := rounds * 150
	fakeSource, fakeDest := bridgetest.NewFakeBroker(t), bridgetest.NewFakeBroker(t)
	source := fakeSource.Auto(bridgetest.AutoConfig{DropRecords: true, Source: &bridgetest.SourceConfig{N: n, Topic: "in/x", QoS: 2}})
	dest := fakeDest.Auto(bridgetest.AutoConfig{})
	in, out := bridgetest.NewProxy(t, fakeSource.Addr()), bridgetest.NewProxy(t, fakeDest.Addr())
	out.Delay(15 * time.Millisecond)
	cfg := between(t, in.URL(), out.URL())
	impatient(cfg)
	cfg.topics = []doc{{"topic": "in/#", "qos": 2}}
	cfg.sender["qos"] = "2"
	cfg.destSession["session_mode"] = "persistent"
	b := cfg.start(t)
	c := newChaos(t, in, out)
	for i := range rounds {
		c.last(5*time.Millisecond, 100*time.Millisecond)
		c.link()
		if source.Stats().SourceAcked == n {
			t.Logf("all settled after %d of %d rounds", i, rounds)
			break
		}
	}
	stats := source.Wait(2*time.Minute, func(s bridgetest.AutoStats) bool { return s.SourceAcked == n })
	b.settled()
	r := dest.Report(source.Ledger())
	t.Logf("%v; source resent %d and resumed %d times, the destination %d times", r, stats.SourceResent, stats.SessionsResumed, dest.Stats().SessionsResumed)
	nothingLost(t, r)
	if r.Duplicates > 0 || r.OutOfOrder > 0 {
		t.Errorf("%d duplicates and %d out of order, want 0", r.Duplicates, r.OutOfOrder)
	}
	if stats.AcksOutOfOrder > 0 || stats.SourceLost > 0 || stats.SourceRefused > 0 {
		t.Errorf("the source saw a broken protocol: %+v", stats)
	}
	b.waitReady("")
	b.quietLosses()
	b.conserved()
	b.stop()
}
