package admin

import (
	"flag"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/gobridge/gobridge/metric"
)

var update = flag.Bool("update", false, "write the golden file")

func scrape(t *testing.T, r *metric.Registry) string {
	t.Helper()
	w := httptest.NewRecorder()
	NewHandler(&fakeBridge{}, NewAPI(&fakeOperator{}, nil, testLogger(t)), r, testLogger(t)).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if got := w.Header().Get("Content-Type"); w.Code != 200 || !strings.HasPrefix(got, "text/plain; version=0.0.4") {
		t.Fatalf("status %d, content type %q", w.Code, got)
	}
	return w.Body.String()
}

// labelValue is a value of the label that a config or a closed set could give.
func labelValue(d *metric.Desc, label string) string {
	if set := d.Values[label]; set != nil {
		return set[0]
	}
	return "my-" + strings.TrimSuffix(label, "_id")
}

// everySeries has one series of each metric of the table.
func everySeries() *metric.Registry {
	r := metric.NewRegistry()
	for i, d := range metric.Table {
		var values []string
		for _, label := range d.Labels {
			values = append(values, labelValue(d, label))
		}
		switch d.Kind {
		case metric.KindCounter:
			r.Counter(d, values...).Add(uint64(i))
		case metric.KindGauge:
			r.GaugeFunc(d, func() float64 { return float64(i) / 2 }, values...)
		case metric.KindHistogram:
			r.Histogram(d, values...).Observe(int64(3 * time.Millisecond))
			r.Histogram(d, values...).Observe(int64(2 * time.Minute))
		}
	}
	return r
}

func TestPrometheusTextHoldsTheWholeTable(t *testing.T) {
	text := scrape(t, everySeries())
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	for i, d := range metric.Table {
		f := families[metric.PromName(d)]
		if f == nil {
			t.Errorf("%s: no %s", d.Name, metric.PromName(d))
			continue
		}
		if want := d.Name + ": " + d.Help; f.GetHelp() != want {
			t.Errorf("%s: help %q, want %q", d.Name, f.GetHelp(), want)
		}
		if got := strings.ToLower(f.GetType().String()); got != d.Kind.String() {
			t.Errorf("%s: type %s, want %s", d.Name, got, d.Kind)
		}
		if len(f.GetMetric()) != 1 {
			t.Errorf("%s: %d series, want 1", d.Name, len(f.GetMetric()))
			continue
		}
		m := f.GetMetric()[0]
		want, got := map[string]string{}, map[string]string{}
		for _, label := range d.Labels {
			want[label] = labelValue(d, label)
		}
		for _, pair := range m.GetLabel() {
			got[pair.GetName()] = pair.GetValue()
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: labels (-want +got):\n%s", d.Name, diff)
		}
		switch d.Kind {
		case metric.KindCounter:
			if got := m.GetCounter().GetValue(); got != float64(i) {
				t.Errorf("%s = %v, want %d", d.Name, got, i)
			}
		case metric.KindGauge:
			if got := m.GetGauge().GetValue(); got != float64(i)/2 {
				t.Errorf("%s = %v, want %v", d.Name, got, float64(i)/2)
			}
		case metric.KindHistogram:
			if h := m.GetHistogram(); h.GetSampleCount() != 2 || h.GetSampleSum() != 120.003 {
				t.Errorf("%s: count %d, sum %v; want 2 and 120.003", d.Name, h.GetSampleCount(), h.GetSampleSum())
			}
		}
	}
	for _, name := range []string{"go_goroutines", "process_start_time_seconds"} {
		if families[name] == nil {
			t.Errorf("no %s", name)
		}
	}
}

// The golden file spells every name out, so that a change of one is seen.
func TestPrometheusNamesAreStable(t *testing.T) {
	own := regexp.MustCompile(`(?m)^(# (HELP|TYPE) )?gobridge_.*\n`)
	got := strings.Join(own.FindAllString(scrape(t, everySeries()), -1), "")
	const golden = "testdata/metrics.golden"
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("metrics (-golden +got), go test ./admin -update accepts the change:\n%s", diff)
	}
	problems, err := promlint.New(strings.NewReader(got)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// What a message or a peer says cannot become a label: ids are looked up when the
// config is loaded, every other label is closed.
func TestDistinctTopicsAddNoSeries(t *testing.T) {
	r := metric.NewRegistry()
	failures := r.CounterSet(metric.MQTTPublishFailures, "edge")
	before := strings.Count(scrape(t, r), "\ngobridge_")
	for i := range 100_000 {
		topic := "sensors/" + strconv.Itoa(i)
		failures.Get(topic).Inc()
		r.Counter(metric.MQTTPublishFailures, "edge", topic).Inc()
	}
	text := scrape(t, r)
	if after := strings.Count(text, "\ngobridge_"); after != before {
		t.Errorf("%d series, want the %d from before", after, before)
	}
	if want := `gobridge_mqtt_publish_failures_total{code="other",session_id="edge"} 200000`; !strings.Contains(text, want) {
		t.Errorf("no line %s", want)
	}
}

func TestRemovedGaugeDisappears(t *testing.T) {
	r := metric.NewRegistry()
	r.GaugeFunc(metric.MQTTUnsettled, func() float64 { return 1 }, "edge")
	if !strings.Contains(scrape(t, r), `gobridge_mqtt_unsettled{session_id="edge"} 1`) {
		t.Error("the gauge is missing")
	}
	r.GaugeFunc(metric.MQTTUnsettled, nil, "edge")
	if strings.Contains(scrape(t, r), "gobridge_mqtt_unsettled") {
		t.Error("the removed gauge is still there")
	}
}

// A label value that cannot be written must not take the other metrics with it.
func TestOneBadSeriesLeavesTheOthers(t *testing.T) {
	r := metric.NewRegistry()
	r.Counter(metric.MessagesReceived, "\xff").Inc()
	r.Counter(metric.MessagesSent, "up", "cloud").Inc()
	text := scrape(t, r)
	if !strings.Contains(text, `gobridge_messages_sent_total{binding_id="cloud",route_id="up"} 1`) {
		t.Errorf("the good series is missing:\n%s", text)
	}
	if strings.Contains(text, "gobridge_messages_received_total{") {
		t.Error("the bad series is there")
	}
}
