package memory

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/gobridge/gobridge"
)

// LeaseKind is the kind "memory" of lease stores: for exclusive sessions of one
// process alone.
func LeaseKind() *gobridge.LeaseKind {
	return &gobridge.LeaseKind{
		Name:    "memory",
		Options: func() any { return &struct{}{} },
		Open: func(context.Context, *gobridge.BridgeSpec, *gobridge.StoreSpec, gobridge.Env) (gobridge.LeaseStore, error) {
			return NewLeases(), nil
		},
	}
}

// Leases is a lease store in memory.
type Leases struct {
	mu      sync.Mutex
	records map[string]gobridge.LeaseRecord
}

var _ gobridge.LeaseStore = (*Leases)(nil)

// NewLeases returns a store in which nobody has held anything.
func NewLeases() *Leases { return &Leases{records: map[string]gobridge.LeaseRecord{}} }

// Read implements gobridge.LeaseStore.
func (l *Leases) Read(_ context.Context, key string) (gobridge.LeaseRecord, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.read(key), nil
}

func (l *Leases) read(key string) gobridge.LeaseRecord {
	rec := l.records[key]
	rec.Key = key
	return rec
}

// Take implements gobridge.LeaseStore.
func (l *Leases) Take(_ context.Context, seen gobridge.LeaseRecord, holder string, ttl time.Duration) (gobridge.LeaseRecord, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.read(seen.Key)
	if now.Version != seen.Version || now.Beat != seen.Beat || now.Holder != seen.Holder {
		return seen, fmt.Errorf("take lease %s: %w", seen.Key, gobridge.ErrVersionMismatch)
	}
	taken := gobridge.LeaseRecord{Key: seen.Key, Holder: holder, Version: now.Version + 1, TTL: ttl}
	l.records[seen.Key] = taken
	return taken, nil
}

// Renew implements gobridge.LeaseStore.
func (l *Leases) Renew(_ context.Context, held gobridge.LeaseRecord) (gobridge.LeaseRecord, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.read(held.Key)
	if now.Version != held.Version || now.Holder != held.Holder {
		return held, fmt.Errorf("renew lease %s: %w", held.Key, gobridge.ErrStaleFence)
	}
	now.Beat++
	l.records[held.Key] = now
	return now, nil
}

// Release implements gobridge.LeaseStore.
func (l *Leases) Release(_ context.Context, held gobridge.LeaseRecord) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.read(held.Key)
	if now.Version != held.Version || now.Holder != held.Holder {
		return fmt.Errorf("release lease %s: %w", held.Key, gobridge.ErrStaleFence)
	}
	now.Holder = ""
	l.records[held.Key] = now
	return nil
}

// Close does nothing.
func (l *Leases) Close() error { return nil }
