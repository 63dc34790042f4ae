package mqtt

import (
	"sync"
	"time"

	"github.com/gobridge/gobridge/metric"
)

// counters are the metrics of one session.
type counters struct {
	windowExceeded          *metric.Counter
	ackAfterReconnect       *metric.Counter
	recoveryRecycle         *metric.Counter
	emitRejected            metric.CounterSet
	routerDropped           *metric.Counter
	buffered                *metric.Counter
	overflowDropped         *metric.Counter
	stalePurged             *metric.Counter
	unmatchedDropped        *metric.Counter
	poisonDropped           *metric.Counter
	userPropertiesTruncated *metric.Counter
	headerDropped           *metric.Counter
	qosDowngraded           *metric.Counter
	resumeLost              *metric.Counter
	takeover                metric.CounterSet
	reconnects              *metric.Counter
	rotations               *metric.Counter
	connectFailures         metric.CounterBy
	publishFailures         metric.CounterBy
	publishLatency          *metric.Histogram
}

func newCounters(r *metric.Registry, session string) *counters {
	return &counters{
		windowExceeded:          r.Counter(metric.MQTTReceiveWindowExceeded, session),
		ackAfterReconnect:       r.Counter(metric.MQTTAckAfterReconnect, session),
		recoveryRecycle:         r.Counter(metric.MQTTSessionRecoveryRecycle, session),
		emitRejected:            r.CounterSet(metric.MQTTReceiverEmitRejected, session),
		routerDropped:           r.Counter(metric.MQTTRouterDropped, session),
		buffered:                r.Counter(metric.MQTTRouterBuffered, session),
		overflowDropped:         r.Counter(metric.MQTTRouterOverflowDropped, session),
		stalePurged:             r.Counter(metric.MQTTRouterStalePurged, session),
		unmatchedDropped:        r.Counter(metric.MQTTRouterUnmatchedDropped, session),
		poisonDropped:           r.Counter(metric.MQTTIngressPoisonDropped, session),
		userPropertiesTruncated: r.Counter(metric.MQTTIngressUserPropertiesTruncated, session),
		headerDropped:           r.Counter(metric.MQTTIngressHeaderDropped, session),
		qosDowngraded:           r.Counter(metric.MQTTQoSDowngraded, session),
		resumeLost:              r.Counter(metric.MQTTSessionResumeLost, session),
		takeover:                r.CounterSet(metric.MQTTSessionTakeover, session),
		reconnects:              r.Counter(metric.MQTTReconnects, session),
		rotations:               r.Counter(metric.CredentialRotations, session),
		connectFailures:         r.CounterBy(metric.MQTTConnectFailures, session),
		publishFailures:         r.CounterBy(metric.MQTTPublishFailures, session),
		publishLatency:          r.Histogram(metric.MQTTPublishLatency, session),
	}
}

// repeatEvery is how often an error that keeps coming back is logged.
const repeatEvery = time.Minute

// repeated thins out the log lines of an error that keeps coming back. Safe for
// concurrent use.
type repeated struct {
	mu    sync.Mutex
	text  string
	last  time.Time
	count int
}

// allow reports whether to log now, and how often it happened since the last
// line, this time included.
func (r *repeated) allow(now time.Time) (times int, ok bool) { return r.allowText("", now) }

// allowText is allow for an error with a text: a new text is always logged.
func (r *repeated) allowText(text string, now time.Time) (times int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count++
	if !r.last.IsZero() && text == r.text && now.Sub(r.last) < repeatEvery {
		return 0, false
	}
	times = r.count
	r.text, r.last, r.count = text, now, 0
	return times, true
}

// forget makes the next occurrence be logged.
func (r *repeated) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last, r.count = time.Time{}, 0
}
