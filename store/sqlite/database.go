package sqlite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ncruces/go-sqlite3"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/metric"
)

// settings say how a database is opened.
type settings struct {
	path string
	// lock is the file whose lock makes this process the owner; empty where several
	// processes may share the database.
	lock    string
	log     *slog.Logger
	metrics *metric.Registry
	// uri and pragmas go to every connection after the package's own. Tests put a VFS,
	// a page limit or a weaker synchronous there.
	uri     url.Values
	pragmas string
}

// database is one file, shared by the stores in it: one writer goroutine with its
// connection, one connection for reading.
type database struct {
	settings
	refs  int // guarded by shared.mu
	owner *dirLock

	queue   queue
	stopped chan struct{}
	w       *conn // the writer goroutine's

	opened os.FileInfo // the file that the connections have; the writer goroutine's

	readMu sync.Mutex
	r      *conn // nil while the file cannot be opened

	partsMu sync.Mutex
	parts   []part

	down     atomic.Pointer[gobridge.Error]
	backoff  time.Duration // the writer goroutine's, as is probeAt
	probeAt  time.Time
	salvage  atomic.Pointer[gobridge.Salvage]
	rebuilds atomic.Uint64
	fence    atomic.Int64 // the highest one given out by this process
}

// part is one store in a database. Its methods are called by the writer goroutine,
// or before that runs.
type part interface {
	// label is the store's label in metrics.
	label() string
	// load reads the state that the part keeps in memory, at open and after a salvage.
	load(c *conn) error
	// unload takes back the first load: it was rolled back.
	unload()
	// due is when the part next has something to sweep; zero is never.
	due() time.Time
	// sweep removes what outlived its retention, about budget rows at most, in the
	// running transaction. undo takes back its changes in memory.
	sweep(c *conn, now time.Time, budget int) (undo func(), err error)
}

// shared holds the open databases by path: stores of one file find each other here,
// because the kinds open them one by one.
var shared = struct {
	mu   sync.Mutex
	open map[string]*database
}{open: map[string]*database{}}

// share returns the open database at that path, or opens it. Each share needs one
// release.
func share(s settings) (*database, error) {
	abs, err := filepath.Abs(s.path)
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", s.path, err)
	}
	s.path = abs
	shared.mu.Lock()
	defer shared.mu.Unlock()
	d := shared.open[abs]
	if d == nil {
		if d, err = open(s); err != nil {
			return nil, err
		}
		shared.open[abs] = d
	} else if d.owner == nil && s.lock != "" {
		if d.owner, err = acquire(s.lock); err != nil {
			return nil, err
		}
	}
	d.refs++
	return d, nil
}

// release closes the database after its last user.
func (d *database) release() error {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if d.refs--; d.refs > 0 {
		return nil
	}
	delete(shared.open, d.path)
	return d.close()
}

// open opens the file, salvages it when it is damaged, and starts the writer.
func open(s settings) (*database, error) {
	if err := os.MkdirAll(filepath.Dir(s.path), 0o750); err != nil {
		return nil, refused("make the directory of the store", s.path, err)
	}
	d := &database{settings: s, stopped: make(chan struct{})}
	d.queue.wake = make(chan struct{}, 1)
	if s.lock != "" {
		var err error
		if d.owner, err = acquire(s.lock); err != nil {
			return nil, err
		}
	}
	if d.owner != nil {
		d.removeScratch()
	}
	err := d.connect()
	if damage(err) {
		err = d.rebuild(err)
	}
	if err != nil {
		d.owner.release()
		if ofFile(err) {
			err = cannotBegin(s.path, d.named(err))
		}
		return nil, err
	}
	go d.run()
	return d, nil
}

// removeScratch removes what a killed process left beside the file: a copy that was
// being sent, a probe for free space.
func (d *database) removeScratch() {
	dir := filepath.Dir(d.path)
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), gobridge.ScratchPrefix(d.path)) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	if err != nil {
		d.log.Warn("what an earlier process left beside the store stays", "path", d.path, "err", err)
	}
}

// connect opens both connections and brings the schema up to date. On an error none
// is open.
func (d *database) connect() (err error) {
	if err := finishSalvage(d.path); err != nil {
		return fmt.Errorf("finish the salvage of the store: %w", err)
	}
	if err := makePrivate(d.path); err != nil {
		return refused("open the store", d.path, err)
	}
	if d.owner != nil { // nobody else has it open
		if err := checkLog(d.path); err != nil {
			return fmt.Errorf("open the store: %w", err)
		}
	}
	defer func() {
		if err != nil {
			d.disconnect()
		}
	}()
	if d.w, err = d.dial("synchronous = FULL"); err != nil {
		return err
	}
	if err := migrate(d.w, d.path, &storesSchema); err != nil {
		return err
	}
	if err := d.loadSalvage(); err != nil {
		return err
	}
	if d.r, err = d.dial("query_only = ON"); err != nil {
		return err
	}
	d.opened, err = os.Stat(d.path)
	return err
}

// busyWait bounds the wait for another process that uses the file.
const busyWait = 5 * time.Second

// patiently runs f again while another process is in its way. The busy handler of
// SQLite is not asked when two processes turn a new file to WAL at once.
func patiently(ctx context.Context, wait time.Duration, f func() error) error {
	for deadline := time.Now().Add(wait); ; {
		err := f()
		if !errors.Is(err, sqlite3.BUSY) || ctx.Err() != nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

// errGone says that the open file has lost its name: it takes what is written to it,
// and no later process would find that.
var errGone = errors.New("the file was removed or replaced while it is in use")

// present returns errGone unless the open file is the one at its path.
func (d *database) present() error {
	if now, err := os.Stat(d.path); err == nil && os.SameFile(now, d.opened) || err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return errGone
}

// dial opens one connection.
func (d *database) dial(last string) (*conn, error) {
	c, err := connect(d.path, d.params())
	if err != nil {
		return nil, err
	}
	if err = c.BusyTimeout(busyWait); err == nil {
		err = patiently(context.Background(), busyWait, func() error { return c.Exec(pragmas + "PRAGMA " + last + ";" + d.pragmas) })
	}
	if err != nil {
		_ = c.close() // the first error says more
		return nil, err
	}
	return c, nil
}

// params are the URI parameters of a connection.
func (d *database) params() url.Values {
	params := privateParams(d.path)
	maps.Copy(params, d.uri)
	return params
}

// privateParams make the files of SQLite as private as the database.
func privateParams(path string) url.Values { return url.Values{"modeof": {path}} }

// makePrivate makes a file that is not there yet, for its owner alone: it will hold
// messages.
func makePrivate(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_ = f.Close() // nothing was written
	return syncDir(filepath.Dir(path))
}

// disconnect closes both connections. A failure to close leaves nothing to do: what
// was committed is in the file.
func (d *database) disconnect() {
	for _, c := range []**conn{&d.r, &d.w} {
		if err := (*c).close(); err != nil {
			d.log.Warn("store did not close cleanly", "path", d.path, "err", err)
		}
		*c = nil
	}
}

// close ends the writer, after all that waits for it, and closes the file.
func (d *database) close() error {
	d.queue.close()
	<-d.stopped
	d.readMu.Lock()
	defer d.readMu.Unlock()
	err := d.r.close()
	d.r = nil
	if err2 := d.w.close(); err == nil {
		err = err2
	}
	d.owner.release()
	if err != nil {
		return fmt.Errorf("close the store %s: %w", d.path, err)
	}
	return nil
}

// join adds a store to the database and loads its state.
func (d *database) join(ctx context.Context, p part) error {
	err := d.do(ctx, true, func(c *conn) (func(), error) { return p.unload, p.load(c) })
	if err != nil {
		return err
	}
	d.partsMu.Lock()
	d.parts = append(d.parts, p)
	d.partsMu.Unlock()
	d.queue.signal() // something may be due
	if n := d.rebuilds.Load(); n > 0 {
		d.metrics.Counter(metric.StoreSalvaged, p.label()).Add(n)
	}
	return nil
}

func (d *database) leave(p part) {
	d.partsMu.Lock()
	defer d.partsMu.Unlock()
	for i := range d.parts {
		if d.parts[i] == p {
			d.parts = append(d.parts[:i:i], d.parts[i+1:]...)
			return
		}
	}
}

func (d *database) allParts() []part {
	d.partsMu.Lock()
	defer d.partsMu.Unlock()
	return d.parts[:len(d.parts):len(d.parts)]
}

// Err returns why no writes are taken at the moment.
func (d *database) Err() error {
	if e := d.down.Load(); e != nil {
		return e
	}
	return nil
}

// read runs f on the reading connection. A damaged file is salvaged and f runs
// again, so it must begin afresh each time.
func (d *database) read(ctx context.Context, f func(c *conn) error) error {
	for range 2 {
		before := d.rebuilds.Load()
		err := d.readOnce(ctx, f)
		if !damage(err) {
			return err
		}
		if err := d.repair(ctx, before, err); err != nil {
			return err
		}
	}
	return outage(d.path, errors.New("the file is damaged again and again"))
}

func (d *database) readOnce(ctx context.Context, f func(c *conn) error) error {
	d.readMu.Lock()
	defer d.readMu.Unlock()
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if d.r == nil {
		if err := d.Err(); err != nil {
			return err
		}
		return gobridge.ErrClosed
	}
	d.r.SetInterrupt(ctx)
	err := f(d.r)
	d.r.SetInterrupt(context.Background())
	switch {
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	case ofFile(err) && !damage(err):
		return outage(d.path, err)
	}
	return err
}

// loadSalvage reads the salvage that waits for its acknowledgement.
func (d *database) loadSalvage() error {
	d.salvage.Store(nil)
	text, err := metaText(d.w, "salvage")
	if err != nil || text == "" {
		return err
	}
	s := new(gobridge.Salvage)
	if err := json.Unmarshal([]byte(text), s); err != nil {
		return fmt.Errorf("report of the last salvage: %w", err)
	}
	d.salvage.Store(s)
	return nil
}

// syncDir makes the names in a directory durable.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil && !errors.Is(err, errors.ErrUnsupported) && !noDirSync {
		return err
	}
	return nil
}
