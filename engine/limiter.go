package engine

import "time"

// limiter is a token bucket that holds a tenth of a second of its rate, at least
// one token. Not safe for concurrent use.
type limiter struct {
	rate   float64
	burst  float64
	tokens float64
	last   time.Time
}

func newLimiter(rate float64) *limiter {
	burst := max(1, rate/10)
	return &limiter{rate: rate, burst: burst, tokens: burst}
}

// take takes one token, or returns how long to wait for it.
func (l *limiter) take(now time.Time) time.Duration {
	if !l.last.IsZero() {
		l.tokens = min(l.burst, l.tokens+now.Sub(l.last).Seconds()*l.rate)
	}
	l.last = now
	if l.tokens >= 1 {
		l.tokens--
		return 0
	}
	return max(time.Duration((1-l.tokens)/l.rate*float64(time.Second)), time.Microsecond)
}
