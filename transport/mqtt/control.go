package mqtt

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/transport/mqtt/wire"
)

// wish is what a person asked of a session. It outlives the instance.
type wish uint8

const (
	wishRun     wish = iota
	wishDrained      // connected, without subscriptions
	wishEnded        // not connected
)

const (
	// drainQuiet is how long nothing must have come for a queue to count as empty: a
	// broker does not say that it is.
	drainQuiet = time.Second
	drainPoll  = 50 * time.Millisecond
)

var _ gobridge.SessionControl = (*session)(nil)

// Retry is part of gobridge.SessionControl. A connected session is made anew with
// what the broker keeps of it: the CONNACK tells the broker's limits.
func (s *session) Retry() {
	s.carried.setWish(wishRun)
	s.mu.Lock()
	s.reload = true
	s.mu.Unlock()
	s.recycle("a retry was asked for")
	s.backoff.wake()
}

// Drain is part of gobridge.SessionControl.
func (s *session) Drain(ctx context.Context) error {
	if err := s.gate.acquire(ctx); err != nil {
		return fmt.Errorf("drain session %s: %w", s.id, err)
	}
	err := s.unsubscribeAll(ctx)
	s.gate.release()
	if err != nil {
		return fmt.Errorf("drain session %s: %w", s.id, err)
	}
	if err := s.awaitQuiet(ctx); errors.Is(err, errOvertaken) {
		return fmt.Errorf("drain session %s: %w", s.id, err)
	} else if err != nil {
		return fmt.Errorf("drain session %s: subscriptions are removed, messages are still open: %w", s.id, err)
	}
	s.log.Info("session is drained")
	return nil
}

// unsubscribeAll removes every subscription. After an error the session goes back to
// those that are wanted.
func (s *session) unsubscribeAll(ctx context.Context) (err error) {
	s.mu.Lock()
	link, cm, err := s.linkCtx, s.cm, s.reachable()
	s.mu.Unlock()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.set.ReconcileTimeout)
	defer cancel()
	defer context.AfterFunc(link, cancel)()
	var all []string
	for i := range s.filters {
		all = append(all, s.filters[i].filter)
	}
	if m := s.managed; m != nil {
		if err := m.load(ctx); err != nil {
			return err
		}
		all = append(all, m.stale(s.filters)...)
	}
	if err := s.unsubscribe(ctx, cm, all); err != nil {
		s.Retry()
		return err
	}
	s.carried.setWish(wishDrained)
	s.mu.Lock()
	s.converged = false
	s.mu.Unlock()
	return nil
}

// errOvertaken ends a drain whose session is to do something else by now.
var errOvertaken = errors.New("a retry or an end of the session came in between: it is not drained")

// awaitQuiet waits until everything that came is settled and nothing has come for a
// while on one connection.
func (s *session) awaitQuiet(ctx context.Context) error {
	tick := time.NewTicker(drainPoll)
	defer tick.Stop()
	var since time.Time
	var last activity
	for {
		if s.carried.wish() != wishDrained {
			return errOvertaken
		}
		a := s.activity()
		if now := time.Now(); !a.quiet || a != last {
			last, since = a, now
		} else if now.Sub(since) >= drainQuiet {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.stopping:
			return gobridge.ErrClosed
		case <-tick.C:
		}
	}
}

// activity tells what has come so far. Quiet: the session is connected and holds
// nothing that its broker waits for.
type activity struct {
	quiet    bool
	connects int
	arrivals uint64
}

func (s *session) activity() activity {
	s.mu.Lock()
	a := activity{quiet: s.link != nil, connects: s.connects}
	s.mu.Unlock()
	s.in.mu.Lock()
	defer s.in.mu.Unlock()
	a.arrivals = s.in.arrivals
	a.quiet = a.quiet && !s.in.withheld && !s.in.draining && s.in.unsettled() == 0 && s.in.waiting() == 0
	return a
}

// End is part of gobridge.SessionControl. A session that cannot be reached cannot be
// removed.
func (s *session) End(ctx context.Context) error {
	if err := s.gate.acquire(ctx); err != nil {
		return fmt.Errorf("end session %s: %w", s.id, err)
	}
	defer s.gate.release()
	if err := s.endInBroker(ctx); err != nil {
		return fmt.Errorf("end session %s: %w", s.id, err)
	}
	s.mu.Lock()
	s.forgetGrants()
	s.void = true
	s.carried.holds(holdingNothing)
	s.mu.Unlock()
	s.log.Info("session was removed from the broker")
	if s.managed == nil {
		return nil
	}
	if err := s.managed.reset(ctx); err != nil {
		return fmt.Errorf("end session %s: it is removed from the broker: %w", s.id, err)
	}
	return nil
}

// endInBroker closes the connection with a Session Expiry Interval of 0, with which
// the broker removes the session (MQTT v5, 3.14.2.2.2). The broker's close is its
// answer.
func (s *session) endInBroker(ctx context.Context) error {
	s.mu.Lock()
	c, link := s.link, s.linkCtx
	if err := s.reachable(); err != nil {
		s.mu.Unlock()
		return err
	}
	s.carried.setWish(wishEnded)
	s.deliberate = true
	s.in.lost(c.guardConn)
	s.forgo()
	s.mu.Unlock()
	c.fail(errors.New("the session was ended"))
	s.out.lost(c.guardConn)
	c.disconnect(wire.AppendDisconnectEnding)
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(ctx, closeWait)
	defer cancel()
	select {
	case <-link.Done():
		return nil
	case <-ctx.Done():
		return errors.New("the broker did not close the connection: whether it has removed the session is not known; retry the session, then end it again")
	}
}

// reachable says why there is no connection to make requests on. Called with mu held.
func (s *session) reachable() error {
	if err := s.recovery.failure(); err != nil {
		return err
	}
	switch {
	case s.closing:
		return gobridge.ErrClosed
	case s.link != nil && s.cm != nil && !s.deliberate:
		return nil
	}
	why := "a connection is being made"
	if s.link == nil {
		_, _, reasons := s.verdict(inboundHealth{})
		why = reasons[0]
	}
	return fmt.Errorf("%w, and only its broker can do this: %s", gobridge.ErrNotConnected, why)
}
