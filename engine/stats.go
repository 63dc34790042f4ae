package engine

import (
	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/metric"
)

// routeMetrics are the handles of one route.
type routeMetrics struct {
	received    *metric.Counter
	latency     *metric.Histogram
	dlqFailures *metric.Counter
	dlqRepeats  *metric.Counter
}

func newRouteMetrics(reg *metric.Registry, route string) *routeMetrics {
	return &routeMetrics{
		received:    reg.Counter(metric.MessagesReceived, route),
		latency:     reg.Histogram(metric.DeliveryE2ELatency, route),
		dlqFailures: reg.Counter(metric.DLQWriteFailures, route),
		dlqRepeats:  reg.Counter(metric.DLQDuplicateSuppressed, route),
	}
}

// bindingMetrics are the handles of one binding. Every admitted message ends in
// exactly one of sent, dropped, expired, buried and returned for each binding.
type bindingMetrics struct {
	sent, expired, expiredInOutbox, replays, retries, exhausted, reordered *metric.Counter

	drops, returned metric.CounterSet // by reason

	graves metric.CounterSet // by category
}

func newBindingMetrics(reg *metric.Registry, route, binding string) *bindingMetrics {
	return &bindingMetrics{
		sent:    reg.Counter(metric.MessagesSent, route, binding),
		expired: reg.Counter(metric.MessagesExpired, route, binding),

		replays:         reg.Counter(metric.OutboxReplays, route, binding),
		expiredInOutbox: reg.Counter(metric.OutboxExpiredBeforeSend, route, binding),

		retries:   reg.Counter(metric.SendRetries, route, binding),
		exhausted: reg.Counter(metric.SendRetryBudgetExhausted, route, binding),
		reordered: reg.Counter(metric.MessagesReordered, route, binding),
		drops:     reg.CounterSet(metric.MessagesDropped, route, binding),
		returned:  reg.CounterSet(metric.MessagesReturned, route, binding),
		graves:    reg.CounterSet(metric.DLQEntries, route, binding),
	}
}

func (m *bindingMetrics) dropped(reason string) { m.drops.Get(reason).Inc() }

func (m *bindingMetrics) buried(c gobridge.Category) { m.graves.Get(string(c)).Inc() }
