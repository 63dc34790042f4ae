package sqlite

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ncruces/go-sqlite3"

	"github.com/gobridge/gobridge"
)

// maxGroup bounds the jobs of one transaction, and with them the wait of the first.
const maxGroup = 4096

// The waits between two looks at a file that takes no writes.
const (
	probeMin = 100 * time.Millisecond
	probeMax = 5 * time.Second
)

// job is one change that waits for the writer. All methods are called by the writer
// goroutine.
type job interface {
	// apply makes the change in the running transaction. An error that does not come
	// from the file refuses this job alone; it must not have changed anything then.
	apply(c *conn) error
	// undo takes back what apply changed in memory: the transaction was rolled back.
	// apply may follow once more.
	undo()
	// finish ends the job: nil after COMMIT.
	finish(err error)
	// grows tells whether the change needs room on the disk. One that does not is
	// tried on a full disk, because it is what makes room.
	grows() bool
}

// queue holds what waits for the writer.
type queue struct {
	wake chan struct{} // capacity 1

	mu      sync.Mutex
	jobs    []job
	repairs []repair
	closed  bool
}

// repair asks for a salvage by somebody who read damaged bytes when before salvages
// had been made.
type repair struct {
	before uint64
	cause  error
	done   chan error // capacity 1
}

// add queues a job; false means that the store is closed.
func (q *queue) add(j job) bool {
	q.mu.Lock()
	open := !q.closed
	if open {
		q.jobs = append(q.jobs, j)
	}
	q.mu.Unlock()
	if open {
		q.signal()
	}
	return open
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.signal()
}

// take moves waiting jobs to group.
func (q *queue) take(group []job) ([]job, []repair, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.jobs), maxGroup)
	group = append(group, q.jobs[:n]...)
	rest := copy(q.jobs, q.jobs[n:])
	clear(q.jobs[rest:])
	q.jobs = q.jobs[:rest]
	repairs := q.repairs
	q.repairs = nil
	return group, repairs, q.closed
}

// run is the writer goroutine. It commits whatever waits, without adding a delay:
// what arrives while one transaction reaches the disk is the next group.
func (d *database) run() {
	defer close(d.stopped)
	timer := time.NewTimer(probeMax)
	defer timer.Stop()
	var group []job
	for {
		timer.Reset(d.untilNext())
		select {
		case <-d.queue.wake:
		case <-timer.C:
		}
		for {
			var repairs []repair
			var closed bool
			group, repairs, closed = d.queue.take(group[:0])
			for _, r := range repairs {
				r.done <- d.rebuildOnce(r.before, r.cause)
			}
			now := time.Now()
			if d.down.Load() != nil && (!now.Before(d.probeAt) || closed) {
				d.probe()
			}
			if s := d.sweepDue(now, len(group)); s != nil {
				group = append(group, s)
			}
			if len(group) == 0 {
				if closed {
					return
				}
				break
			}
			d.commit(group)
			clear(group)
		}
	}
}

// untilNext is how long the writer may sleep when nothing arrives.
func (d *database) untilNext() time.Duration {
	if d.down.Load() != nil {
		return time.Until(d.probeAt)
	}
	next := nextSweep(d.allParts())
	if next.IsZero() {
		return time.Duration(1<<63 - 1)
	}
	return max(time.Until(next), 0)
}

// commit ends every job of the group.
func (d *database) commit(group []job) {
	if d.down.Load() == nil {
		if err := d.present(); err != nil {
			d.fail(err)
		}
	}
	if down := d.down.Load(); down != nil {
		group = d.refuse(group, down)
	}
	if len(group) == 0 {
		return
	}
	err := d.transact(group)
	if damage(err) {
		if rebuildErr := d.rebuild(err); rebuildErr == nil {
			err = d.transact(group)
		} else {
			err = rebuildErr
			d.fail(err)
		}
	}
	if err == nil {
		return
	}
	if len(group) > 1 && (full(err) || !environmental(err)) {
		// One job's fault must not be the others'; and on a full disk the jobs that
		// make room must not fail with those that need some.
		for i := range group {
			d.commit(group[i : i+1])
		}
		return
	}
	if environmental(err) {
		err = d.fail(err)
	} else {
		err = &gobridge.Error{Code: gobridge.CodeInternal, Class: gobridge.ClassTransient, Op: "store " + d.path, Err: err}
	}
	for _, j := range group {
		j.finish(err)
	}
}

// refuse ends the jobs that cannot succeed while the store is down, and returns the
// others.
func (d *database) refuse(group []job, down *gobridge.Error) []job {
	var kept []job
	for _, j := range group {
		// What is in a file without a name can still be delivered and completed.
		if d.w != nil && (full(down) || errors.Is(down, errGone)) && !j.grows() {
			kept = append(kept, j)
		} else {
			j.finish(down)
		}
	}
	return kept
}

// transact applies the jobs in one transaction. Without an error all of them have
// ended; with one nothing has changed and none has ended.
func (d *database) transact(group []job) error {
	if err := d.w.query("BEGIN IMMEDIATE").exec(); err != nil {
		return err
	}
	d.w.fenceSeen++
	var refused map[int]error
	var err error
	applied := 0
	for ; applied < len(group) && err == nil; applied++ {
		switch e := group[applied].apply(d.w); {
		case e == nil:
		case ofFile(e) || damage(e):
			err = e
		default:
			if refused == nil {
				refused = map[int]error{}
			}
			refused[applied] = e
		}
	}
	if err == nil {
		err = d.w.query("COMMIT").exec()
	}
	if err != nil {
		// SQLite has rolled back by itself after some errors.
		if !d.w.GetAutocommit() {
			if e := d.w.query("ROLLBACK").exec(); e != nil {
				d.log.Error("store: rollback", "path", d.path, "err", e)
			}
		}
		for i := applied - 1; i >= 0; i-- {
			if refused[i] == nil {
				group[i].undo()
			}
		}
		return d.named(err)
	}
	for i, j := range group {
		j.finish(refused[i])
	}
	return nil
}

// environmental tells failures of disk and file from those of a statement.
func environmental(err error) bool {
	for _, code := range [...]sqlite3.ErrorCode{
		sqlite3.FULL, sqlite3.IOERR, sqlite3.READONLY, sqlite3.CANTOPEN, sqlite3.PERM, sqlite3.AUTH, sqlite3.BUSY,
		sqlite3.LOCKED, sqlite3.PROTOCOL, sqlite3.CORRUPT, sqlite3.NOTADB,
	} {
		if errors.Is(err, code) {
			return true
		}
	}
	return !ofFile(err) // of the operating system, or damage found by a checksum
}

// fail marks the store down and plans the next probe.
func (d *database) fail(err error) *gobridge.Error {
	e := outage(d.path, err)
	if d.down.Swap(e) == nil {
		d.log.Error("store takes no writes: whatever depends on it waits", "path", d.path, "err", e)
		d.backoff = probeMin
		d.probeAt = time.Now().Add(d.backoff)
	}
	return e
}

// probe looks whether writes work again. After anything but a full disk the file is
// opened anew first: what a failed write or sync left in memory is not to be
// trusted.
func (d *database) probe() {
	down := d.down.Load()
	if errors.Is(down, errGone) && d.present() != nil {
		d.later(down) // opened anew it would be empty
		return
	}
	if full(down) && errors.Is(down, sqlite3.IOERR) && noSpace(d.path) {
		// What the disk has left would do for the probe, not for the messages.
		d.later(down)
		return
	}
	err := d.named(d.tryWrite())
	if damage(err) {
		err = d.rebuild(err)
	}
	if err == nil {
		d.down.Store(nil)
		d.log.Info("store takes writes again", "path", d.path)
		return
	}
	d.later(outage(d.path, err))
}

// later plans the next probe of a store that is down.
func (d *database) later(down *gobridge.Error) {
	d.down.Store(down)
	d.backoff = min(2*d.backoff, probeMax)
	d.probeAt = time.Now().Add(d.backoff)
}

func (d *database) tryWrite() error {
	if down := d.down.Load(); d.w == nil || !full(down) || errors.Is(down, sqlite3.IOERR) {
		d.readMu.Lock()
		defer d.readMu.Unlock()
		d.disconnect()
		if err := d.connect(); err != nil {
			return err
		}
	}
	// Committed with its pages, so that they had to find room; then given back.
	if err := d.w.query("REPLACE INTO probe VALUES (1, zeroblob(65536))").exec(); err != nil {
		return err
	}
	return d.w.query("DELETE FROM probe").exec()
}

// repair asks the writer for a salvage and waits for it.
func (d *database) repair(ctx context.Context, before uint64, cause error) error {
	r := repair{before, cause, make(chan error, 1)}
	q := &d.queue
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return gobridge.ErrClosed
	}
	q.repairs = append(q.repairs, r)
	q.mu.Unlock()
	q.signal()
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (d *database) rebuildOnce(before uint64, cause error) error {
	if d.rebuilds.Load() > before {
		return nil
	}
	if err := d.rebuild(cause); err != nil {
		return d.fail(err)
	}
	return nil
}

// call is a job made of a function, for callers that wait.
type call struct {
	f      func(c *conn) (undo func(), err error)
	takes  bool
	undone func()
	done   chan error // capacity 1
}

func (j *call) apply(c *conn) (err error) {
	j.undone, err = j.f(c)
	return err
}

func (j *call) undo() {
	if j.undone != nil {
		j.undone()
	}
}

func (j *call) finish(err error) { j.done <- err }
func (j *call) grows() bool      { return j.takes }

// do runs f in a transaction of the writer and returns when that is durable. After
// a cancelled ctx the outcome is unknown. grows is that of job. f may run more than
// once, each time after its undo.
func (d *database) do(ctx context.Context, grows bool, f func(c *conn) (undo func(), err error)) error {
	j := &call{f: f, takes: grows, done: make(chan error, 1)}
	if !d.queue.add(j) {
		return gobridge.ErrClosed
	}
	select {
	case err := <-j.done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("wait for the store: %w", context.Cause(ctx))
	}
}
