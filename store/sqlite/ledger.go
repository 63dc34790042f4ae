package sqlite

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/ncruces/go-sqlite3"

	"github.com/gobridge/gobridge"
)

// The bounds of a ledger (decision B5).
const (
	ledgerMax = 100_000
	ledgerAge = 7 * 24 * time.Hour
)

// Ledger is the replay ledger in a database file. It forgets the message that was
// charged longest ago when it is full, and those older than seven days.
type Ledger struct {
	file
	max int

	messages atomic.Int64
	oldest   time.Time // the writer goroutine's
}

var (
	_ gobridge.Ledger    = (*Ledger)(nil)
	_ gobridge.FileStore = (*Ledger)(nil)
)

func newLedger(ctx context.Context, d *database) (*Ledger, error) {
	l := &Ledger{file: file{db: d}, max: ledgerMax}
	if err := d.join(ctx, l); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *Ledger) label() string { return "replay_ledger" }
func (l *Ledger) unload()       {}

func (l *Ledger) load(c *conn) error {
	n, _, err := c.query("SELECT count(*) FROM ledger").number()
	if err != nil {
		return err
	}
	l.messages.Store(n)
	return l.loadOldest(c)
}

func (l *Ledger) loadOldest(c *conn) error {
	at, found, err := c.query("SELECT at FROM ledger ORDER BY at LIMIT 1").number()
	l.oldest = time.Time{}
	if found {
		l.oldest = time.Unix(0, at)
	}
	return err
}

// Charge implements gobridge.Ledger.
func (l *Ledger) Charge(ctx context.Context, k gobridge.LedgerKey) (int, error) {
	if k.RouteID == "" || k.EnvelopeID == "" {
		return 0, errors.New("replay ledger: a key needs a route and an envelope id")
	}
	attempts := 0
	err := l.do(ctx, true, func(c *conn) (func(), error) {
		now := time.Now()
		before, oldest := l.messages.Load(), l.oldest
		undo := func() {
			l.messages.Store(before)
			l.oldest = oldest
		}
		err := c.query(`INSERT INTO ledger VALUES (?, ?, 1, ?)
			ON CONFLICT DO UPDATE SET attempts = attempts + 1, at = excluded.at RETURNING attempts`).
			text(k.RouteID).text(k.EnvelopeID).int(now.UnixNano()).rows(func(s *sqlite3.Stmt) error {
			attempts = s.ColumnInt(0)
			return nil
		})
		if err != nil || attempts > 1 {
			return undo, err
		}
		l.messages.Add(1)
		if l.oldest.IsZero() {
			l.oldest = now
		}
		if l.messages.Load() <= int64(l.max) {
			return undo, nil
		}
		err = c.query("DELETE FROM ledger WHERE at = (SELECT min(at) FROM ledger)").exec()
		l.messages.Add(-c.Changes())
		return undo, err
	})
	if err != nil {
		return 0, err
	}
	return attempts, nil
}

// Remove implements gobridge.Ledger.
func (l *Ledger) Remove(ctx context.Context, k gobridge.LedgerKey) error {
	return l.do(ctx, false, func(c *conn) (func(), error) {
		if err := c.query("DELETE FROM ledger WHERE route = ? AND envelope = ?").text(k.RouteID).text(k.EnvelopeID).exec(); err != nil {
			return nil, err
		}
		n := c.Changes()
		l.messages.Add(-n)
		return func() { l.messages.Add(n) }, nil
	})
}

// Len implements gobridge.Ledger.
func (l *Ledger) Len(context.Context) (int, error) { return int(l.messages.Load()), nil }

// Close implements gobridge.Ledger.
func (l *Ledger) Close() error { return l.close(l) }

func (l *Ledger) due() time.Time {
	if l.oldest.IsZero() {
		return time.Time{}
	}
	return l.oldest.Add(ledgerAge + spread(ledgerAge))
}

func (l *Ledger) sweep(c *conn, now time.Time, budget int) (func(), error) {
	oldest := l.oldest
	err := c.query("DELETE FROM ledger WHERE at IN (SELECT at FROM ledger WHERE at < ? ORDER BY at LIMIT ?)").
		int(now.Add(-ledgerAge).UnixNano()).int(int64(budget)).exec()
	if err != nil {
		return nil, err
	}
	n := c.Changes()
	l.messages.Add(-n)
	undo := func() {
		l.messages.Add(n)
		l.oldest = oldest
	}
	return undo, l.loadOldest(c)
}
