package mqtt

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gobridge/gobridge"
)

// managed is what a durable session keeps in the managed subscription history:
//
//   - each filter that the broker has or may have, from before its SUBSCRIBE until
//     after its UNSUBACK;
//   - beside a filter that was granted in full, a note with the terms of that grant,
//     until before its UNSUBSCRIBE;
//   - a note of each filter that was taken out of the broker, because what it had
//     queued still comes; until the filter is wanted again or the broker loses the
//     session;
//   - a note that the session in the broker is to be thrown away, until it is.
//
// Only a filter together with the note of its grant lets a resumed session do without a
// SUBSCRIBE (V7). A filter alone may be one whose SUBSCRIBE never arrived, was refused,
// or was granted at less; and a filter whose terms have changed in the config is to be
// asked for again.
//
// The holder of the session's gate is the only user.
type managed struct {
	store   gobridge.History
	key     gobridge.HistoryKey
	entries map[string]struct{} // what the store holds; nil: to be loaded
	known   bool                // there is a baseline
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
// them while this session lives, but for a seed, which is followed by a Retry.
func (m *managed) load(ctx context.Context) error {
	if m.entries != nil {
		return nil
	}
	entries, known, err := m.store.Load(ctx, m.key)
	if err != nil {
		return &historyError{"load", err}
	}
	m.entries, m.known = map[string]struct{}{}, known
	for _, e := range entries {
		m.entries[e] = struct{}{}
	}
	return nil
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
	if err := m.load(ctx); err != nil {
		return err
	}
	entries = slices.DeleteFunc(entries, m.has)
	if len(entries) == 0 {
		return nil
	}
	if err := m.store.Remember(ctx, m.key, entries...); err != nil {
		return m.unsure("remember", err)
	}
	m.known = true
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
	m.entries, m.known = map[string]struct{}{}, true
	return nil
}

// disbelieve removes what is noted of grants of the filters: the broker may have them.
func (m *managed) disbelieve(ctx context.Context, filters []string) error {
	if err := m.load(ctx); err != nil {
		return err
	}
	var grants []string
	for e := range m.entries {
		if kind, f := parseEntry(e); kind == entryGrant && slices.Contains(filters, f) {
			grants = append(grants, e)
		}
	}
	return m.forget(ctx, grants...)
}

// remove replaces filters, with all that is noted of them, by the note that they were
// removed.
func (m *managed) remove(ctx context.Context, filters []string) error {
	var notes, gone []string
	for _, f := range filters {
		notes = append(notes, removedPrefix+f)
		gone = append(gone, slices.DeleteFunc(m.entriesOf(f), func(e string) bool { return e == removedPrefix+f })...)
	}
	if err := m.remember(ctx, notes...); err != nil {
		return err
	}
	return m.forget(ctx, gone...)
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
		if kind, f := parseEntry(e); f == filter && kind != entryDiscard {
			all = append(all, e)
		}
	}
	return all
}

// filters returns those that the broker has or may have, removed those that it had.
// Neither has a filter of the other.
func (m *managed) filters() (have, removed []string) {
	had, gone := map[string]struct{}{}, map[string]struct{}{}
	for e := range m.entries {
		switch kind, f := parseEntry(e); kind {
		case entryFilter, entryGrant:
			had[f] = struct{}{}
		case entryRemoved:
			gone[f] = struct{}{}
		}
	}
	for f := range had {
		delete(gone, f)
	}
	return slices.Sorted(maps.Keys(had)), slices.Sorted(maps.Keys(gone))
}

// stale returns the filters that the broker has or may have and that are not wanted.
func (m *managed) stale(wanted []subscription) []string {
	have, _ := m.filters()
	return slices.DeleteFunc(have, func(f string) bool { return wants(wanted, f) })
}

func wants(wanted []subscription, filter string) bool {
	return slices.ContainsFunc(wanted, func(w subscription) bool { return w.filter == filter })
}

// The notes. No valid filter begins like one: # stands alone at its level (MQTT v5,
// 4.7.1.2).
const (
	notePrefix    = "# "
	removedPrefix = notePrefix + "removed "
	discardNote   = notePrefix + "discard"
)

// The kinds of entries.
type entryKind uint8

const (
	entryFilter entryKind = iota
	entryGrant
	entryRemoved
	entryDiscard
)

// parseEntry says what an entry is, and which filter it is about.
func parseEntry(entry string) (kind entryKind, filter string) {
	if entry == discardNote {
		return entryDiscard, ""
	}
	if filter, ok := strings.CutPrefix(entry, removedPrefix); ok {
		return entryRemoved, filter
	}
	if note, ok := strings.CutPrefix(entry, notePrefix); ok {
		parts := strings.SplitN(note, " ", 3)
		return entryGrant, parts[len(parts)-1]
	}
	return entryFilter, entry
}

// note is the entry that says that the filter was granted on the terms that are
// wanted now: # qos=1 no_local=true a/b.
func (s *SessionSettings) note(f *subscription) string {
	return fmt.Sprintf("%sqos=%d no_local=%t %s", notePrefix, f.qos, s.noLocal(f), f.filter)
}

// noLocal is that of the filter's SUBSCRIBE. A shared one must not have it
// [MQTT-3.8.3-4].
func (s *SessionSettings) noLocal(f *subscription) bool {
	return s.NoLocal != nil && *s.NoLocal && !f.shared
}

// recall brings the session and its history together after a connect: what the
// history knows to be granted in a resumed session is granted, and what it knows of
// a session that the broker has lost is void (V5). Then the router knows what to make
// of each message, and dispatches, unless filters have to be removed before that.
//
// Without goOn nothing may be subscribed to on this connection; a permanent cause and
// errDiscard end it, with nothing acknowledged.
func (s *session) recall(ctx context.Context) (goOn bool, err error) {
	m := s.managed
	s.mu.Lock()
	if s.reload {
		s.reload, m.entries = false, nil
	}
	s.mu.Unlock()
	if err := m.load(ctx); err != nil {
		return false, err
	}
	have, removed := m.filters()
	discard := m.has(discardNote)
	s.mu.Lock()
	void := s.void
	s.mu.Unlock()
	if s.carried.lossInHistory(len(have) > 0 && !discard) {
		s.reportResumeLost()
	}
	stale := m.stale(s.filters)
	s.in.judge(removedFilters(slices.Concat(stale, removed)), s.mayRemove)
	switch {
	case void:
		fault := s.startOver(ctx)
		if fault != nil && discard {
			return false, fault // what is subscribed to now would be thrown away later
		}
		err := s.in.letThrough()
		return err == nil, errors.Join(fault, err)
	case discard:
		return false, errDiscard
	case !m.known:
		m.entries = nil // a seed may give it one
		return false, s.unknownBaseline()
	case len(stale) > 0 && !s.mayRemove:
		return false, cannotKeep(s.id, fmt.Errorf("%q left the config", stale))
	}
	if len(stale) == 0 {
		if err := s.in.letThrough(); err != nil {
			return false, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	for i := range s.filters {
		if f := &s.filters[i]; !f.shared && m.has(f.filter) && m.has(s.set.note(f)) {
			f.trusted = f.trusted || !f.granted
			f.granted, f.downgraded, f.why = true, false, ""
		}
	}
	return true, nil
}

// closeHistory makes up for a startOver that the end of the session was quicker than.
func (s *session) closeHistory() {
	s.mu.Lock()
	void := s.void
	s.mu.Unlock()
	if s.managed == nil || !void {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeWait)
	defer cancel()
	err := s.gate.acquire(ctx)
	if err == nil {
		defer s.gate.release()
		if err = s.managed.load(ctx); err == nil {
			err = s.startOver(ctx)
		}
	}
	if err != nil {
		s.log.Warn("what the history says of the session is not true any more, and it cannot be changed", "err", err)
	}
}

// startOver makes the history that of a session that began empty: Session
// Present=false proves it (V5). It is the first thing done on such a connection, before
// anything is dispatched or subscribed to. A process that dies between the CONNACK and
// this write leaves a history that claims grants which the broker has lost, and the
// next process believes it: no store can close that moment, because the broker forgets
// before it answers. So does one whose store took no write until the end.
//
// Where an earlier try could not write, filters may have been granted since; they stay.
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
			if _, filter := parseEntry(e); !granted[filter] {
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
	s.void, s.discard = false, false
	return nil
}

// rememberWanted makes sure that the history holds each wanted filter, and no note
// about a missing one that is not true any more. It returns those of the missing
// filters that may be asked for: nothing is subscribed to that is not remembered.
func (s *session) rememberWanted(ctx context.Context, missing []int) (allowed []int, err error) {
	m := s.managed
	if err := m.load(ctx); err != nil {
		return nil, err
	}
	var filters, outdated []string
	for i := range s.filters {
		filters = append(filters, s.filters[i].filter)
	}
	for _, i := range missing {
		outdated = append(outdated, s.outdated(i)...)
	}
	// In this order, so that a filter that is wanted again is known at every moment.
	if err = m.remember(ctx, filters...); err == nil {
		err = m.forget(ctx, outdated...)
	}
	if err == nil {
		return missing, nil
	}
	// A store that takes no writes may still be read. What it holds is enough.
	if again := m.load(ctx); again != nil {
		return nil, err
	}
	for _, i := range missing {
		if m.has(s.filters[i].filter) && len(s.outdated(i)) == 0 {
			allowed = append(allowed, i)
		}
	}
	return allowed, err
}

// outdated returns the notes about a wanted filter that are not true any more.
func (s *session) outdated(i int) []string {
	f := &s.filters[i]
	return slices.DeleteFunc(s.managed.entriesOf(f.filter), func(e string) bool { return e == f.filter || e == s.set.note(f) })
}

// rememberGrants notes which filters were granted in full. What was granted at less
// is asked for again by the next process, whose log then says so.
func (s *session) rememberGrants(ctx context.Context) error {
	var notes []string
	s.mu.Lock()
	for i := range s.filters {
		if f := &s.filters[i]; f.granted && !f.downgraded {
			notes = append(notes, s.set.note(f))
		}
	}
	s.mu.Unlock()
	return s.managed.remember(ctx, notes...)
}
