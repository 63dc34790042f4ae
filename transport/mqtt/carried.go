package mqtt

import (
	"sync"

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
