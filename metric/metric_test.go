package metric_test

import (
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gobridge/gobridge/metric"
)

func seriesValues(r *metric.Registry, d *metric.Desc) [][]string {
	var all [][]string
	r.Each(func(s *metric.Series) {
		if s.Desc == d {
			all = append(all, s.Values)
		}
	})
	return all
}

func TestCounterWithTheSameLabelsIsTheSameSeries(t *testing.T) {
	r := metric.NewRegistry()
	r.Counter(metric.MessagesSent, "up", "cloud").Inc()
	r.Counter(metric.MessagesSent, "up", "cloud").Add(2)
	r.Counter(metric.MessagesSent, "up", "archive").Inc()
	if got := r.Counter(metric.MessagesSent, "up", "cloud").Value(); got != 3 {
		t.Errorf("count = %d, want 3", got)
	}
	want := [][]string{{"up", "cloud"}, {"up", "archive"}}
	if diff := cmp.Diff(want, seriesValues(r, metric.MessagesSent)); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
}

func TestValueOutsideAClosedSetCountsAsOther(t *testing.T) {
	r := metric.NewRegistry()
	for i := range 100_000 {
		r.Counter(metric.MQTTConnectFailures, "edge", time.Duration(i).String()).Inc()
	}
	r.Counter(metric.MQTTConnectFailures, "edge", "TIMEOUT").Inc()
	want := [][]string{{"edge", metric.Other}, {"edge", "TIMEOUT"}}
	if diff := cmp.Diff(want, seriesValues(r, metric.MQTTConnectFailures)); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
	if got := r.Counter(metric.MQTTConnectFailures, "edge", metric.Other).Value(); got != 100_000 {
		t.Errorf("other = %d, want 100000", got)
	}
}

func TestCounterSetStartsEverySeriesAtZero(t *testing.T) {
	r := metric.NewRegistry()
	set := r.CounterSet(metric.MQTTReceiverEmitRejected, "edge")
	set.Get(metric.EmitLost).Inc()
	set.Get("no such outcome").Inc()
	want := [][]string{{"edge", "recovering"}, {"edge", "lost"}, {"edge", "other"}}
	if diff := cmp.Diff(want, seriesValues(r, metric.MQTTReceiverEmitRejected)); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
	for outcome, n := range map[string]uint64{"recovering": 0, "lost": 1, "other": 1} {
		if got := r.Counter(metric.MQTTReceiverEmitRejected, "edge", outcome).Value(); got != n {
			t.Errorf("%s = %d, want %d", outcome, got, n)
		}
	}
}

func TestGaugeFuncLatestWinsAndNilRemoves(t *testing.T) {
	r := metric.NewRegistry()
	read := func() (v float64, ok bool) {
		r.Each(func(s *metric.Series) { v, ok = s.Value() })
		return v, ok
	}
	r.GaugeFunc(metric.MQTTUnsettled, func() float64 { return 1 }, "edge")
	r.GaugeFunc(metric.MQTTUnsettled, func() float64 { return 2 }, "edge")
	if v, ok := read(); v != 2 || !ok {
		t.Errorf("value = %v, %v; want 2", v, ok)
	}
	r.GaugeFunc(metric.MQTTUnsettled, nil, "edge")
	if v, ok := read(); ok || !math.IsNaN(v) {
		t.Errorf("value after removal = %v, %v; want none", v, ok)
	}
}

func TestHistogramCountsIntoCumulativeBuckets(t *testing.T) {
	h := metric.NewRegistry().Histogram(metric.DeliveryE2ELatency, "up")
	for _, d := range []time.Duration{0, 500 * time.Microsecond, 2 * time.Millisecond, 20 * time.Second, time.Hour, -time.Second} {
		h.Observe(int64(d))
	}
	cumulative, count, sum := h.Snapshot()
	if want := []uint64{3, 3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 5, 5}; !slices.Equal(cumulative, want) {
		t.Errorf("buckets = %v, want %v", cumulative, want)
	}
	if count != 6 {
		t.Errorf("count = %d, want 6", count)
	}
	if want := 3620.0025; math.Abs(sum-want) > 1e-9 {
		t.Errorf("sum = %v, want %v", sum, want)
	}
}

func TestWrongUseIsAProgrammingError(t *testing.T) {
	for name, use := range map[string]func(*metric.Registry){
		"kind":           func(r *metric.Registry) { r.Counter(metric.MQTTUnsettled, "edge") },
		"label values":   func(r *metric.Registry) { r.Counter(metric.MessagesSent, "up") },
		"no closed last": func(r *metric.Registry) { r.CounterSet(metric.MessagesSent, "up") },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			use(metric.NewRegistry())
		})
	}
}

func TestRegistryIsSafeForConcurrentUse(t *testing.T) {
	r := metric.NewRegistry()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				r.Counter(metric.MessagesReceived, "up").Inc()
				r.Histogram(metric.DeliveryE2ELatency, "up").Observe(1)
				r.GaugeFunc(metric.MessagesInFlight, func() float64 { return 1 }, "up")
				r.Each(func(s *metric.Series) { s.Value() })
			}
		})
	}
	wg.Wait()
	if got := r.Counter(metric.MessagesReceived, "up").Value(); got != 8000 {
		t.Errorf("count = %d, want 8000", got)
	}
	if _, count, _ := r.Histogram(metric.DeliveryE2ELatency, "up").Snapshot(); count != 8000 {
		t.Errorf("observations = %d, want 8000", count)
	}
}

func TestCountingDoesNotAllocate(t *testing.T) {
	r := metric.NewRegistry()
	c := r.Counter(metric.MessagesSent, "up", "cloud")
	set := r.CounterSet(metric.MessagesDropped, "up", "cloud")
	h := r.Histogram(metric.DeliveryE2ELatency, "up")
	if n := testing.AllocsPerRun(1000, func() {
		c.Inc()
		set.Get(metric.DropQoS0Shed).Inc()
		h.Observe(int64(time.Millisecond))
	}); n != 0 {
		t.Errorf("%v allocations for one message, want none", n)
	}
}

func BenchmarkInc(b *testing.B) {
	c := metric.NewRegistry().Counter(metric.MessagesSent, "up", "cloud")
	b.ReportAllocs()
	for b.Loop() {
		c.Inc()
	}
}

func BenchmarkObserve(b *testing.B) {
	h := metric.NewRegistry().Histogram(metric.DeliveryE2ELatency, "up")
	b.ReportAllocs()
	for b.Loop() {
		h.Observe(int64(3 * time.Millisecond))
	}
}
