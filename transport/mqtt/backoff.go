package mqtt

import (
	"math/rand/v2"
	"sync"
	"time"
)

const (
	// stableAfter is how long a connection must have been up before its loss starts
	// the backoff anew. A connection that ends earlier counts as a flap (D7).
	stableAfter = 5 * time.Second
	// flapsForTakeover is the number of flaps in a row, without a reason from the
	// broker, from which another client with the same client id is inferred.
	flapsForTakeover = 3
	// takeoverWait and permanentWait are the waits after a takeover (D7) and after an
	// answer that will not change by itself, such as refused credentials; both end
	// earlier where reconnect_max_delay is shorter.
	takeoverWait  = 30 * time.Second
	permanentWait = 5 * time.Minute
)

// backoff decides how long to wait before each attempt to connect: full jitter
// under an exponentially growing bound. It remembers across connections, because
// a broker that accepts and closes at once must not be hammered: the library's
// own counter starts anew with each CONNACK.
//
// Safe for concurrent use.
type backoff struct {
	base, max time.Duration

	mu       sync.Mutex
	failures int           // attempts since the last stable connection
	flaps    int           // connections in a row that did not become stable
	floor    time.Duration // the next wait is at least this
	atOnce   bool          // the next wait is zero: something changed
	skipped  bool          // the next wait is zero: the session wants to connect anew
	woken    chan struct{} // ends the wait under way; capacity 1
}

func newBackoff(base, longest time.Duration) *backoff {
	return &backoff{base: base, max: max(base, longest), atOnce: true, woken: make(chan struct{}, 1)}
}

// wait blocks until the next attempt is due, wake ends the wait, or stop is closed,
// which it reports. What is left of the wait is then that of the next instance.
func (b *backoff) wait(stop <-chan struct{}) (stopped bool) {
	due := time.Now().Add(b.next())
	timer := time.NewTimer(time.Until(due))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-b.woken:
		b.mu.Lock()
		b.atOnce, b.skipped, b.floor = false, false, 0
		b.mu.Unlock()
	case <-stop:
		b.mu.Lock()
		defer b.mu.Unlock()
		b.floor = max(b.floor, time.Until(due))
		return true
	}
	return false
}

// next returns the wait before the next attempt.
func (b *backoff) next() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-b.woken: // before this wait began: atOnce says the same
	default:
	}
	if b.atOnce || b.skipped {
		b.atOnce, b.skipped, b.floor = false, false, 0
		return 0
	}
	bound := exponential(b.base, b.max, b.failures)
	b.failures++
	wait := max(rand.N(bound)+1, b.floor)
	b.floor = 0
	return wait
}

// exponential returns base doubled n times, at most longest.
func exponential(base, longest time.Duration, n int) time.Duration {
	for range n {
		if base >= longest/2 {
			return longest
		}
		base *= 2
	}
	return min(base, longest)
}

// lost takes note of a lost connection that had been up for the given time.
// It reports whether the losses look like a takeover: the broker closed, in good
// order (closed), one connection after the other right after it had accepted it.
func (b *backoff) lost(up time.Duration, closed bool) (takeover bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if up >= stableAfter {
		b.failures, b.flaps = 0, 0
		return false
	}
	if closed {
		b.flaps++
	}
	if !closed || b.flaps < flapsForTakeover {
		return false
	}
	b.floor = max(b.floor, min(takeoverWait, b.max))
	return true
}

// takenOver takes note of a takeover that the broker reported.
func (b *backoff) takenOver() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.floor = max(b.floor, min(takeoverWait, b.max))
}

// failed takes note of an attempt that did not end in a connection: what was to be
// done at once has been done.
func (b *backoff) failed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.skipped = false
}

// refused takes note of an answer that only a person can change: the wait is the
// longest one at once.
func (b *backoff) refused() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.skipped = false
	b.floor = min(permanentWait, b.max)
}

// wake ends the wait under way: what the waiting was for may have changed. Without
// one the next attempt is immediate.
func (b *backoff) wake() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.atOnce = true
	select {
	case b.woken <- struct{}{}:
	default: // it is awake
	}
}

// skip makes the next attempt immediate: the reconnect is the session's own
// wish.
func (b *backoff) skip() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.skipped = true
}
