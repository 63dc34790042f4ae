package sqlite

import (
	"net/url"

	"github.com/ncruces/go-sqlite3"
)

// conn is one connection with its prepared statements. It belongs to one goroutine
// at a time.
type conn struct {
	*sqlite3.Conn
	prepared map[string]*sqlite3.Stmt
	current  query
	// fenceSeen numbers the moments at which the fence may have changed since it was
	// last read: each begin of a transaction, each raise.
	fenceSeen uint64
}

// pragmas hold for every connection. FULL makes a commit survive a power loss.
const pragmas = `
PRAGMA journal_mode = WAL;
PRAGMA temp_store = MEMORY;
PRAGMA cache_size = -4096;
PRAGMA wal_autocheckpoint = 2000;
`

// connect opens a connection. params are those of an SQLite URI.
func connect(path string, params url.Values) (*conn, error) {
	uri, err := fileURI(path, params)
	if err != nil {
		return nil, err
	}
	c, err := sqlite3.Open(uri)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, prepared: map[string]*sqlite3.Stmt{}}, nil
}

// close finalizes the statements and closes the connection.
func (c *conn) close() error {
	if c == nil {
		return nil
	}
	for _, s := range c.prepared {
		_ = s.Close() // repeats the error of the last step
	}
	clear(c.prepared)
	return c.Close()
}

// query is one use of a prepared statement: parameters in order, then exec or
// rows. It is valid until the connection's next query.
type query struct {
	stmt *sqlite3.Stmt
	n    int
	err  error
}

// query begins a use of the statement, which it prepares the first time.
func (c *conn) query(sql string) *query {
	s := c.prepared[sql]
	if s == nil {
		var err error
		if s, _, err = c.PrepareFlags(sql, sqlite3.PREPARE_PERSISTENT); err != nil {
			c.current = query{err: err}
			return &c.current
		}
		c.prepared[sql] = s
	}
	c.current = query{stmt: s}
	return &c.current
}

func (q *query) int(v int64) *query {
	if q.err == nil {
		q.n++
		q.err = q.stmt.BindInt64(q.n, v)
	}
	return q
}

func (q *query) text(v string) *query {
	if q.err == nil {
		q.n++
		q.err = q.stmt.BindText(q.n, v)
	}
	return q
}

// blob binds bytes; nil is NULL.
func (q *query) blob(v []byte) *query {
	if q.err == nil {
		q.n++
		q.err = q.stmt.BindBlob(q.n, v)
	}
	return q
}

// exec runs the statement to its end.
func (q *query) exec() error {
	if q.err != nil {
		return q.err
	}
	return q.stmt.Exec()
}

// rows calls row for each row, until it returns an error. Nothing that row keeps
// may point into the statement, and row must not use the same statement again.
func (q *query) rows(row func(s *sqlite3.Stmt) error) error {
	if q.err != nil {
		return q.err
	}
	s := q.stmt
	for s.Step() {
		err := row(s)
		if err == nil {
			err = s.Err() // of the column functions
		}
		if err != nil {
			_ = s.Reset()
			return err
		}
	}
	return s.Reset()
}

// number returns the integer in the first column of the first row; found is false
// without a row.
func (q *query) number() (v int64, found bool, err error) {
	err = q.rows(func(s *sqlite3.Stmt) error {
		v, found = s.ColumnInt64(0), true
		return nil
	})
	return v, found, err
}
