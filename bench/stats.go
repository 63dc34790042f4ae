package main

import (
	"fmt"
	"slices"
)

// metric names one figure of a run, as it stands in the JSON output.
type metric string

const (
	msgRate    metric = "msg_per_s"      // flat out: first publish to last arrival
	bridgeCPU  metric = "bridge_cpu_us"  // flat out, a message, of the bridge process
	brokersCPU metric = "brokers_cpu_us" // flat out, a message, of both brokers together
	bothCPU    metric = "bridge_and_brokers_cpu_us"
	loadCPU    metric = "load_cpu_us"         // flat out, a message, of this process
	pacedCPU   metric = "bridge_cpu_us_paced" // at the paced rate, a message
	latencyP50 metric = "latency_p50_ms"      // at the paced rate, publisher to subscriber
	latencyP99 metric = "latency_p99_ms"      // likewise
	startUp    metric = "start_up_s"          // start of the process to the first message across
	idleRSS    metric = "idle_rss_mib"        // connected, before the first load
	peakRSS    metric = "peak_rss_mib"        // VmHWM after the load
	flatCount  metric = "messages_flat_out"   // how many were sent flat out
	lost       metric = "lost"                // sent and never arrived
	duplicates metric = "duplicates"          // arrivals beyond the first
	outOfOrder metric = "out_of_order"        // first arrivals after one with a higher number
)

// result is one run of one contender. A metric that does not apply is absent.
type result struct {
	Setting   string             `json:"setting"`
	Contender string             `json:"contender"`
	Round     int                `json:"round"`
	Error     string             `json:"error,omitempty"` // the run is no figure
	Values    map[metric]float64 `json:"values"`
}

// sample is a set of repeated measurements.
type sample []float64

// median is the middle value, or the mean of the two in the middle; 0 for an empty
// sample.
func (s sample) median() float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	mid := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[mid]
	}
	return (sorted[mid-1] + sorted[mid]) / 2
}

// comparison puts a value beside the one of a peer in the same round.
type comparison func(value, peer float64) float64

func ratio(value, peer float64) float64 { return value / peer }

func difference(value, peer float64) float64 { return value - peer }

// results are the runs of one setting.
type results []result

// of returns the metric's value in every good run of a contender.
func (rs results) of(contender string, m metric) sample {
	var s sample
	for _, r := range rs {
		if v, ok := r.Values[m]; ok && r.Contender == contender && r.Error == "" {
			s = append(s, v)
		}
	}
	return s
}

// against compares a contender with its peer, round by round: a round in which one of
// the two has no figure does not count.
func (rs results) against(contender, peer string, m metric, compare comparison) sample {
	theirs := map[int]float64{}
	for _, r := range rs {
		if v, ok := r.Values[m]; ok && r.Contender == peer && r.Error == "" {
			theirs[r.Round] = v
		}
	}
	var s sample
	for _, r := range rs {
		v, ok := r.Values[m]
		p, both := theirs[r.Round]
		if ok && both && p != 0 && r.Contender == contender && r.Error == "" {
			s = append(s, compare(v, p))
		}
	}
	return s
}

// names returns the contenders that have runs, in the order of the report.
func (rs results) names() []string {
	var names []string
	for _, c := range contenders {
		if slices.ContainsFunc(rs, func(r result) bool { return r.Contender == c.name }) {
			names = append(names, c.name)
		}
	}
	return names
}

// String returns the run in one line, for progress.
func (r result) String() string {
	head := fmt.Sprintf("round %d  %-7s  %-16s", r.Round, r.Setting, r.Contender)
	if r.Error != "" {
		return head + "  FAILED: " + r.Error
	}
	line := fmt.Sprintf("%s  %8.0f msg/s", head, r.Values[msgRate])
	if v, ok := r.Values[bridgeCPU]; ok {
		line += fmt.Sprintf("  bridge %.1f us/msg", v)
	}
	if v, ok := r.Values[latencyP50]; ok {
		line += fmt.Sprintf("  p50 %.2f ms", v)
	}
	return line
}
