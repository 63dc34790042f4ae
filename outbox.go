package gobridge

import (
	"context"
	"time"
)

// OutboxRecord is one message for one binding, kept until its destination
// confirmed it. Its dedup key is (BindingID, Envelope.ID, Generation).
type OutboxRecord struct {
	// Seq is given by Persist and grows with every record of the store. Records of a
	// partition are sent in its order.
	Seq uint64
	// RouteID and BindingID say where the message belongs; the binding is the
	// partition.
	RouteID   string
	BindingID string
	// Generation is 0 for a message from the source, and counts up with every redrive
	// of its dead letter, so that a redrive is no duplicate of the original.
	Generation  int
	Envelope    Envelope
	Address     string
	PersistedAt time.Time
	// ReplayCount is the number of charged failed sends; FirstAttemptAt is when the
	// first of them happened, zero before.
	ReplayCount    int
	FirstAttemptAt time.Time
	// Duplicate is set by Persist when a record of the same key is or was in the
	// store; nothing was stored for it. Conflict tells that the other one had another
	// payload (F3).
	Duplicate bool
	Conflict  bool
	// Ref is the engine's own mark; a store keeps it with the record it was given and
	// never writes it.
	Ref any
}

// OutboxDone receives the outcome of an asynchronous call of an Outbox, on the
// store's writer goroutine, without locks held. It must not block. err nil means
// that all of the records given to the call are as durable as the store can make
// them; an error means that none of them is.
type OutboxDone interface {
	OutboxDone(records []*OutboxRecord, err error)
}

// Outbox keeps the messages of shared_outbox routes. Calls that change it are
// asynchronous and are committed in groups, in the order of the calls: whatever
// waits goes into one transaction. Safe for concurrent use.
//
// A handle is the one owner of its records: it carries a fence that was raised
// when the store was opened, and every change made through a handle with a lower
// fence fails with ErrStaleFence.
type Outbox interface {
	// Persist stores the records in one transaction, in order. It sets Seq and
	// PersistedAt, or Duplicate and Conflict, before it reports.
	Persist(records []*OutboxRecord, done OutboxDone)
	// Complete ends records. Their payload goes, their key stays for the retention as
	// evidence against duplicates.
	Complete(records []*OutboxRecord, done OutboxDone)
	// Charge stores ReplayCount and FirstAttemptAt of the records.
	Charge(records []*OutboxRecord, done OutboxDone)
	// Pending returns records of a partition that are not completed, with a Seq above
	// after, oldest first, at most limit and, after the first, at most maxBytes of
	// payload. Records that cannot be read are skipped and counted as lost.
	Pending(ctx context.Context, bindingID string, after uint64, limit int, maxBytes int64) ([]*OutboxRecord, error)
	// Depth is the number of records of a partition that are not completed. Cheap:
	// the store keeps count.
	Depth(bindingID string) int
	// Partitions lists the bindings that have such records.
	Partitions(ctx context.Context) ([]string, error)
	// Err returns why the store takes no writes at the moment (a full disk, an I/O
	// error), nil when it does. It recovers by itself.
	Err() error
	Close() error
}

// OutboxKind is a kind of outbox store.
type OutboxKind struct {
	Name    string
	Options func() any
	Open    func(ctx context.Context, b *BridgeSpec, s *StoreSpec, env Env) (Outbox, error)
}
