package metric_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gobridge/gobridge/metric"
)

var update = flag.Bool("update", false, "write the generated reference")

const referenceFile = "../docs/metrics.md"

func TestReferenceIsUpToDate(t *testing.T) {
	want := reference()
	if *update {
		if err := os.WriteFile(referenceFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(referenceFile)
	if err != nil {
		t.Fatalf("%v (go test ./metric -update writes it)", err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("docs/metrics.md is stale, run go test ./metric -update (-table +file):\n%s", diff)
	}
}

// sections start where the named metric stands in the table.
var sections = map[*metric.Desc]string{
	metric.MessagesReceived:  "Messages and routes",
	metric.DLQEntries:        "Dead letters",
	metric.OutboxDepth:       "Outbox",
	metric.MQTTUnsettled:     "MQTT: receiving",
	metric.MQTTQoSDowngraded: "MQTT: connections and sending",
	metric.SessionRebuilds:   "The bridge",
}

const referenceHead = `# Metrics

<!-- Generated from the table in package metric by: go test ./metric -update -->

` + "`GET /metrics`" + ` on the monitor listener answers in the Prometheus text format. Besides the metrics below it holds those of
the Go runtime (` + "`go_*`" + `) and of the process (` + "`process_*`" + `). The HELP text of each metric starts with its catalogue name.

Labels come from the config (` + "`route_id`, `binding_id`, `session_id`" + `) or have the closed sets of values listed under each
table; a value outside its set counts as ` + "`other`" + `. No topic, client, message id or error text is ever a label, so the number
of series follows from the config alone. A series appears when the part that it belongs to is configured.

**Every message has one outcome.** At any moment in the life of one process, for each route:

    received x bindings = sent + dropped + filtered + expired + dead letters + outbox duplicates suppressed
                        + returned + in flight + change of the outbox depth

where every figure on the right is summed over the route's bindings. Messages that a session drops before a route sees
them are counted by the MQTTRouter and MQTTIngress metrics of the session.

**What to watch**

| question | expression |
|---|---|
| Is anything being lost? | ` + "`increase(gobridge_messages_dropped_total[5m]) > 0`" + ` |
| Are dead letters piling up? | ` + "`gobridge_dlq_depth > 0`, `increase(gobridge_dlq_write_failures_total[5m]) > 0`" + ` |
| Does a route stand still? | ` + "`gobridge_mqtt_oldest_unsettled_age_seconds > 60`" + ` |
| Is the receive window the limit? | ` + "`gobridge_mqtt_receive_window_utilization_ratio > 0.9`" + ` |
| Did the broker lose the session? | ` + "`increase(gobridge_mqtt_session_resume_lost_total[5m]) > 0`" + ` |
| Do two clients fight over an id? | ` + "`increase(gobridge_mqtt_session_takeover_total[5m]) > 0`" + ` |
| How long does a message take? | ` + "`histogram_quantile(0.99, sum by (le, route_id) (rate(gobridge_delivery_e2e_latency_seconds_bucket[5m])))`" + ` |
`

func reference() string {
	var b strings.Builder
	b.WriteString(referenceHead)
	closed := map[string]string{}
	flush := func() {
		for _, d := range metric.Table {
			if text := closed[d.Name]; text != "" {
				b.WriteString("\n" + text)
			}
		}
		clear(closed)
	}
	for _, d := range metric.Table {
		if title := sections[d]; title != "" {
			flush()
			fmt.Fprintf(&b, "\n## %s\n\n| name | Prometheus | kind | labels | meaning |\n|---|---|---|---|---|\n", title)
		}
		labels := strings.Join(d.Labels, ", ")
		fmt.Fprintf(&b, "| %s | `%s` | %s | %s | %s |\n", d.Name, metric.PromName(d), d.Kind, labels, d.Help)
		for _, label := range d.Labels {
			if values := d.Values[label]; values != nil {
				closed[d.Name] = fmt.Sprintf("`%s` of %s: %s.\n", label, d.Name, "`"+strings.Join(values, "`, `")+"`")
			}
		}
	}
	flush()
	bounds := strings.Trim(fmt.Sprint(metric.Buckets), "[]")
	fmt.Fprintf(&b, "\n## Histograms\n\nUpper bounds of the buckets, in seconds: %s.\n", strings.ReplaceAll(bounds, " ", ", "))
	return b.String()
}
