// Package memory keeps the outbox, dead letters, the replay ledger and the managed
// subscription history in the process: they are gone when it ends (G08). For tests
// and for bridges whose operator chose it by name.
package memory

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/gobridge/gobridge"
)

// DLQOptions bound the dead-letter queue.
type DLQOptions struct {
	MaxEntries int `yaml:"max_entries" doc:"dead letters kept before the queue is full; 0 is no bound" default:"10000"`
}

// DLQKind is the kind "memory" of dead-letter queues.
func DLQKind() *gobridge.DLQKind {
	return &gobridge.DLQKind{
		Name:    "memory",
		Options: func() any { return &DLQOptions{MaxEntries: 10000} },
		Open: func(_ context.Context, _ *gobridge.BridgeSpec, s *gobridge.StoreSpec, _ gobridge.Env) (gobridge.DLQ, error) {
			o, ok := s.Options.(*DLQOptions)
			if !ok {
				return nil, fmt.Errorf("memory dead-letter queue: options are %T, want *memory.DLQOptions", s.Options)
			}
			return NewDLQ(o.MaxEntries), nil
		},
	}
}

// LedgerKind is the kind "memory" of replay ledgers.
func LedgerKind() *gobridge.LedgerKind {
	return &gobridge.LedgerKind{
		Name:    "memory",
		Options: func() any { return &struct{}{} },
		Open: func(context.Context, *gobridge.BridgeSpec, *gobridge.StoreSpec, gobridge.Env) (gobridge.Ledger, error) {
			return NewLedger(), nil
		},
	}
}

// DLQ is a dead-letter queue in memory.
type DLQ struct {
	mu    sync.Mutex
	max   int
	byKey map[string]*gobridge.DeadLetter
	order []*gobridge.DeadLetter // by ID, oldest first
}

var _ gobridge.DLQ = (*DLQ)(nil)

// NewDLQ returns an empty queue; maxEntries 0 is no bound.
func NewDLQ(maxEntries int) *DLQ {
	return &DLQ{max: maxEntries, byKey: map[string]*gobridge.DeadLetter{}}
}

// Put stores a copy of d, or updates attempts and last failure of the entry with
// its key.
func (q *DLQ) Put(_ context.Context, d *gobridge.DeadLetter) (bool, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if old := q.byKey[d.Key]; old != nil {
		old.Category, old.Code, old.LastError, old.LastAt = d.Category, d.Code, d.LastError, d.LastAt
		old.Attempts += d.Attempts
		return true, nil
	}
	if q.max > 0 && len(q.order) >= q.max {
		return false, fmt.Errorf("%d dead letters: %w", len(q.order), gobridge.ErrFull)
	}
	id, err := uuid.NewV7()
	if err != nil {
		return false, fmt.Errorf("make a dead letter's id: %w", err)
	}
	c := *d
	c.ID = id.String()
	q.byKey[c.Key] = &c
	q.order = append(q.order, &c)
	return false, nil
}

// Get returns a copy of one entry.
func (q *DLQ) Get(_ context.Context, id string) (*gobridge.DeadLetter, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if i, ok := q.find(id); ok {
		c := *q.order[i]
		return &c, nil
	}
	return nil, fmt.Errorf("dead letter %q: %w", id, gobridge.ErrNotFound)
}

func (q *DLQ) find(id string) (int, bool) {
	return slices.BinarySearchFunc(q.order, id, func(d *gobridge.DeadLetter, id string) int { return cmp.Compare(d.ID, id) })
}

// List yields copies of the selected entries as they stand when it begins.
func (q *DLQ) List(_ context.Context, f gobridge.DLQFilter) iter.Seq2[*gobridge.DeadLetter, error] {
	q.mu.Lock()
	var found []gobridge.DeadLetter
	for _, d := range q.order {
		if f.Limit > 0 && len(found) == f.Limit {
			break
		}
		if selects(&f, d) {
			found = append(found, *d)
		}
	}
	q.mu.Unlock()
	return func(yield func(*gobridge.DeadLetter, error) bool) {
		for i := range found {
			if !yield(&found[i], nil) {
				return
			}
		}
	}
}

func selects(f *gobridge.DLQFilter, d *gobridge.DeadLetter) bool {
	return (f.RouteID == "" || f.RouteID == d.RouteID) &&
		(f.Category == "" || f.Category == d.Category) &&
		(f.Code == "" || f.Code == d.Code) &&
		(f.Since.IsZero() || !d.LastAt.Before(f.Since)) &&
		(f.Before.IsZero() || d.LastAt.Before(f.Before)) &&
		d.ID > f.After
}

// CountReplay adds one to the redrives of an entry.
func (q *DLQ) CountReplay(_ context.Context, id string) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if i, ok := q.find(id); ok {
		q.order[i].Replays++
		return q.order[i].Replays, nil
	}
	return 0, fmt.Errorf("dead letter %q: %w", id, gobridge.ErrNotFound)
}

// Delete removes entries.
func (q *DLQ) Delete(_ context.Context, ids ...string) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for _, id := range ids {
		if i, ok := q.find(id); ok {
			delete(q.byKey, q.order[i].Key)
			q.order = slices.Delete(q.order, i, i+1)
			n++
		}
	}
	return n, nil
}

// Depth is the number of entries.
func (q *DLQ) Depth(context.Context) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.order), nil
}

// Err is nil: memory always takes writes.
func (q *DLQ) Err() error { return nil }

// Close does nothing.
func (q *DLQ) Close() error { return nil }

// The bounds of the ledger (B5).
const (
	ledgerMax = 100_000
	ledgerAge = 7 * 24 * time.Hour
)

// Ledger is a replay ledger in memory. It forgets the message that was charged
// longest ago when it is full, and those older than seven days.
type Ledger struct {
	mu    sync.Mutex
	byKey map[gobridge.LedgerKey]*list.Element
	order *list.List // of *charge, oldest charge first
}

type charge struct {
	key gobridge.LedgerKey
	n   int
	at  time.Time
}

var _ gobridge.Ledger = (*Ledger)(nil)

// NewLedger returns an empty ledger.
func NewLedger() *Ledger {
	return &Ledger{byKey: map[gobridge.LedgerKey]*list.Element{}, order: list.New()}
}

// Charge adds one attempt.
func (l *Ledger) Charge(_ context.Context, k gobridge.LedgerKey) (int, error) {
	if k.RouteID == "" || k.EnvelopeID == "" {
		return 0, errors.New("replay ledger: a key needs a route and an envelope id")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for e := l.order.Front(); e != nil; e = l.order.Front() {
		if c := e.Value.(*charge); l.order.Len() < ledgerMax && now.Sub(c.at) < ledgerAge {
			break
		}
		l.remove(e)
	}
	e := l.byKey[k]
	if e == nil {
		e = l.order.PushBack(&charge{key: k})
		l.byKey[k] = e
	}
	c := e.Value.(*charge)
	c.n++
	c.at = now
	l.order.MoveToBack(e)
	return c.n, nil
}

func (l *Ledger) remove(e *list.Element) {
	delete(l.byKey, e.Value.(*charge).key)
	l.order.Remove(e)
}

// Remove forgets a message.
func (l *Ledger) Remove(_ context.Context, k gobridge.LedgerKey) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.byKey[k]; e != nil {
		l.remove(e)
	}
	return nil
}

// Len is the number of messages counted.
func (l *Ledger) Len(context.Context) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.order.Len(), nil
}

// Err is nil: memory always takes writes.
func (l *Ledger) Err() error { return nil }

// Close does nothing.
func (l *Ledger) Close() error { return nil }
