package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/ncruces/go-sqlite3"

	"github.com/gobridge/gobridge"
)

// leaseFile is the default file of the leases, in bridge.data_dir.
const leaseFile = "leases.db"

// leaseWait bounds the wait for another process that writes, for callers without a
// deadline; answerTime is what is left of a deadline for the answer.
const (
	leaseWait  = 5 * time.Second
	answerTime = 10 * time.Millisecond
)

// LeaseOptions are the options of a lease store.
type LeaseOptions struct {
	Path string `yaml:"path" doc:"file of the store, its own; exclusive sessions need one that all instances share" default:"leases.db in bridge.data_dir" derived:"true"`
}

// LeaseKind is the kind "sqlite" of lease stores. Its file is shared by the processes
// of one machine (decisions C8 and D5).
func LeaseKind() *gobridge.LeaseKind {
	return &gobridge.LeaseKind{
		Name:    kindName,
		Options: func() any { return gobridge.SetDefaults(new(LeaseOptions)) },
		Shared: func(b *gobridge.BridgeSpec, options any) (string, error) {
			return sharedPath(b, options.(*LeaseOptions).Path)
		},
		Open: func(ctx context.Context, b *gobridge.BridgeSpec, s *gobridge.StoreSpec, env gobridge.Env) (gobridge.LeaseStore, error) {
			o, err := optionsOf[LeaseOptions](s, "lease store")
			if err != nil {
				return nil, err
			}
			path := o.Path
			if path == "" {
				path = filepath.Join(b.DataDir, leaseFile)
			}
			return openLeases(ctx, path, env.Logger)
		},
	}
}

// Leases is a lease store in a file of its own, which is small and is never locked
// for longer than one short transaction. Nothing of it is kept in memory, and there
// is no writer goroutine: a call is over when it returns.
//
// Taking and giving up a lease survives a loss of power. A renewal does not wait for
// the disk: what a power loss takes away are the beats of processes that have died
// with it, and a process that is stopped in the middle of a call keeps the others
// waiting for microseconds of its work, not for a sync.
type Leases struct {
	path string
	log  *slog.Logger

	turn   chan struct{} // capacity 1: whoever has put its token in uses what follows
	c      *conn         // nil: to be opened
	info   fs.FileInfo   // of the file that c has open
	full   bool          // c has synchronous = FULL
	closed bool
}

var _ gobridge.LeaseStore = (*Leases)(nil)

func openLeases(ctx context.Context, path string, log *slog.Logger) (*Leases, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("lease store %s: %w", path, err)
	}
	l := &Leases{path: path, log: log, turn: make(chan struct{}, 1)}
	if err := l.use(ctx, true, func(*conn) error { return nil }); err != nil {
		return nil, err
	}
	return l, nil
}

// Read implements gobridge.LeaseStore.
func (l *Leases) Read(ctx context.Context, key string) (rec gobridge.LeaseRecord, err error) {
	err = l.use(ctx, false, func(c *conn) error {
		rec, err = readLease(c, key)
		return err
	})
	return rec, err
}

// Take implements gobridge.LeaseStore.
func (l *Leases) Take(ctx context.Context, seen gobridge.LeaseRecord, holder string, ttl time.Duration) (gobridge.LeaseRecord, error) {
	taken := gobridge.LeaseRecord{Key: seen.Key, Holder: holder, Version: seen.Version + 1, TTL: ttl}
	err := l.change(ctx, true, func(c *conn) error {
		now, err := readLease(c, seen.Key)
		if err != nil {
			return err
		}
		if now.Version != seen.Version || now.Beat != seen.Beat || now.Holder != seen.Holder {
			return fmt.Errorf("take lease %s: %w", seen.Key, gobridge.ErrVersionMismatch)
		}
		return writeLease(c, taken)
	})
	return taken, err
}

// Renew implements gobridge.LeaseStore.
func (l *Leases) Renew(ctx context.Context, held gobridge.LeaseRecord) (gobridge.LeaseRecord, error) {
	err := l.change(ctx, false, func(c *conn) error {
		now, err := ownLease(c, "renew", held)
		if err != nil {
			return err
		}
		held.Beat = now.Beat + 1
		return writeLease(c, held)
	})
	return held, err
}

// Release implements gobridge.LeaseStore.
func (l *Leases) Release(ctx context.Context, held gobridge.LeaseRecord) error {
	return l.change(ctx, true, func(c *conn) error {
		now, err := ownLease(c, "release", held)
		if err != nil {
			return err
		}
		now.Holder = ""
		return writeLease(c, now)
	})
}

// Close implements gobridge.LeaseStore.
func (l *Leases) Close() error {
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	l.closed = true
	return l.disconnect()
}

func readLease(c *conn, key string) (gobridge.LeaseRecord, error) {
	rec := gobridge.LeaseRecord{Key: key}
	err := c.query("SELECT holder, version, beat, ttl FROM lease WHERE key = ?").text(key).rows(func(s *sqlite3.Stmt) error {
		rec.Holder = s.ColumnText(0)
		rec.Version, rec.Beat = uint64(s.ColumnInt64(1)), uint64(s.ColumnInt64(2))
		rec.TTL = time.Duration(s.ColumnInt64(3))
		return nil
	})
	return rec, err
}

// ownLease reads the record of a lease that is still held.
func ownLease(c *conn, what string, held gobridge.LeaseRecord) (gobridge.LeaseRecord, error) {
	now, err := readLease(c, held.Key)
	if err == nil && (now.Version != held.Version || now.Holder != held.Holder) {
		err = fmt.Errorf("%s lease %s: %w", what, held.Key, gobridge.ErrStaleFence)
	}
	return now, err
}

func writeLease(c *conn, rec gobridge.LeaseRecord) error {
	return c.query("REPLACE INTO lease (key, holder, version, beat, ttl) VALUES (?, ?, ?, ?, ?)").
		text(rec.Key).text(rec.Holder).int(int64(rec.Version)).int(int64(rec.Beat)).int(int64(rec.TTL)).exec()
}

// change runs f in a transaction. With durable its outcome survives a power loss.
func (l *Leases) change(ctx context.Context, durable bool, f func(c *conn) error) error {
	return l.use(ctx, durable, func(c *conn) error {
		if err := c.query("BEGIN IMMEDIATE").exec(); err != nil {
			return err
		}
		err := f(c)
		if err == nil {
			err = c.query("COMMIT").exec()
		}
		if err != nil && !c.GetAutocommit() {
			c.SetInterrupt(context.Background()) // not for what ends the transaction
			if e := c.query("ROLLBACK").exec(); e != nil {
				err = errors.Join(err, e)
			}
		}
		return err
	})
}

// use runs f on the connection, one call at a time, until ctx ends.
func (l *Leases) use(ctx context.Context, durable bool, f func(c *conn) error) error {
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("wait for the lease store: %w", context.Cause(ctx))
	}
	defer func() { <-l.turn }()
	if l.closed {
		return gobridge.ErrClosed
	}
	err := l.ready(ctx, durable)
	if err == nil {
		err = f(l.c)
		l.c.SetInterrupt(context.Background())
	}
	switch {
	case err == nil:
		return nil
	case !ofFile(err) && !damage(err):
		if _, typed := errors.AsType[*gobridge.Error](err); typed {
			return err
		}
	case !errors.Is(err, sqlite3.BUSY) && !errors.Is(err, sqlite3.INTERRUPT):
		// What a failed write left in memory is not to be trusted.
		if e := l.disconnect(); e != nil {
			l.log.Warn("lease store did not close cleanly", "path", l.path, "err", e)
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("lease store %s: %w", l.path, errors.Join(context.Cause(ctx), err))
	}
	return leaseOutage(l.path, err)
}

func leaseOutage(path string, err error) *gobridge.Error {
	e := outage(path, err)
	switch {
	case damage(err):
		e.Hint = "stop all instances that use the file, then move it away: it holds nothing that has to be kept"
	case errors.Is(err, sqlite3.BUSY):
		e.Hint = "another process has locked the file: one that is stopped must go on or be ended"
	}
	return e
}

// ready opens the file where it is not open, or is another one by now, and prepares
// the connection for one call.
func (l *Leases) ready(ctx context.Context, durable bool) error {
	if l.c != nil {
		// In a file that was removed or replaced each process would be alone.
		if info, err := os.Stat(l.path); err != nil || !os.SameFile(info, l.info) {
			l.log.Error("the file of the lease store was removed or replaced: opening it anew", "path", l.path)
			if err := l.disconnect(); err != nil {
				l.log.Warn("lease store did not close cleanly", "path", l.path, "err", err)
			}
		}
	}
	wait := leaseWait
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, max(time.Until(deadline)-answerTime, time.Millisecond))
	}
	if l.c == nil {
		if err := l.connect(ctx, wait); err != nil {
			return err
		}
	}
	if err := l.c.BusyTimeout(wait); err != nil {
		return err
	}
	if durable != l.full {
		level := "NORMAL"
		if durable {
			level = "FULL"
		}
		if err := l.c.Exec("PRAGMA synchronous = " + level); err != nil {
			return err
		}
		l.full = durable
	}
	l.c.SetInterrupt(ctx)
	return nil
}

func (l *Leases) connect(ctx context.Context, wait time.Duration) error {
	if err := os.MkdirAll(filepath.Dir(l.path), 0o750); err != nil {
		return err
	}
	if err := makePrivate(l.path); err != nil {
		return err
	}
	info, err := os.Stat(l.path)
	if err != nil {
		return err
	}
	c, err := connect(l.path, privateParams(l.path))
	if err != nil {
		return err
	}
	if err = c.BusyTimeout(wait); err == nil {
		err = patiently(ctx, wait, func() error { return c.Exec(pragmas + "PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 100;") })
	}
	if err == nil {
		err = migrate(c, l.path, &leasesSchema)
	}
	if err != nil {
		_ = c.close() // the first error says more
		return err
	}
	l.c, l.info, l.full = c, info, true
	return nil
}

func (l *Leases) disconnect() error {
	c := l.c
	l.c = nil
	return c.close()
}
