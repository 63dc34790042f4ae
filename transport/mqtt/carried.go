package mqtt

import (
	"sync"
	"time"

	"github.com/gobridge/gobridge"
)

// carried is what one session instance leaves to the next one (D3): a fresh
// instance must not hammer a broker that the one before had learnt to spare. Safe
// for concurrent use.
type carried struct {
	mu      sync.Mutex
	backoff *backoff
	// Takeovers that the broker reported, and those that are inferred.
	reported, inferred takeoverLog
	// recoveredAt is when the latest recovery ended, well or not: the next one keeps its
	// distance. recycles counts the reconnects that recoveries began.
	recoveredAt time.Time
	recycles    int
	// connected: an instance has had the session, so a connect that does not find it has
	// lost it. void: the session in the broker, if there is one, has none of the
	// subscriptions that the managed history knows of, because the broker lost the one
	// that had them; the loss has been reported.
	connected, void bool
}

func newCarried() any { return new(carried) }

// carriedOf returns what the engine keeps for the session, or a fresh one.
func carriedOf(env gobridge.Env) *carried {
	if c, ok := env.Carried.(*carried); ok {
		return c
	}
	return new(carried)
}

// backoffOf returns the waits between connects of all instances.
func (c *carried) backoffOf(set *SessionSettings) *backoff {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.backoff == nil {
		c.backoff = newBackoff(set.ReconnectDelay, set.ReconnectMaxDelay)
	}
	return c.backoff
}

// recoveryWait returns how long the next recovery has to wait.
func (c *carried) recoveryWait(spacing time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.recoveredAt.IsZero() {
		return 0
	}
	return time.Until(c.recoveredAt.Add(spacing))
}

// recovered takes note of the end of a recovery.
func (c *carried) recovered() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.recoveredAt = time.Now()
}

// recycled counts a reconnect that a recovery begins.
func (c *carried) recycled() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.recycles++
}

func (c *carried) recycleCount() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.recycles
}

// connect takes note of a connection and reports whether there was one before, of any
// instance.
func (c *carried) connect() (before bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, c.connected = c.connected, true
	return before
}

func (c *carried) isVoid() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.void
}

func (c *carried) setVoid(void bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.void = void
}
