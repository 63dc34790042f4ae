package e2e

import (
	"bytes"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/bridgetest"
	"github.com/gobridge/gobridge/metric"
	"github.com/gobridge/gobridge/store/sqlite"
)

// bodySize is the payload of the messages that rates are measured with.
const bodySize = 512

// numbered is payload i: its number, and as many bytes as a body has.
func numbered(i int) []byte {
	return append(fmt.Appendf(make([]byte, 0, bodySize), "%08d ", i), bytes.Repeat([]byte{'x'}, bodySize-9)...)
}

// inOrder returns a hook that counts the numbered messages that did not follow their
// predecessor.
func inOrder(wrong *atomic.Int32) func(*packets.Publish) (byte, bool) {
	next := 0
	return func(p *packets.Publish) (byte, bool) {
		if got, err := strconv.Atoi(string(p.Payload[:8])); err != nil || got != next {
			wrong.Add(1)
		}
		next++
		return 0, false
	}
}

// storedHere is the outcome of a Persist.
type storedHere chan error

func (s storedHere) OutboxDone(_ []*gobridge.OutboxRecord, err error) { s <- err }

// storeBacklog puts n numbered records for the route of a config into the outbox of
// a data_dir that no process uses.
func storeBacklog(t *testing.T, dataDir string, n int) {
	t.Helper()
	outbox, err := sqlite.OutboxKind().Open(t.Context(), &gobridge.BridgeSpec{ID: "e2e", DataDir: dataDir},
		&gobridge.StoreSpec{Type: "sqlite"}, gobridge.Env{Logger: slog.New(slog.DiscardHandler), Metrics: metric.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	const group = 1000
	done := make(storedHere, 1)
	for i := 0; i < n; i += group {
		var records []*gobridge.OutboxRecord
		for j := i; j < min(i+group, n); j++ {
			records = append(records, &gobridge.OutboxRecord{
				RouteID: "r", BindingID: "b", Address: "out/in/x",
				Envelope: gobridge.Envelope{
					ID: fmt.Sprintf("01890a5d-ac96-774b-bcce-%012d", j), IDOrigin: gobridge.IDProducer,
					Topic: "in/x", Payload: numbered(j), QoS: 1, CreatedAt: time.Now(),
				},
			})
		}
		outbox.Persist(records, done)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	if err := outbox.Close(); err != nil {
		t.Fatal(err)
	}
}

// rate waits until a sink has got n messages and returns the rate of the middle 80 %.
func rate(t *testing.T, sink *bridgetest.Auto, n int) float64 {
	t.Helper()
	at := func(count int) time.Time {
		sink.Wait(5*time.Minute, func(s bridgetest.AutoStats) bool { return s.Received >= count })
		return time.Now()
	}
	first := at(n / 10)
	return float64(n*8/10) / at(n*9/10).Sub(first).Seconds()
}

// A backlog is found at the start in under two seconds for a million records, and
// drained at nine tenths of the rate at which messages go through the outbox live.
func TestBacklogIsRecoveredAndDrainedFast(t *testing.T) {
	n := pick(20_000, 1_000_000)
	live := min(n, 200_000)

	// The live rate: the same messages, brokers and binary, with nothing stored before.
	var wrong atomic.Int32
	fake := bridgetest.NewFakeBroker(t)
	sink := fake.Auto(bridgetest.AutoConfig{DropRecords: true, PubAck: inOrder(&wrong)})
	source := bridgetest.NewFakeBroker(t)
	source.Auto(bridgetest.AutoConfig{DropRecords: true, Source: &bridgetest.SourceConfig{
		N: live, Topic: "in/x", QoS: 1, Payload: numbered,
		Properties: func(i int) *packets.Properties {
			return &packets.Properties{User: []packets.User{{Key: "mqtt.message-id", Value: fmt.Sprintf("01890a5d-ac96-774b-bcce-%012d", i)}}}
		},
	}})
	b := viaOutbox(t, source.URL(), fake.URL()).start(t)
	liveRate := rate(t, sink, live)
	sink.Wait(time.Minute, func(s bridgetest.AutoStats) bool { return s.Received == live })
	b.waitDepth(0, patience)
	cpu := b.CPUTime()
	b.stop()
	t.Logf("live: %.0f msg/s, %v of CPU for a message", liveRate, cpu/time.Duration(live))

	fake = bridgetest.NewFakeBroker(t)
	wrong.Store(0)
	sink = fake.Auto(bridgetest.AutoConfig{DropRecords: true, PubAck: inOrder(&wrong)})
	source = bridgetest.NewFakeBroker(t)
	source.Auto(bridgetest.AutoConfig{})
	cfg := viaOutbox(t, source.URL(), fake.URL())
	storeBacklog(t, cfg.bridge["data_dir"].(string), n)
	began := time.Now()
	b = cfg.start(t)
	sink.Wait(time.Minute, func(s bridgetest.AutoStats) bool { return s.Received > 0 })
	first := time.Since(began)
	drainRate := rate(t, sink, n)
	got := sink.Wait(time.Minute, func(s bridgetest.AutoStats) bool { return s.Received >= n })
	b.waitDepth(0, patience)
	cpu = b.CPUTime()
	_, peak := b.RSS()
	b.waitReady("")
	b.stop()
	t.Logf("%d records: first delivery %v after the start, drained at %.0f msg/s (%.2f of live), %v of CPU for a message, peak RSS %s",
		n, first.Round(time.Millisecond), drainRate, drainRate/liveRate, cpu/time.Duration(n), megabytes(peak))
	if got.Received != n || wrong.Load() > 0 {
		t.Errorf("%d messages arrived, %d of them out of place; want %d", got.Received, wrong.Load(), n)
	}
	if limit := 2 * time.Second; first > limit {
		t.Errorf("the first delivery came %v after the start, want at most %v", first, limit)
	}
	if drainRate < 0.9*liveRate {
		t.Errorf("drained at %.0f msg/s, want at least nine tenths of %.0f", drainRate, liveRate)
	}
}
