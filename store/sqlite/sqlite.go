// Package sqlite keeps outbox, dead letters, replay ledger and managed subscription
// history in SQLite files. Unless a path says otherwise they share one file,
// gobridge.db in bridge.data_dir, with one connection for reading and one writer
// goroutine that commits in groups: whatever waits goes into one transaction, and
// what arrives while that reaches the disk is the next one.
//
// A nil error means that the change survives a loss of power (WAL, synchronous =
// FULL). A disk that is full or fails makes the writer refuse changes with a typed
// outage until writes work again; a damaged file is set aside and begun anew with
// every record that can be read (decision C6).
package sqlite

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/gobridge/gobridge"
)

// kindName is the word in the config.
const kindName = "sqlite"

// The file of a data_dir and the lock that makes a process its owner.
const (
	fileName = "gobridge.db"
	lockName = "gobridge.lock"
)

// maxDone bounds the evidence that an outbox keeps against duplicates. It takes
// about 45 bytes of memory and 37 of disk for each completed message.
const maxDone = 1_000_000

// OutboxOptions are the options of an outbox.
type OutboxOptions struct {
	Path               string        `yaml:"path" doc:"file of the store" default:"gobridge.db in bridge.data_dir" derived:"true"`
	StaleClaimDuration time.Duration `yaml:"stale_claim_duration" doc:"how long the claim of an owner that is gone is respected; a local file has one owner, whose claims end with it, so that this has no effect here" default:"0s"`
	Retention          time.Duration `yaml:"retention" doc:"how long a completed message is remembered as evidence against duplicates" default:"1h"`
}

// DLQOptions are the options of a dead-letter queue.
type DLQOptions struct {
	Path       string         `yaml:"path" doc:"file of the store" default:"gobridge.db in bridge.data_dir" derived:"true"`
	Retention  time.Duration  `yaml:"retention" doc:"how long a dead letter is kept after its last failure; 0s is for ever" default:"0s"`
	MaxEntries int            `yaml:"max_entries" doc:"dead letters kept before the queue is full; 0 is no bound" default:"0"`
	MaxBytes   gobridge.Bytes `yaml:"max_bytes" doc:"size of all dead letters before the queue is full; 0 is no bound" default:"1GiB"`
}

// HistoryOptions are the options of a managed subscription history.
type HistoryOptions struct {
	Path string `yaml:"path" doc:"file of the store; exclusive sessions need one that all instances share" default:"gobridge.db in bridge.data_dir" derived:"true"`
}

// LedgerOptions are the options of a replay ledger.
type LedgerOptions struct {
	Path string `yaml:"path" doc:"file of the store" default:"gobridge.db in bridge.data_dir" derived:"true"`
}

// OutboxKind is the kind "sqlite" of outboxes.
func OutboxKind() *gobridge.OutboxKind {
	return &gobridge.OutboxKind{
		Name:    kindName,
		Options: func() any { return gobridge.SetDefaults(new(OutboxOptions)) },
		Open: func(ctx context.Context, b *gobridge.BridgeSpec, s *gobridge.StoreSpec, env gobridge.Env) (gobridge.Outbox, error) {
			o, err := optionsOf[OutboxOptions](s, "outbox")
			if err != nil {
				return nil, err
			}
			return attach(place(b, o.Path, true, env), func(d *database) (*Outbox, error) {
				return newOutbox(ctx, d, o.Retention, maxDone)
			})
		},
	}
}

// DLQKind is the kind "sqlite" of dead-letter queues.
func DLQKind() *gobridge.DLQKind {
	return &gobridge.DLQKind{
		Name:    kindName,
		Options: func() any { return gobridge.SetDefaults(new(DLQOptions)) },
		Open: func(ctx context.Context, b *gobridge.BridgeSpec, s *gobridge.StoreSpec, env gobridge.Env) (gobridge.DLQ, error) {
			o, err := optionsOf[DLQOptions](s, "dead-letter queue")
			if err != nil {
				return nil, err
			}
			return attach(place(b, o.Path, true, env), func(d *database) (*DLQ, error) { return newDLQ(ctx, d, o) })
		},
	}
}

// LedgerKind is the kind "sqlite" of replay ledgers.
func LedgerKind() *gobridge.LedgerKind {
	return &gobridge.LedgerKind{
		Name:    kindName,
		Options: func() any { return gobridge.SetDefaults(new(LedgerOptions)) },
		Open: func(ctx context.Context, b *gobridge.BridgeSpec, s *gobridge.StoreSpec, env gobridge.Env) (gobridge.Ledger, error) {
			o, err := optionsOf[LedgerOptions](s, "replay ledger")
			if err != nil {
				return nil, err
			}
			return attach(place(b, o.Path, true, env), func(d *database) (*Ledger, error) { return newLedger(ctx, d) })
		},
	}
}

// HistoryKind is the kind "sqlite" of managed subscription histories. A file at a
// path of its own may be shared by several processes of one machine (decision D5).
func HistoryKind() *gobridge.HistoryKind {
	return &gobridge.HistoryKind{
		Name:    kindName,
		Options: func() any { return gobridge.SetDefaults(new(HistoryOptions)) },
		Shared: func(b *gobridge.BridgeSpec, options any) (string, error) {
			return sharedPath(b, options.(*HistoryOptions).Path)
		},
		Open: func(ctx context.Context, b *gobridge.BridgeSpec, s *gobridge.StoreSpec, env gobridge.Env) (gobridge.History, error) {
			o, err := optionsOf[HistoryOptions](s, "managed subscription history")
			if err != nil {
				return nil, err
			}
			return attach(place(b, o.Path, false, env), func(d *database) (*History, error) { return newHistory(ctx, d) })
		},
	}
}

// optionsOf returns the options of a store, the defaults when there are none.
func optionsOf[T any](s *gobridge.StoreSpec, what string) (*T, error) {
	if s.Options == nil {
		return gobridge.SetDefaults(new(T)), nil
	}
	o, ok := s.Options.(*T)
	if !ok {
		return nil, fmt.Errorf("sqlite %s: options are %T, want %T", what, s.Options, o)
	}
	return o, nil
}

// place says where a store lives and which lock guards it: that of the data_dir, or
// one beside a file of its own unless other processes may use it too.
func place(b *gobridge.BridgeSpec, path string, owned bool, env gobridge.Env) settings {
	s := settings{path: filepath.Join(b.DataDir, fileName), lock: filepath.Join(b.DataDir, lockName), log: env.Logger, metrics: env.Metrics}
	if path == "" || filepath.Clean(path) == filepath.Clean(s.path) {
		return s
	}
	s.path, s.lock = path, ""
	if owned {
		s.lock = path + ".lock"
	}
	return s
}

// sharedPath is the absolute path of a store that several instances can use, each
// with a data_dir of its own (decision D5).
func sharedPath(b *gobridge.BridgeSpec, path string) (string, error) {
	if path == "" {
		return "", errors.New("without options.path it lives in bridge.data_dir, which belongs to one instance")
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	dir, err := filepath.Abs(b.DataDir)
	if err != nil {
		return "", err
	}
	if rel, err := filepath.Rel(dir, abs); err == nil && filepath.IsLocal(rel) {
		return "", errors.New("its path is in bridge.data_dir, which belongs to one instance")
	}
	return abs, nil
}

// attach makes a store on the shared database of a place.
func attach[T any](s settings, make func(d *database) (T, error)) (T, error) {
	var none T
	d, err := share(s)
	if err != nil {
		return none, err
	}
	store, err := make(d)
	if err != nil {
		_ = d.release() // the first error says more
		return none, err
	}
	return store, nil
}
