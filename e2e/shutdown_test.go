package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gobridge/gobridge/bridgetest"
)

func TestStopsUnderLoadLoseAndRepeatNothing(t *testing.T) {
	for qos := byte(1); qos <= 2; qos++ {
		t.Run(fmt.Sprintf("QoS%d", qos), func(t *testing.T) {
			n, stops := pick(4000, 20_000), pick(5, 20)
			source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
			dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
			cfg := between(t, source.URL(), dest.URL())
			cfg.topics = []doc{{"topic": "in/#", "qos": qos}}
			cfg.sender["qos"] = fmt.Sprint(qos)
			col := collect(t, dest.Addr(), "out/#")
			b := cfg.start(t)
			b.waitReady("")

			pub := bridgetest.StartPublisher(t, bridgetest.PublisherConfig{Addr: source.Addr(), Topic: "in/x", N: n, QoS: qos, PayloadSize: 100})
			var longest time.Duration
			for i := 1; i <= stops; i++ {
				mustCount(t, col, n*i/(stops+1), b, time.Minute)
				b.waitReady("") // what waits for a destination that is not connected yet is left to the source
				began := time.Now()
				if code := b.Term(40 * time.Second); code != 0 {
					t.Errorf("stop %d: exit code %d, want 0", i, code)
				}
				longest = max(longest, time.Since(began))
				b = cfg.start(t)
			}
			r := finish(t, pub, col, n, b, time.Minute)
			t.Logf("%v; %d stops, the longest took %v", r, stops, longest.Round(time.Millisecond))
			exactlyOnce(t, r)
			if r.OutOfOrder > 0 {
				t.Errorf("%d messages out of order, want 0", r.OutOfOrder)
			}
			b.quietLosses()
			b.conserved()
			b.stop()
		})
	}
}

// Covers: S2-209
func TestStopDuringAnOutageLeavesTheRestAtTheSource(t *testing.T) {
	t.Parallel()
	const n, shutdownTimeout = 500, 5 * time.Second
	for name, test := range map[string]struct {
		outage, back func(*bridgetest.Mosquitto)
		repeats      int // messages that the destination may have taken without an answer
	}{
		"down":    {(*bridgetest.Mosquitto).Stop, (*bridgetest.Mosquitto).Start, 0},
		"hanging": {(*bridgetest.Mosquitto).Pause, (*bridgetest.Mosquitto).Resume, 192},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
			dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
			cfg := between(t, source.URL(), dest.URL())
			cfg.bridge["shutdown_timeout"], cfg.bridge["drain_timeout"] = shutdownTimeout.String(), "2s"
			col := collect(t, dest.Addr(), "out/#")
			b := cfg.start(t)
			b.waitReady("")
			test.outage(dest)
			pub := publishN(t, source.Addr(), "in/x", n)
			pub.Wait(t, patience)
			b.eventually(patience, "a full route", func() bool { return b.metrics().sum("gobridge_messages_in_flight") == 192 })

			began := time.Now()
			code := b.Term(2 * shutdownTimeout)
			took := time.Since(began)
			if code != 3 || took > shutdownTimeout {
				t.Errorf("exit code %d after %v, want 3 within %v", code, took, shutdownTimeout)
			}
			if !strings.Contains(b.Stderr(), "192 deliveries unsettled") {
				t.Errorf("the log does not say what was left:\n%s", b.Stderr())
			}
			test.back(dest)
			b = cfg.start(t)
			r := finish(t, pub, col, n, b, time.Minute)
			t.Logf("%v; exit took %v", r, took.Round(time.Millisecond))
			nothingLost(t, r)
			if r.Unexplained > test.repeats {
				t.Errorf("%d duplicates, want at most %d", r.Unexplained, test.repeats)
			}
			b.quietLosses()
			b.conserved()
			b.stop()
		})
	}
}

// What is physically under way is waited for.
func TestStopWaitsForMessagesUnderWay(t *testing.T) {
	t.Parallel()
	const n, delay = 37, 700 * time.Millisecond
	source := bridgetest.NewFakeBroker(t)
	src := source.Auto(bridgetest.AutoConfig{Source: &bridgetest.SourceConfig{N: n, Topic: "in/x", QoS: 1}})
	fake := bridgetest.NewFakeBroker(t)
	dest := fake.Auto(bridgetest.AutoConfig{AckDelay: delay})
	b := between(t, source.URL(), fake.URL()).start(t)
	dest.Wait(patience, func(s bridgetest.AutoStats) bool { return s.Received == n })
	if acked := src.Stats().SourceAcked; acked == n {
		t.Fatal("everything was acknowledged before the stop: the test proves nothing")
	}
	began := time.Now()
	if code := b.Term(patience); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("the stop took %v, want less than 2 s", took)
	}
	s := src.Wait(patience, func(s bridgetest.AutoStats) bool { return s.SourceAcked == n })
	if s.AcksOutOfOrder > 0 {
		t.Errorf("%d acknowledgements out of order", s.AcksOutOfOrder)
	}
	if r := dest.Stats().Received; r != n {
		t.Errorf("the destination got %d messages, want %d", r, n)
	}
}

func TestSecondSignalStopsNow(t *testing.T) {
	t.Parallel()
	source := bridgetest.NewFakeBroker(t)
	source.Auto(bridgetest.AutoConfig{Source: &bridgetest.SourceConfig{N: 5, Topic: "in/x", QoS: 1}})
	fake := bridgetest.NewFakeBroker(t)
	dest := fake.Auto(bridgetest.AutoConfig{AckDelay: time.Minute})
	b := between(t, source.URL(), fake.URL()).start(t)
	dest.Wait(patience, func(s bridgetest.AutoStats) bool { return s.Received == 5 })
	b.Signal(syscall.SIGTERM)
	b.WaitOutput("stopping", patience)
	began := time.Now()
	if code := b.Term(patience); code != 3 {
		t.Errorf("exit code %d, want 3", code)
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("the second signal took %v", took)
	}
}
