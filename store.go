package gobridge

import (
	"context"
	"iter"
	"time"
)

// Category says why a message became a dead letter. The set is closed: it is a
// metric label.
type Category string

// The categories.
const (
	CategoryPermanent           Category = "permanent"
	CategoryExpired             Category = "expired"
	CategoryPoison              Category = "poison"
	CategoryUnstableIdentity    Category = "unstable_identity"
	CategoryRetryUnsupported    Category = "retry_unsupported"
	CategoryFiltered            Category = "filtered"
	CategorySubscriptionRemoved Category = "subscription_removed"
)

// DeadLetter is a message that could not be delivered, with the evidence.
type DeadLetter struct {
	// ID is the public id that the store gives on the first Put: a UUID, time-ordered
	// (version 7).
	ID string
	// Key is the idempotency key that the engine computes from route, binding,
	// envelope id and payload; a second Put with the same key updates the entry.
	Key string

	RouteID   string
	BindingID string
	// SourceID is the id of the receiver.
	SourceID string
	Category Category
	// Code is the error code of the last failure, LastError its text.
	Code      Code
	LastError string
	// Attempts counts the physical sends of the delivery.
	Attempts int
	FirstAt  time.Time
	LastAt   time.Time
	// Replays counts redrives.
	Replays int

	// Envelope is the message as it was received, Address where it was bound for;
	// empty when the address could not be rendered.
	Envelope Envelope
	Address  string
}

// DLQFilter selects dead letters; zero fields select everything.
type DLQFilter struct {
	RouteID  string
	Category Category
	Code     Code
	Since    time.Time
	Before   time.Time
	// After is a cursor: the id of the last entry of the previous page.
	After string
	// Limit bounds the number of entries; 0 means no bound.
	Limit int
}

// DLQ keeps dead letters. Safe for concurrent use.
type DLQ interface {
	// Put stores a dead letter; nil means that it is as durable as the store can
	// make it. updated tells that an entry of that key existed. ErrFull means that
	// the bounds of the store are reached.
	Put(ctx context.Context, d *DeadLetter) (updated bool, err error)
	// Get returns the entry with that id, ErrNotFound without one.
	Get(ctx context.Context, id string) (*DeadLetter, error)
	// List yields the entries that the filter selects, oldest first.
	List(ctx context.Context, f DLQFilter) iter.Seq2[*DeadLetter, error]
	// CountReplay adds one to the Replays of an entry, durably, and returns the new
	// number: the generation of the redrive that follows (F2). ErrNotFound without an
	// entry.
	CountReplay(ctx context.Context, id string) (int, error)
	// Delete removes entries and returns how many existed.
	Delete(ctx context.Context, ids ...string) (int, error)
	// Depth is the number of entries.
	Depth(ctx context.Context) (int, error)
	// Err returns why the store takes no writes at the moment, nil when it does.
	Err() error
	// Close releases the store.
	Close() error
}

// LedgerKey names a message across its redeliveries.
type LedgerKey struct {
	RouteID    string
	EnvelopeID string
}

// Ledger counts the charged attempts of messages whose source does not count.
// Nothing is written for a message that goes well. Safe for concurrent use.
type Ledger interface {
	// Charge adds one attempt and returns the total.
	Charge(ctx context.Context, k LedgerKey) (int, error)
	// Remove forgets a message; a missing one is no error.
	Remove(ctx context.Context, k LedgerKey) error
	// Len is the number of messages counted.
	Len(ctx context.Context) (int, error)
	// Err returns why the store takes no writes at the moment, nil when it does.
	Err() error
	Close() error
}

// StoreSpec configures one store.
type StoreSpec struct {
	// Type names the kind; empty means the default.
	Type string `yaml:"type" doc:"the kind of store"`
	// Options is the options struct of the kind.
	Options any `yaml:"options" doc:"options of the kind"`
}

// DLQKind is a kind of dead-letter store.
type DLQKind struct {
	Name    string
	Options func() any
	Open    func(ctx context.Context, b *BridgeSpec, s *StoreSpec, env Env) (DLQ, error)
}

// LedgerKind is a kind of replay ledger.
type LedgerKind struct {
	Name    string
	Options func() any
	Open    func(ctx context.Context, b *BridgeSpec, s *StoreSpec, env Env) (Ledger, error)
}
