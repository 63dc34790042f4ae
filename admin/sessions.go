package admin

import (
	"context"
	"errors"
	"net/http"
	"slices"

	"github.com/gobridge/gobridge"
)

// SubscriptionList is the answer to a list of what durable sessions have at their
// brokers.
type SubscriptionList struct {
	Sessions []gobridge.SessionSubscriptions `json:"sessions"`
}

// SubscriptionSeed gives a session a baseline by hand.
type SubscriptionSeed struct {
	// Discard throws the session in the broker away with the next connect, with
	// whatever is queued there.
	Discard bool `json:"discard"`
	// Filters are those that the broker has beside the ones of the config.
	Filters []string `json:"filters"`
}

// SessionDone is the answer once something was done to a session.
type SessionDone struct {
	SessionID string `json:"session_id"`
	// Done is drain, end or retry.
	Done string `json:"done"`
}

// listSubscriptions shows the sessions that keep subscriptions beyond a connection.
func (a *API) listSubscriptions(c *call) error {
	c.quiet = true
	if err := c.known(); err != nil {
		return err
	}
	list := SubscriptionList{Sessions: []gobridge.SessionSubscriptions{}}
	topology := a.op.Topology()
	for _, s := range topology.Sessions {
		receives := slices.ContainsFunc(topology.Receivers, func(r gobridge.TopologyReceiver) bool { return r.SessionID == s.ID })
		if s.SessionMode == gobridge.ModeEphemeral || !receives {
			continue
		}
		known, err := a.op.Subscriptions(c.Context(), s.ID)
		if errors.Is(err, gobridge.ErrNotSupported) {
			continue // its transport has none
		}
		if err != nil {
			return err
		}
		list.Sessions = append(list.Sessions, known)
	}
	return c.answer(http.StatusOK, list)
}

// seedSubscriptions answers with what is known of the session afterwards.
func (a *API) seedSubscriptions(c *call) error {
	id := c.PathValue("id")
	c.detail("session_id", id)
	var seed SubscriptionSeed
	if err := c.decodeOptional(&seed, `{"filters": ["a/#"]} or {"discard": true}`); err != nil {
		return err
	}
	if seed.Discard && len(seed.Filters) > 0 {
		return badRequest("with discard the broker has nothing to be known", "discard and filters exclude each other")
	}
	for _, f := range seed.Filters {
		if err := gobridge.ValidateFilter(f); err != nil {
			return badRequest("", "%q is not a topic filter: %v", f, err)
		}
	}
	c.detail("discard", seed.Discard, "filters", seed.Filters)
	if err := a.op.SeedSubscriptions(c.Context(), id, seed.Discard, seed.Filters...); err != nil {
		return err
	}
	known, err := a.op.Subscriptions(c.Context(), id)
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, known)
}

// onSession does one thing to the session of the path.
func onSession(done string, do func(ctx context.Context, id string) error) func(c *call) error {
	return func(c *call) error {
		id := c.PathValue("id")
		c.detail("session_id", id)
		if err := c.known(); err != nil {
			return err
		}
		if err := do(c.Context(), id); err != nil {
			return err
		}
		return c.answer(http.StatusOK, SessionDone{id, done})
	}
}
