package e2e

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gobridge/gobridge/bridgetest"
)

// Faults of every kind, one after the other without time to recover: nothing is
// lost, and whoever drops duplicates sees the order. At QoS 2 only a crash of the
// bridge may repeat a message.
func TestFaultsInARowLoseNothing(t *testing.T) {
	t.Run("QoS1 with crashes", func(t *testing.T) { faultsInARow(t, 1, 10) })
	t.Run("QoS2 without crashes", func(t *testing.T) { faultsInARow(t, 2, 9) })
}

// faultsInARow runs one bridge through faults of the first few kinds.
func faultsInARow(t *testing.T, qos byte, kinds int) {
	rounds := pick(20, 300)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	in, out := bridgetest.NewProxy(t, source.Addr()), bridgetest.NewProxy(t, dest.Addr())
	out.Delay(5 * time.Millisecond)
	cfg := between(t, in.URL(), out.URL())
	for _, s := range []doc{cfg.source, cfg.dest} {
		s["keep_alive"], s["connect_timeout"] = 2, "1s"
		s["reconnect_delay"], s["reconnect_max_delay"] = "10ms", "100ms"
	}
	cfg.topics = []doc{{"topic": "in/#", "qos": qos}}
	cfg.sender["qos"] = fmt.Sprint(qos)
	cfg.destSession["session_mode"] = "persistent"
	col := collect(t, dest.Addr(), "out/#")
	b := cfg.start(t)
	b.waitReady("")

	const rate = 2000
	n := rounds * rate / 6
	pub := bridgetest.StartPublisher(t, bridgetest.PublisherConfig{Addr: source.Addr(), Topic: "in/x", N: n, QoS: qos, PayloadSize: 100, Rate: rate})
	between := func(low, high time.Duration) { // the time that a fault lasts, or until the next one
		time.Sleep(low + time.Duration(random.Int64N(int64(high-low))))
	}
	kills, restarts := 0, 0
	for range rounds {
		between(10*time.Millisecond, 150*time.Millisecond)
		switch random.IntN(kinds) {
		case 0, 1, 2:
			in.Cut()
		case 3, 4, 5:
			out.Cut()
		case 6:
			link := []*bridgetest.Proxy{in, out}[random.IntN(2)]
			link.Stall(true)
			between(10*time.Millisecond, 300*time.Millisecond)
			link.Stall(false)
		case 7:
			link := []*bridgetest.Proxy{in, out}[random.IntN(2)]
			link.BlackHole(true)
			between(10*time.Millisecond, 300*time.Millisecond)
			link.BlackHole(false)
		case 8:
			[]*bridgetest.Mosquitto{source, dest}[random.IntN(2)].Restart()
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
	if qos == 2 && r.Unexplained > 0 {
		t.Errorf("%d duplicates, want 0", r.Unexplained)
	}
	if r.OutOfOrder > 0 && len(r.Resent) == 0 {
		t.Errorf("%d messages out of order, want 0", r.OutOfOrder)
	}
	b.waitReady("")
	b.quietLosses()
	b.conserved()
	b.stop()
}
