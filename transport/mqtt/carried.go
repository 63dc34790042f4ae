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
	holding     holding
	// void: the managed history knows of subscriptions that the broker has lost.
	void      bool
	wished    wish
	permanent string   // the cause for which the session itself closed its connection
	halts     repeated // log lines of that
	// downgrades are the filters that were granted at less, each the last time that it
	// was asked for.
	downgrades map[string]downgrade
}

// holding is what a broker has of a session, as far as the process knows: it can only
// lose what it has.
type holding uint8

const (
	// holdingUnknown: no instance has connected.
	holdingUnknown holding = iota
	// holdingAsk: the first connect found nothing. Whether there should have been
	// something is the managed history's to say.
	holdingAsk
	// holdingNothing: a session without subscriptions at most. What there was is lost,
	// and that was reported; or it was thrown away on purpose.
	holdingNothing
	// holdingSession: a session with the subscriptions that it should have, or some.
	holdingSession
)

// downgrade is one answer of a broker, and how often it was given in a row.
type downgrade struct {
	wanted, granted byte
	times           int
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

// connack takes note of a connection and reports whether the broker has lost the
// session. A loss is reported once, whichever instance finds it.
func (c *carried) connack(present bool) (lost bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.holding == holdingSession && !present:
		c.holding = holdingNothing
		return true
	case c.holding == holdingUnknown && present:
		c.holding = holdingSession
	case c.holding == holdingUnknown:
		c.holding = holdingAsk
	}
	return false
}

// lossInHistory is connack for a session that may have been lost before the process
// began: there was one if the history has filters of it.
func (c *carried) lossInHistory(had bool) (lost bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holding != holdingAsk {
		return false
	}
	c.holding = holdingNothing
	return had
}

// holds takes note of what the broker has.
func (c *carried) holds(h holding) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.holding = h
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

// downgraded takes note that a filter was granted at less, and returns how often in a
// row it was that.
func (c *carried) downgraded(f *subscription, granted byte) (times int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.downgrades[f.filter]
	if d.wanted != f.qos || d.granted != granted {
		d = downgrade{wanted: f.qos, granted: granted}
	}
	d.times++
	if c.downgrades == nil {
		c.downgrades = map[string]downgrade{}
	}
	c.downgrades[f.filter] = d
	return d.times
}

// grantedInFull forgets what was granted at less before.
func (c *carried) grantedInFull(f *subscription) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.downgrades, f.filter)
}

func (c *carried) wish() wish {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wished
}

func (c *carried) setWish(w wish) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wished = w
}

// cause is the permanent cause for which the session keeps away, empty for none.
func (c *carried) cause() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.permanent
}

func (c *carried) setCause(cause string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.permanent = cause
}
