package engine

import (
	"context"
	"fmt"
	"strings"

	"github.com/gobridge/gobridge"
)

// Subscriptions tells what the managed subscription history knows of a session. The
// error is gobridge.ErrNotFound for an unknown session, and gobridge.ErrNotSupported
// where the transport keeps no history.
func (e *Engine) Subscriptions(ctx context.Context, sessionID string) (gobridge.SessionSubscriptions, error) {
	all := gobridge.SessionSubscriptions{SessionID: sessionID, Filters: []gobridge.SubscriptionState{}}
	s, err := e.slot(sessionID)
	if err != nil {
		return all, err
	}
	if s.kind.ClientID != nil {
		all.ClientID = s.kind.ClientID(s.use.Session)
	}
	if s.kind.Subscriptions == nil || e.history == nil {
		return all, s.unable("keeps no history of subscriptions")
	}
	filters, known, err := s.kind.Subscriptions(ctx, e.history, s.use)
	if err != nil {
		return all, fmt.Errorf("subscriptions of session %s: %w", sessionID, err)
	}
	all.Known = known
	all.Filters = append(all.Filters, filters...)
	return all, nil
}

// SeedSubscriptions gives a session the baseline that it waits for (D4) and lets it
// try again: the broker holds the filters of the config and the further ones; with
// discard the session in the broker is thrown away instead. Errors are those of
// [Engine.Subscriptions], and gobridge.ErrLeaseLost where another instance owns the
// session.
func (e *Engine) SeedSubscriptions(ctx context.Context, sessionID string, discard bool, further ...string) error {
	s, err := e.slot(sessionID)
	if err != nil {
		return err
	}
	if err := s.mustOwn(); err != nil { // instances share the history: it is the owner's
		return err
	}
	if s.kind.Seed == nil || e.history == nil {
		return s.unable("keeps no history of subscriptions")
	}
	if err := s.kind.Seed(ctx, e.history, s.use, discard, further...); err != nil {
		return fmt.Errorf("seed the subscriptions of session %s: %w", sessionID, err)
	}
	return s.retry()
}

// RetrySession ends whatever a session waits for: its own wait after a permanent
// cause, or the engine's before a dead instance is replaced. The error is
// gobridge.ErrNotFound for an unknown session, and gobridge.ErrNotSupported for one
// that never waits.
func (e *Engine) RetrySession(sessionID string) error {
	s, err := e.slot(sessionID)
	if err != nil {
		return err
	}
	return s.retry()
}

// DrainSession removes the session's subscriptions from its broker and returns when
// what was queued there has been settled, see [gobridge.SessionControl]. Errors are
// those of [Engine.RetrySession], and what the broker answers.
func (e *Engine) DrainSession(ctx context.Context, sessionID string) error {
	s, err := e.slot(sessionID)
	if err != nil {
		return err
	}
	control, err := s.control()
	if err != nil {
		return err
	}
	return control.Drain(ctx)
}

// EndSession removes the session from its broker, with whatever is queued there.
// Errors are those of [Engine.DrainSession].
func (e *Engine) EndSession(ctx context.Context, sessionID string) error {
	s, err := e.slot(sessionID)
	if err != nil {
		return err
	}
	control, err := s.control()
	if err != nil {
		return err
	}
	return control.End(ctx)
}

// slot returns the place of a session.
func (e *Engine) slot(sessionID string) (*slot, error) {
	ids := make([]string, len(e.slots))
	for i, s := range e.slots {
		if s.use.Session.ID == sessionID {
			return s, nil
		}
		ids[i] = s.use.Session.ID
	}
	return nil, &gobridge.Error{
		Code: gobridge.CodeNotFound, Class: gobridge.ClassPermanent,
		Op: fmt.Sprintf("there is no session %q", sessionID), Hint: "sessions: " + strings.Join(ids, ", "),
	}
}

// mustOwn is the error of a session that another instance owns, or may own.
func (s *slot) mustOwn() error {
	if !s.standsBy() {
		return nil
	}
	return &gobridge.Error{
		Code: gobridge.CodeLeaseLost, Class: gobridge.ClassPermanent,
		Op: "session " + s.use.Session.ID + " is not owned by this instance", Hint: "ask the instance whose role is active",
	}
}

// control returns the live instance's handle for operators.
func (s *slot) control() (gobridge.SessionControl, error) {
	if err := s.mustOwn(); err != nil {
		return nil, err
	}
	control, ok := s.current().(gobridge.SessionControl)
	if !ok {
		return nil, s.unable("keeps nothing in its broker that could be drained, ended or tried again")
	}
	return control, nil
}

// unable is the answer for what a session's transport cannot do.
func (s *slot) unable(what string) error {
	return &gobridge.Error{
		Code: gobridge.CodeNotSupported, Class: gobridge.ClassPermanent,
		Op: fmt.Sprintf("session %s (%s) %s", s.use.Session.ID, s.use.Session.Transport, what),
	}
}
