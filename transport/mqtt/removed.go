package mqtt

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/eclipse/paho.golang/autopaho"
	"github.com/eclipse/paho.golang/paho"

	"github.com/gobridge/gobridge"
)

// removedFilter is a filter that the broker has, or had, and that the config does not
// have any more. Its messages may be in the broker's queue for as long as the session
// lives.
type removedFilter struct {
	filter  string // without $share/<group>/
	verdict *gobridge.Error
}

// removedFilters are those of entries of the history.
func removedFilters(filters []string) []removedFilter {
	var all []removedFilter
	for _, f := range filters {
		_, plain, _ := gobridge.SplitShare(f)
		all = append(all, removedFilter{filter: plain, verdict: &gobridge.Error{
			Code: gobridge.CodeSubscriptionRemoved, Class: gobridge.ClassPermanent,
			Op:   fmt.Sprintf("message of the removed subscription %q", f),
			Hint: "redrive it to send it all the same, or delete it",
		}})
	}
	return all
}

// withhold keeps what comes from the route, and its acknowledgements from the broker,
// until letThrough: which filters the broker has is not known yet.
func (in *inbound) withhold() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.withheld = true
}

// judge makes the given filters the removed ones.
func (in *inbound) judge(removed []removedFilter, mayRemove bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.removed, in.mayRemove = removed, mayRemove
}

// letThrough ends withhold: what has come meanwhile is judged, in the order of receipt,
// and offered. The error says that a message must not be offered and has no other
// place to go; then everything stays as it was.
func (in *inbound) letThrough() error {
	in.mu.Lock()
	if !in.withheld {
		in.mu.Unlock()
		return nil
	}
	if !in.mayRemove {
		for i := range in.queue.len() {
			d := *in.queue.at(i)
			if matched, removed := in.fate(d.Envelope.Topic); !matched && removed != nil {
				in.mu.Unlock()
				return cannotKeep(in.session, removed.verdict)
			}
		}
	}
	in.withheld = false
	in.queue.filter(func(d *delivery) bool {
		matched, removed := in.fate(d.Envelope.Topic)
		switch {
		case matched:
			return true
		case removed != nil:
			d.Unwanted = removed.verdict
			return true
		}
		in.unqueue(d)
		if d.qos == 0 {
			in.count.unmatchedDropped.Inc()
			return false
		}
		in.park(d)
		return false
	})
	c := in.c
	if c != nil {
		in.acknowledge() // what was settled meanwhile
		in.paused = false
	}
	in.mu.Unlock()
	if c != nil {
		c.resume() // it asks admit again, whose answer may be another one now
	}
	in.pump()
	if c != nil {
		c.flush()
	}
	return nil
}

// withdraw gives up what letThrough would have offered: the broker sends it again, or is
// told to lose it. Called when the connection is lost, so that nothing more comes.
func (in *inbound) withdraw() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.withheld {
		return
	}
	in.count.stalePurged.Add(uint64(in.queue.len()))
	for in.queue.len() > 0 {
		d := in.queue.pop()
		in.unqueue(d)
		if d.qos == 0 {
			continue
		}
		in.abandon(d)
	}
}

// fate says whether a wanted filter covers the topic, else which removed one does.
// Called with mu held.
func (in *inbound) fate(topic string) (matched bool, removed *removedFilter) {
	if in.matches(topic) {
		return true, nil
	}
	for i := range in.removed {
		if covers(in.removed[i].filter, topic) {
			return false, &in.removed[i]
		}
	}
	return false, nil
}

// removeStale takes out of the broker what the history holds and nobody wants any more;
// with again also what was taken out before.
func (s *session) removeStale(ctx context.Context, cm *autopaho.ConnectionManager, again bool) error {
	filters := s.managed.stale(s.filters)
	if _, removed := s.managed.filters(); again {
		filters = append(filters, removed...)
	}
	return s.unsubscribe(ctx, cm, filters)
}

// unsubscribe takes filters out of the broker. What was queued under them still
// comes, so the history, where there is one, keeps a note of each.
func (s *session) unsubscribe(ctx context.Context, cm *autopaho.ConnectionManager, filters []string) error {
	for some := range slices.Chunk(filters, filtersPerRequest) {
		if err := s.doubtGrants(ctx, some); err != nil {
			return err
		}
		answer, err := cm.Unsubscribe(ctx, &paho.Unsubscribe{Topics: some})
		if answer == nil || len(answer.Reasons) != len(some) {
			if err == nil {
				err = fmt.Errorf("UNSUBACK answers %d of %d filters", len(answer.Reasons), len(some))
			}
			return fmt.Errorf("UNSUBSCRIBE without an answer: %w", err)
		}
		var gone []string
		var faults []error
		for i, filter := range some {
			if code := answer.Reasons[i]; code >= reasonFailure {
				faults = append(faults, fmt.Errorf("unsubscribe %q: %w", filter, &reasonError{Reason: code}))
				continue
			}
			gone = append(gone, filter)
		}
		if s.managed != nil {
			if err := s.managed.remove(ctx, gone); err != nil {
				faults = append(faults, err)
			}
		}
		if len(faults) > 0 {
			return errors.Join(faults...)
		}
	}
	if len(filters) > 0 {
		s.log.Info("unsubscribed", "filters", len(filters), slog.Any("removed", filters))
	}
	return nil
}

// doubtGrants takes note, before an UNSUBSCRIBE, that the broker may not have the filters
// any more: its answer may be lost, and a filter that is wanted then, or put back into
// the config later, has to be asked for again.
func (s *session) doubtGrants(ctx context.Context, filters []string) error {
	s.mu.Lock()
	for i := range s.filters {
		if slices.Contains(filters, s.filters[i].filter) {
			s.filters[i].granted, s.filters[i].trusted = false, false
		}
	}
	s.mu.Unlock()
	if s.managed == nil {
		return nil
	}
	return s.managed.disbelieve(ctx, filters)
}
