package engine

import (
	"fmt"
	"time"

	"github.com/gobridge/gobridge"
)

// liveTimeout is how long a route may be busy with one step before it counts as
// wedged. A step takes microseconds.
const liveTimeout = 2 * time.Second

// Live returns nil unless the process can no longer do its job without a
// restart: a route whose state stays locked. No failure of a session, a store or a
// destination is one.
func (e *Engine) Live() error {
	for _, p := range e.pipelines {
		for _, r := range p.all() {
			for give := time.Now().Add(liveTimeout); !r.mu.TryLock(); time.Sleep(time.Millisecond) {
				if time.Now().After(give) {
					return fmt.Errorf("route %s is wedged: it has been busy with one step for %s", r.id, liveTimeout)
				}
			}
			r.mu.Unlock()
		}
	}
	return nil
}

// Ready returns the reasons why the bridge is below a service level; none means
// that it has reached it.
//
// LevelConnected: every session is connected. LevelSubscribed: every wanted
// filter is granted too. LevelFull: every route can accept and forward as well,
// and none is stalled (G1).
func (e *Engine) Ready(level gobridge.ServiceLevel) []gobridge.Reason {
	var reasons []gobridge.Reason
	e.mu.Lock()
	running, stopping := e.running, e.stopping
	e.mu.Unlock()
	switch {
	case !running:
		reasons = append(reasons, gobridge.Reason{Reason: "the bridge has not started"})
	case stopping:
		reasons = append(reasons, gobridge.Reason{Reason: "the bridge is stopping"})
	}
	for _, s := range e.slots {
		h := s.health()
		if level != gobridge.LevelFull && s.mayBeAway() {
			continue
		}
		for _, why := range below(&h, level) {
			reasons = append(reasons, gobridge.Reason{SessionID: s.use.Session.ID, Reason: why})
		}
	}
	if level == gobridge.LevelFull {
		for _, f := range e.Stores() {
			if s := f.Salvaged(); s != nil {
				reasons = append(reasons, gobridge.Reason{Reason: fmt.Sprintf(
					"store %s was damaged: %s (gobridge store acknowledge ends this report)", f.Path(), s)})
			}
		}
		for _, p := range e.pipelines {
			for _, why := range p.health(time.Now()).Reasons {
				reasons = append(reasons, gobridge.Reason{RouteID: p.spec.ID, Reason: why})
			}
		}
	}
	return reasons
}

// mayBeAway reports whether a bridge without this session still takes in
// everything it should: it only sends, and what it sends waits in the outbox.
func (s *slot) mayBeAway() bool {
	if s.source != nil || len(s.users) == 0 {
		return false
	}
	for _, u := range s.users {
		if u.route.outbox == nil {
			return false
		}
	}
	return true
}

// below says why a session is below a level.
func below(h *gobridge.SessionHealth, level gobridge.ServiceLevel) []string {
	if rank(h.ServiceLevel) >= rank(level) {
		return nil
	}
	if len(h.Reasons) > 0 {
		return h.Reasons
	}
	return []string{"session is " + h.State}
}

func rank(l gobridge.ServiceLevel) int {
	switch l {
	case gobridge.LevelFull:
		return 3
	case gobridge.LevelSubscribed:
		return 2
	case gobridge.LevelConnected:
		return 1
	}
	return 0
}

// Health is a snapshot of the whole bridge.
func (e *Engine) Health() gobridge.BridgeHealth {
	now := time.Now()
	h := gobridge.BridgeHealth{
		BridgeID: e.spec.Bridge.ID, InstanceID: e.spec.Bridge.InstanceID,
		Ready:    len(e.Ready(gobridge.LevelFull)) == 0,
		Role:     e.role(),
		Sessions: []gobridge.SessionStatus{}, Routes: []gobridge.RouteHealth{},
	}
	working := false
	for _, s := range e.slots {
		sh := s.health()
		working = working || sh.Connected || sh.State == stateStandby
		h.Sessions = append(h.Sessions, sh.Status(s.use.Session.ID))
	}
	for _, p := range e.pipelines {
		h.Routes = append(h.Routes, p.health(now))
	}
	switch {
	case h.Ready:
		h.ServiceLevel = gobridge.BridgeFull
	case working:
		h.ServiceLevel = gobridge.BridgeDegraded
	default:
		h.ServiceLevel = gobridge.BridgeNone
	}
	return h
}

// Topology is the graph of the bridge.
func (e *Engine) Topology() gobridge.Topology { return e.spec.Topology(e.kinds) }

// health says how the route is doing: how many deliveries it works on, the age of
// the oldest, its latest error and why it is not ready.
func (r *route) health(now time.Time) (inFlight int, oldest time.Duration, lastErr string, reasons []string) {
	var stuck time.Duration // since admission: a wait for the rate limit is no stall
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.works {
		if w := &r.works[i]; w.open > 0 {
			oldest = max(oldest, now.Sub(w.d.ReceivedAt))
			stuck = max(stuck, now.Sub(w.at))
		}
	}
	reasons = r.emptying.reasons()
	for _, b := range r.bindings {
		if b.lastErr != "" {
			lastErr = b.lastErr
		}
		if b.sender == nil {
			continue
		}
		if err := b.sender.Available(); err != nil {
			reasons = append(reasons, fmt.Sprintf("binding %s: %v", b.id, err))
		} else if len(b.held) > 0 {
			reasons = append(reasons, fmt.Sprintf("binding %s: %d messages held: %s", b.id, len(b.held), b.lastErr))
		}
	}
	if why := r.storeReason(); why != "" {
		lastErr = why
		reasons = append(reasons, why)
	}
	if stuck > 2*r.spec.Policy.SendTimeout {
		reasons = append(reasons, fmt.Sprintf("stalled: the oldest delivery has been worked on for %s", stuck.Round(time.Second)))
	}
	return r.inFlight(), oldest, lastErr, reasons
}
