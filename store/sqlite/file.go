package sqlite

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/ncruces/go-sqlite3"

	"github.com/gobridge/gobridge"
)

// file is the part of a store that is about its file. It implements
// gobridge.FileStore.
type file struct {
	db     *database
	once   sync.Once
	closed atomic.Bool
	err    error
}

// Err returns why the store takes no writes at the moment, nil when it does.
func (f *file) Err() error { return f.db.Err() }

// close waits for what the store has given to the writer and lets go of the
// database.
func (f *file) close(p part) error {
	f.once.Do(func() {
		f.closed.Store(true)
		// Its outcome is that of nothing: only the order counts.
		_ = f.db.do(context.Background(), false, func(*conn) (func(), error) { return nil, nil })
		f.db.leave(p)
		f.err = f.db.release()
	})
	return f.err
}

// do runs f in a transaction of the writer, unless the store is closed.
func (f *file) do(ctx context.Context, grows bool, fn func(c *conn) (undo func(), err error)) error {
	if f.closed.Load() {
		return gobridge.ErrClosed
	}
	return f.db.do(ctx, grows, fn)
}

// Path implements gobridge.FileStore.
func (f *file) Path() string { return f.db.path }

// Salvaged implements gobridge.FileStore.
func (f *file) Salvaged() *gobridge.Salvage { return f.db.salvage.Load() }

// Acknowledge implements gobridge.FileStore.
func (f *file) Acknowledge(ctx context.Context) error {
	err := f.db.do(ctx, false, func(c *conn) (func(), error) {
		return nil, c.query("DELETE FROM meta WHERE name = 'salvage'").exec()
	})
	if err == nil {
		f.db.salvage.Store(nil)
	}
	return err
}

// maxProblems bounds the list of a verification.
const maxProblems = 20

// Verify implements gobridge.FileStore. It reads through a connection of its own.
func (f *file) Verify(ctx context.Context) (*gobridge.Verification, error) {
	v := &gobridge.Verification{Path: f.db.path, Problems: []string{}}
	c, err := f.db.dial("query_only = ON")
	if err != nil {
		return nil, outage(f.db.path, err)
	}
	defer c.close()
	c.SetInterrupt(ctx)
	problem := func(text string) {
		if len(v.Problems) < maxProblems {
			v.Problems = append(v.Problems, text)
		}
	}
	// One transaction: everything is seen at the same moment.
	if err := c.query("BEGIN").exec(); err != nil {
		return nil, outage(f.db.path, err)
	}
	steps := []func() error{
		func() error {
			return c.query(fmt.Sprintf("PRAGMA integrity_check(%d)", maxProblems)).rows(func(s *sqlite3.Stmt) error {
				if text := s.ColumnText(0); text != "ok" {
					problem(text)
				}
				return nil
			})
		},
		func() error {
			var r gobridge.OutboxRecord
			return c.query("SELECT o.seq, r.record FROM outbox o LEFT JOIN outbox_record r USING (seq)").
				rows(func(s *sqlite3.Stmt) error {
					if err := decodeRecord(s.ColumnRawBlob(1), &r); err != nil {
						problem(fmt.Sprintf("record %d: %v", s.ColumnInt64(0), err))
					} else {
						v.Records++
					}
					return nil
				})
		},
		func() error {
			return c.query("SELECT id, entry FROM dlq").rows(func(s *sqlite3.Stmt) error {
				if _, err := decodeLetter(s.ColumnRawBlob(1)); err != nil {
					problem(fmt.Sprintf("dead letter %s: %v", s.ColumnText(0), err))
				} else {
					v.DeadLetters++
				}
				return nil
			})
		},
	}
	for _, step := range steps {
		err := step()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			problem(err.Error())
		}
	}
	v.Salvage = f.Salvaged()
	return v, nil
}

// Backup implements gobridge.FileStore.
func (f *file) Backup(ctx context.Context, path string) error {
	if _, err := os.Stat(path); err == nil {
		return fmt.Errorf("backup to %s: the file exists already", path)
	} else if !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("backup: %w", err)
	}
	c, err := f.db.dial("query_only = OFF")
	if err != nil {
		return outage(f.db.path, err)
	}
	defer c.close()
	c.SetInterrupt(ctx)
	if err := c.query("VACUUM INTO ?").text(path).exec(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("backup to %s: %w", path, err)
	}
	if err := syncFile(path); err != nil {
		return fmt.Errorf("backup to %s: %w", path, err)
	}
	return nil
}

// syncFile makes a file and its name durable.
func syncFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func metaNumber(c *conn, name string) (int64, error) {
	v, found, err := c.query("SELECT value FROM meta WHERE name = ?").text(name).number()
	if err == nil && !found {
		err = fmt.Errorf("meta has no %s: %w", name, gobridge.ErrDamaged)
	}
	return v, err
}

// metaText returns "" for a missing value.
func metaText(c *conn, name string) (text string, err error) {
	err = c.query("SELECT value FROM meta WHERE name = ?").text(name).rows(func(s *sqlite3.Stmt) error {
		text = s.ColumnText(0)
		return nil
	})
	return text, err
}

// fileURI is the SQLite URI of a path.
func fileURI(path string, params url.Values) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	slashed := filepath.ToSlash(abs)
	if slashed[0] != '/' { // a drive of Windows
		slashed = "/" + slashed
	}
	return (&url.URL{Scheme: "file", OmitHost: true, Path: slashed, RawQuery: params.Encode()}).String(), nil
}
