package sqlite

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ncruces/go-sqlite3"

	"github.com/gobridge/gobridge"
)

// Outbox is one handle on the outbox in a database file. Opening it raises the
// fence, so that it alone changes records from then on.
//
// The keys of all records that wait, and of the completed ones within the
// retention, are in memory, 16 bytes and a payload checksum each: looking for them
// on disk would dirty one random page for every message. Only the writer goroutine
// touches what is not behind mu.
type Outbox struct {
	file
	retention time.Duration
	maxDone   int // rows of evidence, 0 is no bound

	mu         sync.RWMutex
	partitions map[string]*partition

	fence          int64  // 0 until it was raised
	checked        uint64 // conn.fenceSeen when the fence was last found in order
	known          map[dedupKey]uint32
	doneRows       int
	oldest         int64 // completion time of the first row of evidence, Unix seconds
	next, reserved int64 // sequence numbers
	scratch        []byte
}

// partition is one binding's part of the outbox.
type partition struct {
	id    int64
	depth atomic.Int64
}

var (
	_ gobridge.Outbox    = (*Outbox)(nil)
	_ gobridge.FileStore = (*Outbox)(nil)
)

func newOutbox(ctx context.Context, d *database, retention time.Duration, maxDone int) (*Outbox, error) {
	o := &Outbox{file: file{db: d}, retention: retention, maxDone: maxDone}
	if err := d.join(ctx, o); err != nil {
		return nil, err
	}
	return o, nil
}

// checkFence refuses a handle that is not the owner any more. The fence is read once
// in each transaction: the answer has to be true at its commit.
func (o *Outbox) checkFence(c *conn) error {
	if o.checked == c.fenceSeen {
		return nil
	}
	fence, err := metaNumber(c, "fence")
	if err == nil && fence != o.fence {
		return fmt.Errorf("outbox %s: fence %d, now %d: %w", o.db.path, o.fence, fence, gobridge.ErrStaleFence)
	}
	if err == nil {
		o.checked = c.fenceSeen
	}
	return err
}

// maxRecord bounds a stored record. SQLite needs about three times that in memory,
// where the driver gives it 256 MiB, and 32 MiB on 32-bit machines.
const maxRecord = 64 << 20 >> (3 * (64 - bits.UintSize) / 32)

func recordSize(r *gobridge.OutboxRecord) int {
	n := len(r.Envelope.Payload) + len(r.Envelope.CorrelationData) + len(r.Address) + len(r.Envelope.ID) + 1024
	for i := range r.Envelope.Headers {
		n += len(r.Envelope.Headers[i].Name) + len(r.Envelope.Headers[i].Value) + 8
	}
	return n
}

// Persist implements gobridge.Outbox. Evidence against duplicates is kept for
// messages that can come again: those with an id of their producer and redriven
// ones. An id that the bridge made up for one receipt never comes a second time.
func (o *Outbox) Persist(records []*gobridge.OutboxRecord, done gobridge.OutboxDone) {
	o.submit(&persistJob{change: change{o, records, done}})
}

// Complete implements gobridge.Outbox. Records that are not in the store are no
// error.
func (o *Outbox) Complete(records []*gobridge.OutboxRecord, done gobridge.OutboxDone) {
	o.submit(&completeJob{change: change{o, records, done}})
}

// Charge implements gobridge.Outbox.
func (o *Outbox) Charge(records []*gobridge.OutboxRecord, done gobridge.OutboxDone) {
	o.submit(&chargeJob{change{o, records, done}})
}

func (o *Outbox) submit(j job) {
	if o.closed.Load() || !o.db.queue.add(j) {
		j.finish(gobridge.ErrClosed)
	}
}

// Pending implements gobridge.Outbox.
func (o *Outbox) Pending(ctx context.Context, bindingID string, after uint64, limit int, maxBytes int64) ([]*gobridge.OutboxRecord, error) {
	var found []*gobridge.OutboxRecord
	err := o.db.read(ctx, func(c *conn) error {
		found = nil
		p := o.partition(bindingID)
		if p == nil {
			return nil
		}
		var size int64
		err := c.query(`SELECT o.seq, o.replays, o.first_attempt, r.record
			FROM outbox o LEFT JOIN outbox_record r USING (seq)
			WHERE o.part = ? AND o.seq > ? ORDER BY o.seq LIMIT ?`).
			int(p.id).int(int64(min(after, 1<<63-1))).int(int64(limit)).
			rows(func(s *sqlite3.Stmt) error {
				r := &gobridge.OutboxRecord{
					Seq: uint64(s.ColumnInt64(0)), ReplayCount: s.ColumnInt(1), FirstAttemptAt: timeOf(s.ColumnInt64(2)),
				}
				if err := decodeRecord(slices.Clone(s.ColumnRawBlob(3)), r); err != nil {
					return fmt.Errorf("record %d: %w", r.Seq, err)
				}
				size += int64(len(r.Envelope.Payload))
				if len(found) > 0 && size > maxBytes {
					return errEnough
				}
				found = append(found, r)
				return nil
			})
		if errors.Is(err, errEnough) {
			return nil
		}
		return err
	})
	return found, err
}

// errEnough ends a walk over rows.
var errEnough = errors.New("enough")

// Depth implements gobridge.Outbox.
func (o *Outbox) Depth(bindingID string) int {
	if p := o.partition(bindingID); p != nil {
		return int(p.depth.Load())
	}
	return 0
}

// Partitions implements gobridge.Outbox.
func (o *Outbox) Partitions(context.Context) ([]string, error) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	var names []string
	for name, p := range o.partitions {
		if p.depth.Load() > 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// Close implements gobridge.Outbox: it waits for the changes that this handle has
// given to the store.
func (o *Outbox) Close() error { return o.close(o) }

// change is what the jobs of an outbox have in common.
type change struct {
	o       *Outbox
	records []*gobridge.OutboxRecord
	done    gobridge.OutboxDone
}

func (j *change) finish(err error) { j.done.OutboxDone(j.records, err) }

type persistJob struct {
	change
	keys     []dedupKey // remembered by apply
	created  []string   // partitions made by apply
	reserved int64      // before apply
}

func (j *persistJob) grows() bool { return true }

func (j *persistJob) apply(c *conn) error {
	if err := j.o.checkFence(c); err != nil {
		return err
	}
	for _, r := range j.records {
		if n := recordSize(r); n > maxRecord {
			return &gobridge.Error{
				Code: gobridge.CodePayloadTooLarge, Class: gobridge.ClassRejected, Op: "outbox",
				Err: fmt.Errorf("record of %d bytes is over the limit of %d", n, maxRecord),
			}
		}
	}
	o := j.o
	now := time.Now()
	j.keys, j.created, j.reserved = j.keys[:0], j.created[:0], o.reserved
	for _, r := range j.records {
		r.Seq, r.Duplicate, r.Conflict = 0, false, false
		sum := payloadSum(&r.Envelope)
		var key []byte
		if keyed(r) {
			k := keyOf(r)
			if other, found := o.known[k]; found {
				r.Duplicate, r.Conflict = true, other != sum
				continue
			}
			o.known[k] = sum
			j.keys = append(j.keys, k)
			key = k[:]
		}
		p := o.partition(r.BindingID)
		if p == nil {
			var err error
			if p, err = o.addPartition(c, r.BindingID); err != nil {
				return err
			}
			j.created = append(j.created, r.BindingID)
		}
		seq, err := o.nextSeq(c)
		if err != nil {
			return err
		}
		r.Seq, r.PersistedAt = uint64(seq), now
		err = c.query("INSERT INTO outbox VALUES (?, ?, ?, ?, ?, ?)").
			int(p.id).int(seq).blob(key).int(int64(sum)).int(int64(r.ReplayCount)).int(nanos(r.FirstAttemptAt)).exec()
		if err != nil {
			return err
		}
		o.scratch = appendRecord(o.scratch[:0], r)
		if err := c.query("INSERT INTO outbox_record VALUES (?, ?)").int(seq).blob(o.scratch).exec(); err != nil {
			return err
		}
	}
	return nil
}

func (j *persistJob) undo() {
	o := j.o
	for _, k := range j.keys {
		delete(o.known, k)
	}
	o.forget(j.created)
	o.reserved = j.reserved
	for _, r := range j.records {
		r.Seq, r.Duplicate, r.Conflict = 0, false, false
	}
}

func (j *persistJob) finish(err error) {
	if err == nil {
		for _, r := range j.records {
			if !r.Duplicate {
				j.o.partition(r.BindingID).depth.Add(1)
			}
		}
	}
	j.change.finish(err)
}

type completeJob struct {
	change
	ended  []*partition // one for each record that was there
	kept   int          // rows of evidence added by apply
	oldest int64        // before apply
}

func (j *completeJob) grows() bool { return false }

func (j *completeJob) apply(c *conn) error {
	if err := j.o.checkFence(c); err != nil {
		return err
	}
	o := j.o
	j.ended, j.kept, j.oldest = j.ended[:0], 0, o.oldest
	now := time.Now().Unix()
	for _, r := range j.records {
		p := o.partition(r.BindingID)
		if p == nil || r.Seq == 0 {
			continue
		}
		if err := c.query("DELETE FROM outbox WHERE part = ? AND seq = ?").int(p.id).int(int64(r.Seq)).exec(); err != nil {
			return err
		}
		if c.Changes() == 0 {
			continue
		}
		if err := c.query("DELETE FROM outbox_record WHERE seq = ?").int(int64(r.Seq)).exec(); err != nil {
			return err
		}
		j.ended = append(j.ended, p)
		if !keyed(r) {
			continue
		}
		k := keyOf(r)
		err := c.query("INSERT INTO outbox_done (dedup, payload, at) VALUES (?, ?, ?)").
			blob(k[:]).int(int64(payloadSum(&r.Envelope))).int(now).exec()
		if err != nil {
			return err
		}
		if o.doneRows == 0 {
			o.oldest = now
		}
		o.doneRows++
		j.kept++
	}
	return nil
}

func (j *completeJob) undo() {
	j.o.doneRows -= j.kept
	j.o.oldest = j.oldest
}

func (j *completeJob) finish(err error) {
	if err == nil {
		for _, p := range j.ended {
			p.depth.Add(-1)
		}
	}
	j.change.finish(err)
}

type chargeJob struct{ change }

func (j *chargeJob) grows() bool { return false }
func (j *chargeJob) undo()       {}

func (j *chargeJob) apply(c *conn) error {
	if err := j.o.checkFence(c); err != nil {
		return err
	}
	for _, r := range j.records {
		p := j.o.partition(r.BindingID)
		if p == nil {
			continue
		}
		err := c.query("UPDATE outbox SET replays = ?, first_attempt = ? WHERE part = ? AND seq = ?").
			int(int64(r.ReplayCount)).int(nanos(r.FirstAttemptAt)).int(p.id).int(int64(r.Seq)).exec()
		if err != nil {
			return err
		}
	}
	return nil
}
