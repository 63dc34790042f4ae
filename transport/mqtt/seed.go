package mqtt

import (
	"context"
	"fmt"
	"slices"

	"github.com/gobridge/gobridge"
)

// historyKey names the session of a checked use in the managed subscription history.
func historyKey(use *gobridge.SessionUse) gobridge.HistoryKey {
	return gobridge.HistoryKey{SessionID: use.Session.ID, ClientID: sessionSettings(use.Session).ClientID}
}

// isManaged reports whether a history is kept of the session.
func isManaged(use *gobridge.SessionUse) bool {
	return use.Receiver != nil && use.Session.Mode != gobridge.ModeEphemeral
}

// wantedOf are the filters of the config.
func wantedOf(use *gobridge.SessionUse) []subscription {
	if use.Receiver == nil {
		return nil
	}
	var all []subscription
	for _, t := range use.Receiver.Topics {
		qos := 1
		if t.QoS != nil {
			qos = *t.QoS
		}
		_, _, shared := gobridge.SplitShare(t.Topic)
		all = append(all, subscription{filter: t.Topic, qos: byte(qos), shared: shared})
	}
	return all
}

// subscriptions is the transport's Subscriptions: the filters of the config in their
// order, then the others in theirs. Nothing counts as granted in a session that is to
// be thrown away.
func subscriptions(ctx context.Context, h gobridge.History, use *gobridge.SessionUse) ([]gobridge.SubscriptionState, bool, error) {
	if !isManaged(use) {
		return nil, false, nil
	}
	m := &managed{store: h, key: historyKey(use)}
	if err := m.load(ctx); err != nil {
		return nil, false, fmt.Errorf("session %s: %w", use.Session.ID, err)
	}
	set, wanted := sessionSettings(use.Session), wantedOf(use)
	var all []gobridge.SubscriptionState
	for i := range wanted {
		w := &wanted[i]
		all = append(all, gobridge.SubscriptionState{
			Filter: w.filter, Wanted: true, Granted: m.has(w.filter) && m.has(set.note(w)) && !m.has(discardNote),
		})
	}
	for _, f := range m.stale(wanted) {
		all = append(all, gobridge.SubscriptionState{Filter: f})
	}
	_, removed := m.filters()
	for _, f := range removed {
		if !wants(wanted, f) {
			all = append(all, gobridge.SubscriptionState{Filter: f, Removed: true})
		}
	}
	return all, m.known, nil
}

// seed is the transport's Seed. What it writes is read by the next process, or by the
// running session after its Retry.
func seed(ctx context.Context, h gobridge.History, use *gobridge.SessionUse, discard bool, further ...string) error {
	fault := func(err error) error { return fmt.Errorf("seed session %s: %w", use.Session.ID, err) }
	if !isManaged(use) {
		return fault(fmt.Errorf("%w: it has no receiver, or its broker keeps nothing of it", gobridge.ErrNotSupported))
	}
	m := &managed{store: h, key: historyKey(use)}
	if discard {
		if len(further) > 0 {
			return fault(fmt.Errorf("filters and discard together: a session that is thrown away has none"))
		}
		if err := m.remember(ctx, discardNote); err != nil {
			return fault(err)
		}
		return nil
	}
	for _, f := range further {
		if err := gobridge.ValidateFilter(f); err != nil {
			return fault(fmt.Errorf("filter %q: %w", f, err))
		}
	}
	filters := slices.Clone(further)
	for _, w := range wantedOf(use) {
		filters = append(filters, w.filter)
	}
	if err := m.remember(ctx, filters...); err != nil {
		return fault(err)
	}
	// No grant is known: each filter of the config is asked for again.
	var untrue []string
	for e := range m.entries {
		if kind, _ := parseEntry(e); kind == entryGrant || kind == entryDiscard {
			untrue = append(untrue, e)
		}
	}
	if err := m.forget(ctx, untrue...); err != nil {
		return fault(err)
	}
	return nil
}
