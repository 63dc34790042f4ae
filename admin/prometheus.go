package admin

import (
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/gobridge/gobridge/metric"
)

// metricsHandler renders the series of the bridge, the Go runtime and the
// process. One bad series is logged and left out; the others are still answered.
func metricsHandler(metrics *metric.Registry, logger *slog.Logger) http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(
		collector{metrics},
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return promhttp.HandlerFor(reg, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError,
		ErrorLog:      slog.NewLogLogger(logger.Handler(), slog.LevelWarn),
	})
}

// collector walks a metric.Registry at each scrape.
type collector struct{ metrics *metric.Registry }

var _ prometheus.Collector = collector{}

// Describe sends nothing: which series exist follows from the config and may
// change, so the Prometheus registry checks them when it gathers.
func (c collector) Describe(chan<- *prometheus.Desc) {}

func (c collector) Collect(out chan<- prometheus.Metric) {
	descs := map[*metric.Desc]*prometheus.Desc{}
	c.metrics.Each(func(s *metric.Series) {
		d := descs[s.Desc]
		if d == nil {
			d = prometheus.NewDesc(metric.PromName(s.Desc), metric.PromHelp(s.Desc), s.Desc.Labels, nil)
			descs[s.Desc] = d
		}
		m, err := constMetric(d, s)
		switch {
		case err != nil:
			out <- prometheus.NewInvalidMetric(d, err)
		case m != nil:
			out <- m
		}
	})
}

// constMetric returns the present value of a series, nil for one that was removed.
func constMetric(d *prometheus.Desc, s *metric.Series) (prometheus.Metric, error) {
	if h := s.Histogram(); h != nil {
		cumulative, count, sum := h.Snapshot()
		buckets := make(map[float64]uint64, len(cumulative))
		for i, n := range cumulative {
			buckets[metric.Buckets[i]] = n
		}
		return prometheus.NewConstHistogram(d, count, sum, buckets, s.Values...)
	}
	v, ok := s.Value()
	if !ok {
		return nil, nil
	}
	kind := prometheus.CounterValue
	if s.Desc.Kind == metric.KindGauge {
		kind = prometheus.GaugeValue
	}
	return prometheus.NewConstMetric(d, kind, v, s.Values...)
}
