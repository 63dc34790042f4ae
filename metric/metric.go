// Package metric holds the one table of the bridge's metrics and the cheap
// handles that count them. It knows nothing of any exposition format beyond the
// names; package admin renders a Registry.
//
// Handles are looked up once, when a route or session is built, and then cost
// one atomic operation. All methods are safe for concurrent use.
package metric

import (
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Kind of a metric.
type Kind uint8

// The kinds.
const (
	KindCounter Kind = iota
	KindGauge
	KindHistogram
)

func (k Kind) String() string {
	return [...]string{"counter", "gauge", "histogram"}[k]
}

// Desc describes one metric of the table.
type Desc struct {
	// Name is the catalogue name: MessagesReceived.
	Name string
	// Kind is counter, gauge or histogram.
	Kind Kind
	// Unit is "" (a count), "seconds", "bytes" or "ratio".
	Unit string
	// Labels names the labels, in the order that Registry methods take their values.
	Labels []string
	// Values closes the value sets of labels whose values do not come from the
	// config; each set holds Other, which stands for whatever is not in it.
	Values map[string][]string
	// Help is one sentence, without the catalogue name.
	Help string
}

// Registry holds the series of one bridge.
type Registry struct {
	mu     sync.Mutex
	series map[string]*Series
	order  []*Series
}

// Series is one metric with one set of label values.
type Series struct {
	Desc   *Desc
	Values []string

	count atomic.Uint64
	gauge atomic.Pointer[func() float64]
	hist  *Histogram
}

// NewRegistry returns an empty registry.
func NewRegistry() *Registry { return &Registry{series: map[string]*Series{}} }

// closed returns a copy of the label values in which Other stands for every
// value outside the closed set of its label.
func (d *Desc) closed(values []string) []string {
	values = slices.Clone(values)
	for i, label := range d.Labels {
		if set := d.Values[label]; set != nil && !slices.Contains(set, values[i]) {
			values[i] = Other
		}
	}
	return values
}

func (r *Registry) get(d *Desc, kind Kind, values []string) *Series {
	if d.Kind != kind || len(values) != len(d.Labels) {
		panic("metric: " + d.Name + ": wrong kind or number of label values")
	}
	values = d.closed(values)
	key := d.Name + "\x00" + strings.Join(values, "\x00")
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.series[key]
	if s == nil {
		s = &Series{Desc: d, Values: values}
		if kind == KindHistogram {
			s.hist = &Histogram{counts: make([]atomic.Uint64, len(Buckets)+1)}
		}
		r.series[key] = s
		r.order = append(r.order, s)
	}
	return s
}

// Counter counts events.
type Counter struct{ s *Series }

// Counter returns the counter with these label values; the same one each time.
func (r *Registry) Counter(d *Desc, values ...string) *Counter {
	return &Counter{r.get(d, KindCounter, values)}
}

// Inc adds one.
func (c *Counter) Inc() { c.s.count.Add(1) }

// Add adds n.
func (c *Counter) Add(n uint64) { c.s.count.Add(n) }

// Value returns the count.
func (c *Counter) Value() uint64 { return c.s.count.Load() }

// CounterSet holds one counter for each value of a closed label.
type CounterSet map[string]*Counter

// CounterSet returns the counters for every value of the last label of d, which
// has to be a closed one; values are those of the labels before it. All of the
// series exist from then on, at zero, so that the first event is an increase.
func (r *Registry) CounterSet(d *Desc, values ...string) CounterSet {
	set := d.Values[d.Labels[len(d.Labels)-1]]
	if set == nil {
		panic("metric: " + d.Name + ": the last label is not a closed one")
	}
	all := make(CounterSet, len(set))
	for _, v := range set {
		all[v] = r.Counter(d, append(slices.Clone(values), v)...)
	}
	return all
}

// Get returns the counter of that value, or of Other when it is not in the set.
func (s CounterSet) Get(value string) *Counter {
	if c := s[value]; c != nil {
		return c
	}
	return s[Other]
}

// CounterBy holds the counters of one metric for the values of its last label, which
// has to be a closed one. A series exists from its first event on: for labels with
// many values, most of which never occur.
type CounterBy struct {
	r      *Registry
	d      *Desc
	values []string
}

// CounterBy returns the counters of d; values are those of the labels before the
// last.
func (r *Registry) CounterBy(d *Desc, values ...string) CounterBy {
	return CounterBy{r, d, slices.Clone(values)}
}

// Get returns the counter of that value, or of Other when it is not in the set. It
// takes a lock: it is for events that are rare.
func (c CounterBy) Get(value string) *Counter {
	return c.r.Counter(c.d, append(slices.Clone(c.values), value)...)
}

// GaugeFunc sets the function that gives a gauge's value when it is read; the
// latest one wins, nil removes the series.
func (r *Registry) GaugeFunc(d *Desc, f func() float64, values ...string) {
	s := r.get(d, KindGauge, values)
	if f == nil {
		s.gauge.Store(nil)
		return
	}
	s.gauge.Store(&f)
}

// Buckets are the upper bounds of every histogram, in seconds.
var Buckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}

// Histogram counts durations in seconds.
type Histogram struct {
	counts []atomic.Uint64
	sum    atomic.Uint64 // nanoseconds
}

// Histogram returns the histogram with these label values.
func (r *Registry) Histogram(d *Desc, values ...string) *Histogram {
	return r.get(d, KindHistogram, values).hist
}

// Observe counts one duration, given in nanoseconds as time.Duration is.
func (h *Histogram) Observe(d int64) {
	s := float64(d) / 1e9
	i := 0
	for i < len(Buckets) && s > Buckets[i] {
		i++
	}
	h.counts[i].Add(1)
	h.sum.Add(uint64(max(d, 0)))
}

// Snapshot returns the cumulative bucket counts, the total count and the sum in
// seconds.
func (h *Histogram) Snapshot() (cumulative []uint64, count uint64, sum float64) {
	cumulative = make([]uint64, len(Buckets))
	for i := range h.counts {
		count += h.counts[i].Load()
		if i < len(Buckets) {
			cumulative[i] = count
		}
	}
	return cumulative, count, float64(h.sum.Load()) / 1e9
}

// Each calls f for every series, in order of creation.
func (r *Registry) Each(f func(*Series)) {
	r.mu.Lock()
	all := slices.Clone(r.order)
	r.mu.Unlock()
	for _, s := range all {
		f(s)
	}
}

// Value returns the current value of a counter or gauge; ok is false for a gauge
// that was removed and for histograms.
func (s *Series) Value() (v float64, ok bool) {
	switch s.Desc.Kind {
	case KindCounter:
		return float64(s.count.Load()), true
	case KindGauge:
		if f := s.gauge.Load(); f != nil {
			return (*f)(), true
		}
	}
	return math.NaN(), false
}

// Histogram returns the histogram of the series, nil for other kinds.
func (s *Series) Histogram() *Histogram { return s.hist }
