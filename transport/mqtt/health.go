package mqtt

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/eclipse/paho.golang/autopaho"

	"github.com/gobridge/gobridge"
)

// status is what a session knows of itself, under the session's mutex.
type status struct {
	link    *linkConn // nil: not connected
	linkCtx context.Context
	linkEnd context.CancelCauseFunc
	upAt    time.Time
	present bool
	// connects counts accepted connections.
	connects   int
	granted    gobridge.Seconds // the session expiry of the last CONNACK
	deliberate bool             // the connection is being made anew on purpose
	closing    bool
	ended      bool
	// lastError is the latest fault, until a reconcile converges.
	lastError string
	refused   string // why the broker will not accept the CONNECT
	reload    bool   // the history may have been changed by a person
	discard   bool   // the next CONNECT is a Clean Start, and so on until the history is reset
	cm        *autopaho.ConnectionManager
	// subscribing: a SUBSCRIBE is under way. converged: every wanted filter is
	// granted, on this connection, and nothing is subscribed to besides. unmanaged: the
	// latest fault of the history or of an UNSUBSCRIBE.
	subscribing bool
	converged   bool
	confirming  bool // what was granted on trust is asked for
	unmanaged   string
	filters     []subscription
	// void, with a managed subscription history: the broker lost the session, and the
	// history does not say so yet.
	void bool
}

// Health is part of gobridge.Session.
func (s *session) Health() gobridge.SessionHealth {
	in := s.in.health()
	s.mu.Lock()
	defer s.mu.Unlock()
	h := gobridge.SessionHealth{
		Connected:                s.link != nil,
		SessionPresent:           s.link != nil && s.present,
		SubscriptionsWanted:      len(s.filters),
		UnsettledCount:           in.unsettled,
		OldestUnsettledAge:       in.oldest,
		ReceiveWindowUtilization: float64(in.unsettled) / float64(s.in.window),
		RecoveryRecycleCount:     s.carried.recycleCount(),
		LastError:                cmp.Or(s.lastError, s.carried.cause()),
	}
	for i := range s.filters {
		if s.link != nil && s.filters[i].granted {
			h.SubscriptionsActive++
		}
	}
	if h.LastError == "" {
		h.LastError = s.keyring.complaint()
	}
	if err := s.recovery.failure(); err != nil {
		h.LastError = err.Error()
	}
	h.State, h.ServiceLevel, h.Reasons = s.verdict(in)
	return h
}

// verdict is the state in a word, the service level, and why it is not full.
// Called with mu held.
func (s *session) verdict(in inboundHealth) (state string, level gobridge.ServiceLevel, reasons []string) {
	recovering := s.recovery.phase()
	switch {
	case recovering == recoveryFailed:
		return "failed", gobridge.LevelNone, []string{s.recovery.failure().Error()}
	case s.ended:
		return "closed", gobridge.LevelNone, []string{"session is closed"}
	case s.link == nil && s.carried.wish() == wishEnded:
		return "ended", gobridge.LevelNone, []string{"session was removed from the broker: gobridge sessions retry " + s.id + " connects again"}
	case s.link == nil:
		reason := "not connected to the broker"
		if s.refused != "" {
			reason = "broker refuses the connection: " + s.refused
		} else if cause := s.carried.cause(); cause != "" {
			reason = cause
		} else if s.lastError != "" {
			reason += ": " + s.lastError
		}
		reasons = append(reasons, reason)
		if fault := s.keyring.complaint(); fault != "" {
			reasons = append(reasons, fault)
		}
		return "connecting", gobridge.LevelNone, reasons
	}
	state, level = "ready", gobridge.LevelFull
	if in.paused {
		state, level = "paused", gobridge.LevelSubscribed
		reasons = append(reasons, "reading is paused: the ingress memory budget is spent")
	}
	if recovering != recoveryIdle && recovering != recoveryClosed {
		state, level = "recovering", gobridge.LevelSubscribed
		reasons = append(reasons, "deliveries wait for the broker to send them again: recovery is "+recovering.String())
	}
	if s.converged {
		return state, level, reasons
	}
	state, level = "connected", gobridge.LevelConnected
	if s.carried.wish() == wishDrained {
		return "drained", level, append(reasons, "every subscription was removed from the broker: gobridge sessions retry "+s.id+" subscribes again")
	}
	if cause := s.carried.cause(); cause != "" {
		reasons = append(reasons, cause)
	}
	if s.subscribing {
		state = "subscribing"
	}
	if s.unmanaged != "" {
		reasons = append(reasons, s.unmanaged)
	}
	for i := range s.filters {
		if f := &s.filters[i]; !f.granted {
			why := f.why
			if why == "" {
				why = "not subscribed yet"
			}
			reasons = append(reasons, fmt.Sprintf("subscription %q: %s", f.filter, why))
		}
	}
	if len(reasons) == 0 {
		reasons = append(reasons, "subscriptions are being compared with those that are wanted")
	}
	return state, level, reasons
}
