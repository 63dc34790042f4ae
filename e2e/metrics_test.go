package e2e

import (
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
)

// samples are the values of /metrics by series: name{labels}.
type samples map[string]float64

// metrics reads /metrics. It ends the test when it cannot.
func (b *bridge) metrics() samples {
	b.t.Helper()
	status, body := b.get("/metrics")
	if status != http.StatusOK {
		b.t.Fatalf("/metrics answers %d %s", status, body)
	}
	s, err := readMetrics(body)
	if err != nil {
		b.t.Fatalf("/metrics: %v", err)
	}
	return s
}

// readMetrics reads the Prometheus text format.
func readMetrics(body string) (samples, error) {
	s := make(samples)
	for line := range strings.Lines(body) {
		line = strings.TrimSpace(line)
		i := strings.LastIndexByte(line, ' ')
		if i < 0 || line[0] == '#' {
			continue
		}
		value, err := strconv.ParseFloat(line[i+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		s[line[:i]] = value
	}
	return s, nil
}

// sum adds the series of a metric that have all the labels, each written
// name="value". A metric without such a series is 0.
func (s samples) sum(name string, labels ...string) float64 {
	total := 0.0
series:
	for series, value := range s {
		got, rest, _ := strings.Cut(series, "{")
		if got != name {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(rest, l) {
				continue series
			}
		}
		total += value
	}
	return total
}

// counter waits for nothing and returns one counter of the catalogue, given without
// gobridge_ and _total.
func (b *bridge) counter(name string, labels ...string) float64 {
	b.t.Helper()
	return b.metrics().sum("gobridge_"+name+"_total", labels...)
}

// expectCounter waits until a counter has reached a value and expects exactly that.
func (b *bridge) expectCounter(want float64, name string, labels ...string) {
	b.t.Helper()
	var got float64
	if !within(patience, func() bool { got = b.counter(name, labels...); return got >= want }) || got != want {
		b.t.Errorf("%s%v = %v, want %v", name, labels, got, want)
	}
}

// quietLosses fails the test when a counter of lost, dead-lettered or refused
// messages is not zero.
func (b *bridge) quietLosses() {
	b.t.Helper()
	s := b.metrics()
	for _, name := range []string{
		"messages_dropped", "messages_expired", "dlq_entries", "dlq_write_failures", "mqtt_router_dropped", "mqtt_router_overflow_dropped",
		"mqtt_router_unmatched_dropped", "mqtt_ingress_poison_dropped", "mqtt_receiver_emit_rejected",
	} {
		if n := s.sum("gobridge_" + name + "_total"); n != 0 {
			b.t.Errorf("%s = %v, want 0", name, n)
		}
	}
}

// counts are counters of the catalogue as /metrics has them, without gobridge_ and
// _total, some with one label: "dlq_entries category=permanent".
type counts map[string]float64

// expect waits until the counters have their values, all at once.
func (b *bridge) expect(want counts) {
	b.t.Helper()
	var got counts
	if !within(patience, func() bool {
		s := b.metrics()
		got = make(counts)
		for name := range want {
			metric, label, labelled := strings.Cut(name, " ")
			var labels []string
			if key, value, _ := strings.Cut(label, "="); labelled {
				labels = []string{key + `="` + value + `"`}
			}
			got[name] = s.sum("gobridge_"+metric+"_total", labels...)
		}
		return maps.Equal(got, want)
	}) {
		b.t.Errorf("counters (-want +got):\n%s", cmp.Diff(want, got))
	}
}

// outcomes are the counters in which an admitted message ends, once for each binding.
var outcomes = []string{
	"messages_sent", "messages_dropped", "messages_filtered", "messages_expired", "dlq_entries", "outbox_duplicate_suppressed", "messages_returned",
}

// conserved checks the law of conservation (decision G2) of each route: every message
// that this process admitted has one outcome for each binding, is in flight or waits
// in the outbox.
func (b *bridge) conserved() {
	b.t.Helper()
	b.conservedSince(0)
}

// conservedSince is conserved for a process that began with so many records in its
// outbox.
func (b *bridge) conservedSince(records int) {
	b.t.Helper()
	b.settled()
	b.balanced(records)
}

// balanced is conservedSince while messages may be in flight.
func (b *bridge) balanced(records int) {
	b.t.Helper()
	for _, r := range b.health().Routes {
		label := `route_id="` + r.ID + `"`
		var bindings int
		var received, ended float64
		if !within(5*time.Second, func() bool { // one scrape is no snapshot
			s := b.metrics()
			bindings = 0
			for series := range s {
				if name, labels, _ := strings.Cut(series, "{"); name == "gobridge_messages_sent_total" && strings.Contains(labels, label) {
					bindings++
				}
			}
			received = s.sum("gobridge_messages_received_total", label)*float64(bindings) + float64(records)
			ended = s.sum("gobridge_messages_in_flight", label) + s.sum("gobridge_outbox_depth", label)
			for _, name := range outcomes {
				ended += s.sum("gobridge_"+name+"_total", label)
			}
			return bindings > 0 && received == ended
		}) {
			b.t.Errorf("route %s, %d bindings: received by them and in the outbox at the start %v, outcomes, in flight and in the outbox now %v",
				r.ID, bindings, received, ended)
		}
	}
}
