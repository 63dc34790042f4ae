package sqlite

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ncruces/go-sqlite3"

	"github.com/gobridge/gobridge"
)

// History is the managed subscription history in a database file.
type History struct{ file }

var (
	_ gobridge.History   = (*History)(nil)
	_ gobridge.FileStore = (*History)(nil)
)

func newHistory(ctx context.Context, d *database) (*History, error) {
	h := &History{file{db: d}}
	if err := d.join(ctx, h); err != nil {
		return nil, err
	}
	return h, nil
}

func (h *History) label() string    { return "managed_subscriptions" }
func (h *History) load(*conn) error { return nil }
func (h *History) unload()          {}
func (h *History) due() time.Time   { return time.Time{} }

func (h *History) sweep(*conn, time.Time, int) (func(), error) { return nil, nil }

// Load implements gobridge.History.
func (h *History) Load(ctx context.Context, k gobridge.HistoryKey) (filters []string, known bool, err error) {
	err = h.db.read(ctx, func(c *conn) error {
		filters, known = nil, false
		return c.query("SELECT filter FROM history WHERE session = ? AND client = ? ORDER BY filter").
			text(k.SessionID).text(k.ClientID).rows(func(s *sqlite3.Stmt) error {
			known = true
			if filter := s.ColumnText(0); filter != "" {
				filters = append(filters, filter)
			}
			return nil
		})
	})
	return filters, known, err
}

// Remember implements gobridge.History.
func (h *History) Remember(ctx context.Context, k gobridge.HistoryKey, filters ...string) error {
	return h.write(ctx, true, k, filters, "INSERT OR IGNORE INTO history VALUES (?, ?, ?)", func(c *conn) error {
		return baseline(c, k)
	})
}

// Forget implements gobridge.History.
func (h *History) Forget(ctx context.Context, k gobridge.HistoryKey, filters ...string) error {
	return h.write(ctx, false, k, filters, "DELETE FROM history WHERE session = ? AND client = ? AND filter = ?", nil)
}

// Reset implements gobridge.History.
func (h *History) Reset(ctx context.Context, k gobridge.HistoryKey) error {
	return h.do(ctx, true, func(c *conn) (func(), error) {
		err := c.query("DELETE FROM history WHERE session = ? AND client = ?").text(k.SessionID).text(k.ClientID).exec()
		if err != nil {
			return nil, err
		}
		return nil, baseline(c, k)
	})
}

// baseline makes it known that the history of the session begins here.
func baseline(c *conn, k gobridge.HistoryKey) error {
	return c.query("INSERT OR IGNORE INTO history VALUES (?, ?, '')").text(k.SessionID).text(k.ClientID).exec()
}

// write runs the statement once for each filter.
func (h *History) write(ctx context.Context, grows bool, k gobridge.HistoryKey, filters []string, sql string, first func(c *conn) error) error {
	if slices.Contains(filters, "") {
		return errors.New("managed subscription history: an empty filter")
	}
	filters = slices.Clone(filters)
	return h.do(ctx, grows, func(c *conn) (func(), error) {
		if first != nil {
			if err := first(c); err != nil {
				return nil, err
			}
		}
		for _, f := range filters {
			if err := c.query(sql).text(k.SessionID).text(k.ClientID).text(f).exec(); err != nil {
				return nil, err
			}
		}
		return nil, nil
	})
}

// Close implements gobridge.History.
func (h *History) Close() error { return h.close(h) }
