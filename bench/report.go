package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// report is what a measurement found, and what it needs to be read.
type report struct {
	Date     time.Time `json:"date"`
	Machine  machine   `json:"machine"`
	Versions []string  `json:"versions"`
	Load     string    `json:"load"`
	NotRun   []string  `json:"not_run,omitempty"`
	Results  results   `json:"results"`

	binaries map[kind]float64 // MiB
}

// column is one figure of a table.
type column struct {
	title   string
	metric  metric
	digits  int
	compare comparison // nil for the value itself
	against string     // a contender, or "" for everybody's own peer
}

var tables = map[string][]column{
	"brokers": {
		{title: "msg/s", metric: msgRate},
		{title: "of direct", metric: msgRate, digits: 2, compare: ratio, against: "direct"},
		{title: "x peer", metric: msgRate, digits: 2, compare: ratio},
		{title: "bridge CPU us/msg", metric: bridgeCPU, digits: 1},
		{title: "x peer", metric: bridgeCPU, digits: 2, compare: ratio},
		{title: "bridge + brokers CPU us/msg", metric: bothCPU, digits: 1},
		{title: "load CPU us/msg", metric: loadCPU, digits: 1},
	},
	"paced": {
		{title: "p50 ms", metric: latencyP50, digits: 2},
		{title: "p99 ms", metric: latencyP99, digits: 2},
		{title: "p50 added to direct", metric: latencyP50, digits: 2, compare: difference, against: "direct"},
		{title: "p99 added to direct", metric: latencyP99, digits: 2, compare: difference, against: "direct"},
		{title: "p50 - peer", metric: latencyP50, digits: 2, compare: difference},
		{title: "p99 - peer", metric: latencyP99, digits: 2, compare: difference},
		{title: "bridge CPU us/msg", metric: pacedCPU, digits: 1},
		{title: "x peer", metric: pacedCPU, digits: 2, compare: ratio},
	},
	"fake": {
		{title: "messages a run", metric: flatCount},
		{title: "msg/s", metric: msgRate},
		{title: "of direct", metric: msgRate, digits: 2, compare: ratio, against: "direct"},
		{title: "x peer", metric: msgRate, digits: 2, compare: ratio},
		{title: "bridge CPU us/msg", metric: bridgeCPU, digits: 2},
		{title: "x peer", metric: bridgeCPU, digits: 3, compare: ratio},
		{title: "load CPU us/msg", metric: loadCPU, digits: 2},
		{title: "peak RSS MiB", metric: peakRSS, digits: 1},
	},
	"footprint": {
		{title: "start-up s", metric: startUp, digits: 3},
		{title: "idle RSS MiB", metric: idleRSS, digits: 1},
		{title: "peak RSS MiB", metric: peakRSS, digits: 1},
	},
}

// markdown writes the tables.
func (r *report) markdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# Bridge benchmark, %s\n\n", r.Date.Format("2006-01-02 15:04 MST"))
	fmt.Fprintf(&b, "%s; %s.\n\n%s\n\n", r.Machine, strings.Join(r.Versions, "; "), r.Load)
	b.WriteString("Every figure is the median of its runs (lowest to highest), n the number of runs. A comparison is made within each round, then the median is taken.\n")
	for _, name := range r.names() {
		if peer := peerOf(name); peer != "" {
			fmt.Fprintf(&b, "The peer of %s is %s.\n", name, peer)
		}
	}
	brokers, fake := r.setting("brokers"), r.setting("fake")
	brokers.table(&b, "Flat out between two mosquitto brokers", tables["brokers"], nil)
	brokers.table(&b, "Paced between two mosquitto brokers, publisher to subscriber", tables["paced"], nil)
	fake.table(&b, "Flat out between a fake source and sink: the bridge's own ceiling", tables["fake"], nil)
	brokers.table(&b, "Footprint", tables["footprint"], r.binaries)
	r.deliveries(&b)
	for _, text := range r.NotRun {
		fmt.Fprintf(&b, "\nNOT RUN: %s\n", text)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// deliveries writes what was lost, repeated or failed, over all runs.
func (r *report) deliveries(b *strings.Builder) {
	var sums []string
	for _, m := range []metric{lost, duplicates, outOfOrder} {
		for _, s := range settings {
			for _, name := range r.names() {
				total := 0.0
				for _, run := range r.setting(s.name) {
					if run.Contender == name {
						total += run.Values[m]
					}
				}
				if total > 0 {
					sums = append(sums, fmt.Sprintf("%s/%s: %.0f %s", s.name, name, total, strings.ReplaceAll(string(m), "_", " ")))
				}
			}
		}
	}
	b.WriteString("\n## Deliveries\n\n")
	if len(sums) == 0 && !r.failed() {
		b.WriteString("Nothing lost, repeated or out of order in any run.\n")
	}
	for _, text := range sums {
		fmt.Fprintf(b, "- %s\n", text)
	}
	for _, run := range r.Results {
		if run.Error != "" {
			fmt.Fprintf(b, "- FAILED %s/%s round %d: %s\n", run.Setting, run.Contender, run.Round, strings.Join(strings.Fields(run.Error), " "))
		}
	}
}

// table writes a row for each contender that has a figure in one of the columns.
// binaries, where given, is one more column.
func (rs results) table(b *strings.Builder, title string, columns []column, binaries map[kind]float64) {
	titles := []string{"bridge", "n"}
	for _, c := range columns {
		titles = append(titles, c.title)
	}
	if binaries != nil {
		titles = append(titles, "binary MiB")
	}
	var rows [][]string
	for _, name := range rs.names() {
		runs := len(rs.of(name, columns[0].metric))
		if runs == 0 {
			continue
		}
		row := []string{name, fmt.Sprint(runs)}
		for _, c := range columns {
			row = append(row, rs.cell(name, c))
		}
		if binaries != nil {
			row = append(row, fmt.Sprintf("%.1f", binaries[contenderNamed(name).kind]))
		}
		rows = append(rows, row)
	}
	if len(rows) == 0 {
		return
	}
	fmt.Fprintf(b, "\n## %s\n\n| %s |\n|%s\n", title, strings.Join(titles, " | "), strings.Repeat("---|", len(titles)))
	for _, row := range rows {
		fmt.Fprintf(b, "| %s |\n", strings.Join(row, " | "))
	}
}

func (rs results) cell(name string, c column) string {
	s := rs.of(name, c.metric)
	if c.compare != nil {
		peer := c.against
		if peer == "" {
			peer = peerOf(name)
		}
		if peer == name || peer == "" {
			return "-"
		}
		s = rs.against(name, peer, c.metric, c.compare)
	}
	switch len(s) {
	case 0:
		return "-"
	case 1:
		return fmt.Sprintf("%.*f", c.digits, s[0])
	}
	return fmt.Sprintf("%.*f (%.*f to %.*f)", c.digits, s.median(), c.digits, slices.Min(s), c.digits, slices.Max(s))
}

// setting returns the runs of one setting.
func (r *report) setting(name string) results {
	var rs results
	for _, run := range r.Results {
		if run.Setting == name {
			rs = append(rs, run)
		}
	}
	return rs
}

func (r *report) names() []string { return r.Results.names() }

// failed says whether a run gave no figures or lost a message.
func (r *report) failed() bool {
	return slices.ContainsFunc(r.Results, func(run result) bool { return run.Error != "" || run.Values[lost] > 0 })
}
