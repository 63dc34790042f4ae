package sqlite

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/ncruces/go-sqlite3"

	"github.com/gobridge/gobridge"
)

// DLQ is the dead-letter queue in a database file.
type DLQ struct {
	file
	retention  time.Duration
	maxEntries int
	maxBytes   int64

	entries atomic.Int64
	bytes   int64 // the writer goroutine's, as are the following
	oldest  time.Time
	scratch []byte
}

var (
	_ gobridge.DLQ       = (*DLQ)(nil)
	_ gobridge.FileStore = (*DLQ)(nil)
)

func newDLQ(ctx context.Context, d *database, o *DLQOptions) (*DLQ, error) {
	q := &DLQ{file: file{db: d}, retention: o.Retention, maxEntries: o.MaxEntries, maxBytes: int64(o.MaxBytes)}
	if err := d.join(ctx, q); err != nil {
		return nil, err
	}
	return q, nil
}

func (q *DLQ) label() string { return "dlq" }
func (q *DLQ) unload()       {}

func (q *DLQ) load(c *conn) error {
	err := c.query("SELECT count(*), coalesce(sum(bytes), 0) FROM dlq").rows(func(s *sqlite3.Stmt) error {
		q.entries.Store(s.ColumnInt64(0))
		q.bytes = s.ColumnInt64(1)
		return nil
	})
	if err != nil {
		return err
	}
	return q.loadOldest(c)
}

func (q *DLQ) loadOldest(c *conn) error {
	at, found, err := c.query("SELECT last_at FROM dlq ORDER BY last_at LIMIT 1").number()
	q.oldest = time.Time{}
	if found {
		q.oldest = time.Unix(0, at)
	}
	return err
}

// change counts entries and bytes and returns what takes that back.
func (q *DLQ) change(entries, bytes int64) (undo func()) {
	q.entries.Add(entries)
	q.bytes += bytes
	return func() {
		q.entries.Add(-entries)
		q.bytes -= bytes
	}
}

// Put implements gobridge.DLQ.
func (q *DLQ) Put(ctx context.Context, l *gobridge.DeadLetter) (updated bool, err error) {
	if n := len(l.Envelope.Payload); n > maxRecord {
		return false, &gobridge.Error{
			Code: gobridge.CodePayloadTooLarge, Class: gobridge.ClassRejected, Op: "dead-letter queue",
			Err: fmt.Errorf("payload of %d bytes is over the limit of %d", n, maxRecord),
		}
	}
	// A copy, and results of their own: the writer may still be at work when ctx has
	// ended the wait.
	fresh, found := *l, false
	err = q.do(ctx, true, func(c *conn) (func(), error) {
		old, err := q.find(c, "key", fresh.Key)
		if found = old != nil; err != nil {
			return nil, err
		}
		if old != nil {
			old.Category, old.Code, old.LastError, old.LastAt = fresh.Category, fresh.Code, fresh.LastError, fresh.LastAt
			old.Attempts += fresh.Attempts
			return q.rewrite(c, old)
		}
		id, err := uuid.NewV7()
		if err != nil {
			return nil, fmt.Errorf("make a dead letter's id: %w", err)
		}
		fresh.ID = id.String()
		return q.insert(c, &fresh)
	})
	return err == nil && found, err
}

// insert stores a new entry, within the bounds.
func (q *DLQ) insert(c *conn, l *gobridge.DeadLetter) (undo func(), err error) {
	q.scratch = appendLetter(q.scratch[:0], l)
	size, n := int64(len(q.scratch)), q.entries.Load()
	if q.maxEntries > 0 && n >= int64(q.maxEntries) {
		return nil, fmt.Errorf("dead-letter queue holds max_entries (%d): %w", q.maxEntries, gobridge.ErrFull)
	}
	if q.maxBytes > 0 && q.bytes+size > q.maxBytes {
		return nil, fmt.Errorf("dead-letter queue holds %d bytes of max_bytes (%d): %w", q.bytes, q.maxBytes, gobridge.ErrFull)
	}
	err = insertLetter(c, l, q.scratch)
	if q.oldest.IsZero() || l.LastAt.Before(q.oldest) {
		q.oldest = l.LastAt
	}
	return q.change(1, size), err
}

func insertLetter(c *conn, l *gobridge.DeadLetter, entry []byte) error {
	return c.query("INSERT INTO dlq (id, key, route, category, code, last_at, bytes, entry) VALUES (?, ?, ?, ?, ?, ?, ?, ?)").
		text(l.ID).text(l.Key).text(l.RouteID).text(string(l.Category)).text(string(l.Code)).
		int(nanos(l.LastAt)).int(int64(len(entry))).blob(entry).exec()
}

// rewrite replaces an entry. It may pass the bounds: refusing would lose the news of
// a message that is here anyway.
func (q *DLQ) rewrite(c *conn, l *gobridge.DeadLetter) (undo func(), err error) {
	before, _, err := c.query("SELECT bytes FROM dlq WHERE id = ?").text(l.ID).number()
	if err != nil {
		return nil, err
	}
	q.scratch = appendLetter(q.scratch[:0], l)
	size := int64(len(q.scratch))
	err = c.query("UPDATE dlq SET category = ?, code = ?, last_at = ?, bytes = ?, entry = ? WHERE id = ?").
		text(string(l.Category)).text(string(l.Code)).int(nanos(l.LastAt)).int(size).blob(q.scratch).text(l.ID).exec()
	return q.change(0, size-before), err
}

// CountReplay implements gobridge.DLQ.
func (q *DLQ) CountReplay(ctx context.Context, id string) (int, error) {
	replays := 0
	err := q.do(ctx, true, func(c *conn) (func(), error) {
		l, err := q.find(c, "id", id)
		if err != nil {
			return nil, err
		}
		if l == nil {
			return nil, notFound(id)
		}
		l.Replays++
		replays = l.Replays
		return q.rewrite(c, l)
	})
	if err != nil {
		return 0, err
	}
	return replays, nil
}

func notFound(id string) error { return fmt.Errorf("dead letter %q: %w", id, gobridge.ErrNotFound) }

// find returns the entry of an id or key, nil without one.
func (q *DLQ) find(c *conn, column, value string) (l *gobridge.DeadLetter, err error) {
	err = c.query("SELECT entry FROM dlq WHERE " + column + " = ?").text(value).rows(func(s *sqlite3.Stmt) error {
		l, err = decodeLetter(slices.Clone(s.ColumnRawBlob(0)))
		return err
	})
	return l, err
}

// Get implements gobridge.DLQ.
func (q *DLQ) Get(ctx context.Context, id string) (l *gobridge.DeadLetter, err error) {
	err = q.db.read(ctx, func(c *conn) (err error) {
		l, err = q.find(c, "id", id)
		return err
	})
	if err == nil && l == nil {
		err = notFound(id)
	}
	return l, err
}

// The bounds of one page of List.
const (
	letterPage      = 100
	letterPageBytes = 4 << 20
)

// List implements gobridge.DLQ. It reads a page at a time, so that a slow consumer
// holds nothing up; entries put meanwhile may or may not appear.
func (q *DLQ) List(ctx context.Context, f gobridge.DLQFilter) iter.Seq2[*gobridge.DeadLetter, error] {
	return func(yield func(*gobridge.DeadLetter, error) bool) {
		for left := f.Limit; ; {
			page, more, err := q.page(ctx, &f)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, l := range page {
				if !yield(l, nil) {
					return
				}
				if left--; left == 0 {
					return
				}
			}
			if !more {
				return
			}
			f.After = page[len(page)-1].ID
		}
	}
}

// page reads the entries after f.After; more tells that there may be others.
func (q *DLQ) page(ctx context.Context, f *gobridge.DLQFilter) (page []*gobridge.DeadLetter, more bool, err error) {
	sql := "SELECT entry FROM dlq WHERE id > ?"
	var texts []string
	var ints []int64
	equal := func(column, value string) {
		if value != "" {
			sql += " AND " + column + " = ?"
			texts = append(texts, value)
		}
	}
	equal("route", f.RouteID)
	equal("category", string(f.Category))
	equal("code", string(f.Code))
	if !f.Since.IsZero() {
		sql += " AND last_at >= ?"
		ints = append(ints, f.Since.UnixNano())
	}
	if !f.Before.IsZero() {
		sql += " AND last_at < ?"
		ints = append(ints, f.Before.UnixNano())
	}
	sql += " ORDER BY id LIMIT ?"
	err = q.db.read(ctx, func(c *conn) error {
		page, more = nil, false
		size := 0
		use := c.query(sql).text(f.After)
		for _, v := range texts {
			use.text(v)
		}
		for _, v := range ints {
			use.int(v)
		}
		err := use.int(letterPage).rows(func(s *sqlite3.Stmt) error {
			l, err := decodeLetter(slices.Clone(s.ColumnRawBlob(0)))
			if err != nil {
				return err
			}
			page = append(page, l)
			if size += len(l.Envelope.Payload); size >= letterPageBytes {
				return errEnough
			}
			return nil
		})
		more = len(page) == letterPage || errors.Is(err, errEnough)
		if errors.Is(err, errEnough) {
			return nil
		}
		return err
	})
	return page, more, err
}

// Delete implements gobridge.DLQ.
func (q *DLQ) Delete(ctx context.Context, ids ...string) (int, error) {
	ids, deleted := slices.Clone(ids), 0
	err := q.do(ctx, false, func(c *conn) (func(), error) {
		deleted = 0
		var undos []func()
		undo := func() {
			for _, u := range undos {
				u()
			}
		}
		for _, id := range ids {
			size, found, err := c.query("SELECT bytes FROM dlq WHERE id = ?").text(id).number()
			if err != nil {
				return undo, err
			}
			if !found {
				continue
			}
			if err := c.query("DELETE FROM dlq WHERE id = ?").text(id).exec(); err != nil {
				return undo, err
			}
			undos = append(undos, q.change(-1, -size))
			deleted++
		}
		return undo, nil
	})
	if err != nil {
		return 0, err
	}
	return deleted, nil
}

// Depth implements gobridge.DLQ.
func (q *DLQ) Depth(context.Context) (int, error) { return int(q.entries.Load()), nil }

// Close implements gobridge.DLQ.
func (q *DLQ) Close() error { return q.close(q) }

func (q *DLQ) due() time.Time {
	if q.retention == 0 || q.oldest.IsZero() {
		return time.Time{}
	}
	return q.oldest.Add(q.retention + spread(q.retention))
}

func (q *DLQ) sweep(c *conn, now time.Time, budget int) (func(), error) {
	before, bytes := q.oldest, int64(0)
	// Dead letters can be large: a fraction of the rows that are small elsewhere.
	n := int64(0)
	err := c.query("DELETE FROM dlq WHERE n IN (SELECT n FROM dlq WHERE last_at < ? ORDER BY last_at LIMIT ?) RETURNING bytes").
		int(now.Add(-q.retention).UnixNano()).int(int64(budget/16 + 1)).rows(func(s *sqlite3.Stmt) error {
		n++
		bytes += s.ColumnInt64(0)
		return nil
	})
	counted := q.change(-n, -bytes)
	undo := func() {
		counted()
		q.oldest = before
	}
	if err != nil {
		return undo, err
	}
	return undo, q.loadOldest(c)
}
