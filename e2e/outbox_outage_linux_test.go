package e2e

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gobridge/gobridge/bridgetest"
)

// A store that takes no writes for a minute, with messages coming all the time: the
// source is held, nobody is charged, readiness says why, and everything goes on by
// itself. What was sent before or during the outage is not sent a second time.
func TestStoreThatFailsForAMinuteLosesNothing(t *testing.T) {
	const size, rate = 4000, 200
	outage := pick(10*time.Second, time.Minute)
	n := int(outage.Seconds()*rate) * 3 / 2
	for name, tt := range map[string]struct {
		reason string // what readiness has to say, beside the store
		fail   func(t *testing.T, disk, data string, dest *bridgetest.Mosquitto) (mend func())
	}{
		// While the destination takes what comes, a full disk does no harm: a record takes
		// the place of one that was completed.
		"full disk": {"the disk is full", func(t *testing.T, disk, _ string, dest *bridgetest.Mosquitto) func() {
			dest.Stop()
			makeRoom := fill(t, disk, 3<<20)
			return func() { makeRoom(); dest.Start() }
		}},
		"locked file": {"another program has locked the file", func(t *testing.T, _, data string, _ *bridgetest.Mosquitto) func() {
			return lockFile(t, filepath.Join(data, "gobridge.db"))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			disk := smallDisk(t, 64<<20+3*n*size)
			source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{LogPublishes: true})
			dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
			cfg := viaOutbox(t, source.URL(), dest.URL())
			data := filepath.Join(disk, "data")
			cfg.bridge["data_dir"] = data
			col := collect(t, dest.Addr(), "out/#")
			b := cfg.start(t)
			b.waitReady("")
			pub := bridgetest.StartPublisher(t, bridgetest.PublisherConfig{
				Addr: source.Addr(), Topic: "in/x", N: n, QoS: 1, PayloadSize: size, Rate: rate,
			})
			mustCount(t, col, rate, b, time.Minute)

			mend := tt.fail(t, disk, data, dest)
			began := time.Now()
			ends := began.Add(outage)
			var reason string
			b.eventually(patience, "readiness names the store", func() bool {
				_, r := b.ready()
				for _, why := range r.Reasons {
					if why.RouteID == "r" && strings.Contains(why.Reason, "gobridge.db") && strings.Contains(why.Reason, tt.reason) {
						reason = why.Reason
						return true
					}
				}
				return false
			})
			t.Logf("named after %v: %s", time.Since(began).Round(time.Millisecond), reason)
			held := -1
			for time.Now().Before(ends) {
				if status, body := b.get("/livez"); status != 200 {
					t.Errorf("/livez answers %d %s", status, body)
				}
				if status, _ := b.ready(); status == 200 {
					t.Errorf("ready %v into the outage", time.Since(began))
				}
				acked := trafficTo(source.Log(), sourceID).acked
				if held >= 0 && acked != held {
					t.Errorf("the source got %d acknowledgements in the outage", acked-held)
				}
				held = acked
				time.Sleep(500 * time.Millisecond)
			}
			if held >= n {
				t.Errorf("all %d messages were acknowledged: nothing was held", n)
			}
			mend()
			began = time.Now()
			b.waitReady("")
			back := time.Since(began)

			r := finish(t, pub, col, n, b, time.Minute)
			b.waitDepth(0, patience)
			t.Logf("%v; %d acknowledged in an outage of %v, ready again %v after it", r, held, outage, back.Round(time.Millisecond))
			exactlyOnce(t, r)
			if r.OutOfOrder > 0 {
				t.Errorf("%d messages out of order, want 0", r.OutOfOrder)
			}
			expectAcked(t, source, n)
			for _, charge := range []string{"outbox_replays", "send_retry_budget_exhausted", "messages_returned", "outbox_duplicate_suppressed"} {
				if got := b.counter(charge); got != 0 {
					t.Errorf("%s = %v, want 0", charge, got)
				}
			}
			b.quietLosses()
			b.conservedSince(0)
			b.stop()
		})
	}
}
