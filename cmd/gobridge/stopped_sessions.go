package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/gobridge/gobridge"
)

// Topology implements admin.Operator.
func (s *stoppedBridge) Topology() gobridge.Topology { return s.spec.Topology(s.kinds) }

// Subscriptions implements admin.Operator from the store of the history alone.
func (s *stoppedBridge) Subscriptions(ctx context.Context, id string) (gobridge.SessionSubscriptions, error) {
	known := gobridge.SessionSubscriptions{SessionID: id, Filters: []gobridge.SubscriptionState{}}
	use, transport, err := s.session(id)
	if err != nil {
		return known, err
	}
	if transport.ClientID != nil {
		known.ClientID = transport.ClientID(use.Session)
	}
	if transport.Subscriptions == nil || s.history == nil {
		return known, noHistory(id)
	}
	filters, ok, err := transport.Subscriptions(ctx, s.history, use)
	if err != nil {
		return known, fmt.Errorf("subscriptions of session %s: %w", id, err)
	}
	known.Known, known.Filters = ok, append(known.Filters, filters...)
	return known, nil
}

// SeedSubscriptions implements admin.Operator: the bridge reads it when it starts.
func (s *stoppedBridge) SeedSubscriptions(ctx context.Context, id string, discard bool, further ...string) error {
	use, transport, err := s.session(id)
	if err != nil {
		return err
	}
	if transport.Seed == nil || s.history == nil {
		return noHistory(id)
	}
	if err := transport.Seed(ctx, s.history, use, discard, further...); err != nil {
		return fmt.Errorf("seed the subscriptions of session %s: %w", id, err)
	}
	return nil
}

func (s *stoppedBridge) session(id string) (*gobridge.SessionUse, *gobridge.Transport, error) {
	use := s.spec.Use(id)
	if use == nil {
		var ids []string
		for i := range s.spec.Sessions {
			ids = append(ids, s.spec.Sessions[i].ID)
		}
		return nil, nil, &gobridge.Error{
			Code: gobridge.CodeNotFound, Class: gobridge.ClassPermanent,
			Op: fmt.Sprintf("there is no session %q", id), Hint: "sessions: " + strings.Join(ids, ", "),
		}
	}
	return use, s.kinds.Transport(use.Session.Transport), nil
}

func noHistory(id string) error {
	return &gobridge.Error{
		Code: gobridge.CodeNotSupported, Class: gobridge.ClassPermanent,
		Op: fmt.Sprintf("session %s keeps no history of subscriptions", id),
	}
}

// DrainSession, EndSession and RetrySession implement admin.Operator: nothing is
// connected.
func (s *stoppedBridge) DrainSession(context.Context, string) error { return errSessionNeedsBridge }

// EndSession implements admin.Operator.
func (s *stoppedBridge) EndSession(context.Context, string) error { return errSessionNeedsBridge }

// RetrySession implements admin.Operator.
func (s *stoppedBridge) RetrySession(string) error { return errSessionNeedsBridge }
