package mqtt

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/eclipse/paho.golang/autopaho"
	"github.com/eclipse/paho.golang/paho"

	"github.com/gobridge/gobridge"
)

// managed is what a durable session keeps in the managed subscription history:
//
//   - each filter that the broker has or may have, from before its SUBSCRIBE until
//     after its UNSUBACK;
//   - beside a filter that was granted in full, a note with the terms of that grant.
//
// Only the two together let a resumed session do without a SUBSCRIBE (V7). A
// filter alone may be one whose SUBSCRIBE never arrived, was refused, or was granted
// at less; and a filter whose terms have changed in the config is to be asked for
// again.
//
// The goroutine that reconciles is the only user.
type managed struct {
	store   gobridge.History
	key     gobridge.HistoryKey
	entries map[string]struct{} // what the store holds; nil: to be loaded
}

// historyError is a failure of the store of the managed subscription history.
type historyError struct {
	op  string
	err error
}

func (e *historyError) Error() string {
	return "managed subscription history: " + e.op + ": " + e.err.Error()
}
func (e *historyError) Unwrap() error { return e.err }

// load reads the entries, once as long as the writes go well: nobody else changes
// them while this session lives.
func (m *managed) load(ctx context.Context) (known bool, err error) {
	if m.entries != nil {
		return true, nil
	}
	entries, known, err := m.store.Load(ctx, m.key)
	if err != nil {
		return false, &historyError{"load", err}
	}
	m.entries = map[string]struct{}{}
	for _, e := range entries {
		m.entries[e] = struct{}{}
	}
	return known, nil
}

func (m *managed) has(entry string) bool {
	_, ok := m.entries[entry]
	return ok
}

// remember adds entries. Nothing is written for those that are there.
func (m *managed) remember(ctx context.Context, entries ...string) error {
	if len(entries) == 0 {
		return nil
	}
	if _, err := m.load(ctx); err != nil {
		return err
	}
	entries = slices.DeleteFunc(entries, m.has)
	if len(entries) == 0 {
		return nil
	}
	if err := m.store.Remember(ctx, m.key, entries...); err != nil {
		return m.unsure("remember", err)
	}
	for _, e := range entries {
		m.entries[e] = struct{}{}
	}
	return nil
}

// forget removes entries.
func (m *managed) forget(ctx context.Context, entries ...string) error {
	if len(entries) == 0 {
		return nil
	}
	if err := m.store.Forget(ctx, m.key, entries...); err != nil {
		return m.unsure("forget", err)
	}
	for _, e := range entries {
		delete(m.entries, e)
	}
	return nil
}

// reset removes all entries and makes the baseline known.
func (m *managed) reset(ctx context.Context) error {
	if err := m.store.Reset(ctx, m.key); err != nil {
		return m.unsure("reset", err)
	}
	m.entries = map[string]struct{}{}
	return nil
}

// unsure is a write that failed: it may have happened.
func (m *managed) unsure(op string, err error) error {
	m.entries = nil
	return &historyError{op, err}
}

// entriesOf returns the filter and its notes, as far as they are there.
func (m *managed) entriesOf(filter string) []string {
	var all []string
	for e := range m.entries {
		if filterOf(e) == filter {
			all = append(all, e)
		}
	}
	return all
}

// unwanted returns the filters that are there and not among the wanted ones.
func (m *managed) unwanted(wanted []subscription) []string {
	filters := map[string]struct{}{}
	for e := range m.entries {
		filters[filterOf(e)] = struct{}{}
	}
	for i := range wanted {
		delete(filters, wanted[i].filter)
	}
	return slices.Sorted(maps.Keys(filters))
}

// notePrefix begins a note. No valid filter begins so: # stands alone at its level
// (MQTT v5, 4.7.1.2).
const notePrefix = "# "

// note is the entry that says that the filter was granted on the terms that are
// wanted now: # qos=1 no_local=true a/b.
func (s *session) note(f *subscription) string {
	o := s.subscribeOptions(f, false)
	return fmt.Sprintf("%sqos=%d no_local=%t %s", notePrefix, o.QoS, o.NoLocal, f.filter)
}

// filterOf returns the filter that an entry is, or that its note is about.
func filterOf(entry string) string {
	if note, ok := strings.CutPrefix(entry, notePrefix); ok {
		parts := strings.SplitN(note, " ", 3)
		return parts[len(parts)-1]
	}
	return entry
}

// recall brings the session and its history together after a connect: what the
// history knows to be granted in a resumed session is granted, and what it knows of
// a session that the broker has lost is void (V5).
func (s *session) recall(ctx context.Context) error {
	m := s.managed
	known, err := m.load(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	void, lost := s.void, s.lossOpen && len(m.entries) > 0
	s.lossOpen = false
	s.mu.Unlock()
	if lost {
		s.reportResumeLost()
	}
	if void {
		return s.startOver(ctx)
	}
	if !known {
		// Which filters the broker has is unknown. D4 has such a session read nothing
		// and close before it acknowledges anything; here it subscribes to everything
		// with Retain Handling 1, and filters of another config stay in the broker.
		s.log.Warn("broker resumed a session that the managed subscription history does not know: subscribing to all filters")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for i := range s.filters {
		if f := &s.filters[i]; m.has(f.filter) && m.has(s.note(f)) {
			f.granted, f.downgraded, f.why = true, false, ""
		}
	}
	return nil
}

// startOver makes the history that of a session that began empty: Session
// Present=false proves it (V5). Where an earlier try could not write, filters may
// have been granted since; they stay.
func (s *session) startOver(ctx context.Context) error {
	m := s.managed
	s.mu.Lock()
	granted := map[string]bool{}
	for i := range s.filters {
		if s.filters[i].granted {
			granted[s.filters[i].filter] = true
		}
	}
	s.mu.Unlock()
	var err error
	if len(granted) == 0 {
		err = m.reset(ctx)
	} else {
		var gone []string
		for e := range m.entries {
			if !granted[filterOf(e)] {
				gone = append(gone, e)
			}
		}
		err = m.forget(ctx, gone...)
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx) // another connection may have found the session gone again
	}
	s.void = false
	return nil
}

// rememberWanted makes sure that the history holds each wanted filter, and no note
// about a missing one that is not true any more. It returns those of the missing
// filters that may be asked for: nothing is subscribed to that is not remembered.
func (s *session) rememberWanted(ctx context.Context, missing []int) (allowed []int, err error) {
	m := s.managed
	if _, err := m.load(ctx); err != nil {
		return nil, err
	}
	var filters, outdated []string
	for i := range s.filters {
		filters = append(filters, s.filters[i].filter)
	}
	for _, i := range missing {
		outdated = append(outdated, s.outdated(i)...)
	}
	if err = m.forget(ctx, outdated...); err == nil {
		err = m.remember(ctx, filters...)
	}
	if err == nil {
		return missing, nil
	}
	// A store that takes no writes may still be read. What it holds is enough.
	if _, again := m.load(ctx); again != nil {
		return nil, err
	}
	for _, i := range missing {
		if m.has(s.filters[i].filter) && len(s.outdated(i)) == 0 {
			allowed = append(allowed, i)
		}
	}
	return allowed, err
}

// outdated returns the notes about a wanted filter on terms that are not wanted any
// more.
func (s *session) outdated(i int) []string {
	f := &s.filters[i]
	return slices.DeleteFunc(s.managed.entriesOf(f.filter), func(e string) bool { return e == f.filter || e == s.note(f) })
}

// rememberGrants notes which filters were granted in full. What was granted at less
// is asked for again by the next process, whose log then says so.
func (s *session) rememberGrants(ctx context.Context) error {
	var notes []string
	s.mu.Lock()
	for i := range s.filters {
		if f := &s.filters[i]; f.granted && !f.downgraded {
			notes = append(notes, s.note(f))
		}
	}
	s.mu.Unlock()
	return s.managed.remember(ctx, notes...)
}

// unsubscribe removes from the broker what the history holds and nobody wants any
// more.
func (s *session) unsubscribe(ctx context.Context, cm *autopaho.ConnectionManager) error {
	m := s.managed
	unwanted := m.unwanted(s.filters)
	for filters := range slices.Chunk(unwanted, filtersPerRequest) {
		answer, err := cm.Unsubscribe(ctx, &paho.Unsubscribe{Topics: filters})
		if answer == nil || len(answer.Reasons) != len(filters) {
			if err == nil {
				err = fmt.Errorf("UNSUBACK answers %d of %d filters", len(answer.Reasons), len(filters))
			}
			return fmt.Errorf("UNSUBSCRIBE without an answer: %w", err)
		}
		var gone []string
		var faults []error
		for i, filter := range filters {
			if code := answer.Reasons[i]; code >= reasonFailure {
				faults = append(faults, fmt.Errorf("unsubscribe %q: %w", filter, &reasonError{Reason: code}))
				continue
			}
			gone = append(gone, m.entriesOf(filter)...)
		}
		if err := m.forget(ctx, gone...); err != nil {
			faults = append(faults, err)
		}
		if len(faults) > 0 {
			return errors.Join(faults...)
		}
	}
	if len(unwanted) > 0 {
		s.log.Info("unsubscribed", "filters", len(unwanted))
	}
	return nil
}
