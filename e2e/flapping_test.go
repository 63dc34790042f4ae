package e2e

import (
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gobridge/gobridge/bridgetest"
)

// negatives reads /metrics all the time, until the test ends or stop is called, and
// collects the series that were ever below zero.
type negatives struct {
	end    func()
	wg     sync.WaitGroup
	reads  int
	series []string
}

func watchNegatives(t *testing.T, b *bridge) *negatives {
	t.Helper()
	done := make(chan struct{})
	n := &negatives{end: sync.OnceFunc(func() { close(done) })}
	n.wg.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			status, body := b.get("/metrics")
			s, err := readMetrics(body)
			if status != http.StatusOK || err != nil {
				t.Errorf("/metrics answers %d, %v", status, err)
				return
			}
			n.reads++
			for series, value := range s {
				if value < 0 && !slices.Contains(n.series, series) {
					n.series = append(n.series, series)
				}
			}
		}
	})
	t.Cleanup(func() { n.stop() })
	return n
}

// stop returns how often the metrics were read, and what was below zero.
func (n *negatives) stop() (reads int, series []string) {
	n.end()
	n.wg.Wait()
	return n.reads, n.series
}

// awaitRate waits until as many messages arrive within a second as are sent in one, and
// returns how long that took, the second included.
func awaitRate(t *testing.T, col *bridgetest.Collector, rate float64) time.Duration {
	t.Helper()
	const step = 50 * time.Millisecond
	began := time.Now()
	var counts []int // one for each step
	for time.Since(began) < patience {
		counts = append(counts, col.Count())
		if last := len(counts) - 1; last >= int(time.Second/step) && float64(counts[last]-counts[last-int(time.Second/step)]) >= 0.95*rate {
			return time.Since(began)
		}
		time.Sleep(time.Until(began.Add(time.Duration(len(counts)) * step)))
	}
	t.Errorf("%v messages a second are not back after %v: %d arrived", rate, patience, col.Count())
	return patience
}

// A link that is reset, that swallows everything, and that goes up and down every
// 300 ms, under load: once it is whole, so is the rate, and nothing was lost.
//
// Covers: S1-301, S2-403, G01
func TestBadLinksUnderLoadLoseNothing(t *testing.T) {
	t.Parallel()
	const rate, period, limit = 1000, 300 * time.Millisecond, 5 * time.Second
	hole, flaps := pick(4*time.Second, 30*time.Second), pick(6*time.Second, 30*time.Second)
	n := int((hole + flaps + 12*time.Second).Seconds()) * rate // until after the last repair
	for _, side := range []string{"source", "destination"} {
		t.Run(side, func(t *testing.T) {
			t.Parallel()
			source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{LogPublishes: true})
			dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
			behind := map[string]*bridgetest.Mosquitto{"source": source, "destination": dest}[side]
			link := bridgetest.NewProxy(t, behind.Addr())
			from, to := source.URL(), link.URL()
			if side == "source" {
				from, to = link.URL(), dest.URL()
			}
			cfg := between(t, from, to)
			for _, s := range []doc{cfg.source, cfg.dest} {
				delete(s, "reconnect_delay")
				s["reconnect_max_delay"], s["keep_alive"], s["connect_timeout"] = "2s", 2, "2s"
			}
			col := collect(t, dest.Addr(), "out/#")
			b := cfg.start(t)
			b.waitReady("")
			watch := watchNegatives(t, b)
			pub := bridgetest.StartPublisher(t, bridgetest.PublisherConfig{Addr: source.Addr(), Topic: "in/x", N: n, QoS: 1, PayloadSize: 100, Rate: rate})
			awaitRate(t, col, rate)

			back := map[string]time.Duration{}
			heal := func(what string) {
				back[what] = awaitRate(t, col, rate)
				if back[what] > limit {
					t.Errorf("%s: the rate was back after %v, want at most %v", what, back[what], limit)
				}
			}
			link.Cut()
			heal("reset")

			link.BlackHole(true)
			time.Sleep(hole)
			link.BlackHole(false)
			heal("black hole")

			ups := 0
			for end := time.Now().Add(flaps); time.Now().Before(end); {
				link.Refuse(true)
				link.Cut()
				time.Sleep(period)
				link.Refuse(false)
				time.Sleep(period)
				ups++
			}
			heal("flapping")

			r := finish(t, pub, col, n, b, time.Minute)
			t.Logf("%v; rate back after: reset %v, black hole of %v %v, %d flaps in %v %v; %v reconnects", r,
				back["reset"].Round(time.Millisecond), hole, back["black hole"].Round(time.Millisecond), ups, flaps, back["flapping"].Round(time.Millisecond),
				b.counter("mqtt_reconnects"))
			nothingLost(t, r)
			if r.OutOfOrder > 0 {
				t.Errorf("%d messages out of order, want 0", r.OutOfOrder)
			}
			// What a link took down may be sent again: at the source whatever the broker had no
			// acknowledgement for, which is more than the receive window (mosquitto 2.0.11 does
			// not keep to it once there is a backlog), at the destination what was open there.
			open := sum(trafficTo(source.Log(), sourceID).openAtEnd) + 192*int(b.counter("mqtt_reconnects", `session_id="destination"`))
			if r.Unexplained > open {
				t.Errorf("%d duplicates, want at most the %d that were open when the link went down", r.Unexplained, open)
			}
			b.settled()
			if unsettled := b.metrics().sum("gobridge_mqtt_unsettled"); unsettled != 0 {
				t.Errorf("MQTTUnsettled = %v at the end, want 0", unsettled)
			}
			reads, negative := watch.stop()
			if len(negative) > 0 || reads < 100 {
				t.Errorf("below zero in %d reads of /metrics: %q", reads, negative)
			}
			b.expect(counts{"mqtt_session_resume_lost": 0, "session_rebuilds": 0, "mqtt_session_recovery_recycle": 0})
			b.waitReady("")
			b.quietLosses()
			b.conserved()
			b.stop()
		})
	}
}
