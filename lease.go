package gobridge

import (
	"context"
	"sync/atomic"
	"time"
)

// LeaseRecord is what a lease store holds about one lease.
type LeaseRecord struct {
	// Key names the session that is owned.
	Key string
	// Holder is the instance that owns it, empty when it was released.
	Holder string
	// Version is raised each time the lease is taken: the fencing token. Zero: nobody
	// has held it yet.
	Version uint64
	// Beat is raised with each renewal, and starts at 0 with each version.
	Beat uint64
	// TTL is how long the holder may stay silent.
	TTL time.Duration
}

// LeaseStore keeps who owns the exclusive sessions, for all processes that share it.
// It knows no time: a standby that has seen a record unchanged for its TTL, on its
// own monotonic clock, may take it, so the clocks of machines are never compared.
// Each call is atomic. Safe for concurrent use.
type LeaseStore interface {
	// Read returns the record of a key; without one it has Version 0.
	Read(ctx context.Context, key string) (LeaseRecord, error)
	// Take makes holder the owner if the record still is as it was seen, Beat included,
	// and returns the new one, with the next Version. ErrVersionMismatch: it has changed.
	Take(ctx context.Context, seen LeaseRecord, holder string, ttl time.Duration) (LeaseRecord, error)
	// Renew proves that the owner lives and returns the record with the next Beat.
	// ErrStaleFence: it has another owner, or was released.
	Renew(ctx context.Context, held LeaseRecord) (LeaseRecord, error)
	// Release gives the lease up, so that a standby need not wait. ErrStaleFence: it had
	// another owner already.
	Release(ctx context.Context, held LeaseRecord) error
	Close() error
}

// LeaseKind is a kind of lease store.
type LeaseKind struct {
	Name    string
	Options func() any
	// Shared names the place that every instance with these options uses, or says why
	// only this one does. Nil: no other process can see the store.
	Shared func(b *BridgeSpec, options any) (place string, err error)
	Open   func(ctx context.Context, b *BridgeSpec, s *StoreSpec, env Env) (LeaseStore, error)
}

// Fence tells until when this process owns a session: no PUBLISH is started later
// (D5). Time is monotonic, so that a clock that is set does not move it. Safe for
// concurrent use. The zero value is shut.
type Fence struct{ until atomic.Int64 } // nanoseconds since fenceEpoch

// fenceEpoch is the zero of the monotonic clock of fences.
var fenceEpoch = time.Now()

// OpenUntil lets messages pass until the given time, which must have a monotonic
// reading.
func (f *Fence) OpenUntil(t time.Time) { f.until.Store(int64(t.Sub(fenceEpoch))) }

// Shut lets nothing pass any more.
func (f *Fence) Shut() { f.until.Store(0) }

// Open reports whether a message may pass at the given time. A nil fence is always
// open.
func (f *Fence) Open(now time.Time) bool {
	if f == nil {
		return true
	}
	until := f.until.Load()
	return until != 0 && int64(now.Sub(fenceEpoch)) < until
}
