package sqlite

import (
	"crypto/sha256"
	"encoding/binary"
	"hash/crc32"
	"time"

	"github.com/ncruces/go-sqlite3"

	"github.com/gobridge/gobridge"
)

// seqBlock is how many sequence numbers are reserved by one write. Reserving keeps
// them growing over restarts, also when no record is left to show the last one.
const seqBlock = 1 << 16

// dedupKey is a hash of the dedup key of a record.
type dedupKey [16]byte

// keyed tells whether a record of the same key can come again.
func keyed(r *gobridge.OutboxRecord) bool {
	return r.Envelope.IDOrigin == gobridge.IDProducer || r.Generation > 0
}

func keyOf(r *gobridge.OutboxRecord) dedupKey {
	var buf [256]byte
	b := binary.AppendUvarint(buf[:0], uint64(r.Generation))
	b = appendText(b, r.BindingID)
	b = append(b, r.Envelope.ID...)
	sum := sha256.Sum256(b)
	return dedupKey(sum[:16])
}

// payloadSum tells one payload from another under the same id (F3).
func payloadSum(e *gobridge.Envelope) uint32 { return crc32.Checksum(e.Payload, castagnoli) }

func (o *Outbox) label() string { return "outbox" }

// load reads the state, and raises the fence the first time.
func (o *Outbox) load(c *conn) error {
	if o.fence == 0 {
		if err := c.query("UPDATE meta SET value = value + 1 WHERE name = 'fence'").exec(); err != nil {
			return err
		}
		fence, err := metaNumber(c, "fence")
		if err != nil {
			return err
		}
		o.fence = fence
		o.db.fence.Store(fence)
		c.fenceSeen++
	}
	partitions := map[string]*partition{}
	byID := map[int64]*partition{}
	err := c.query("SELECT id, binding FROM outbox_partition").rows(func(r *sqlite3.Stmt) error {
		p := &partition{id: r.ColumnInt64(0)}
		partitions[r.ColumnText(1)], byID[p.id] = p, p
		return nil
	})
	if err != nil {
		return err
	}
	known := map[dedupKey]uint32{}
	var last *partition
	err = c.query("SELECT part, dedup, payload FROM outbox").rows(func(r *sqlite3.Stmt) error {
		if id := r.ColumnInt64(0); last == nil || last.id != id {
			if last = byID[id]; last == nil {
				return gobridge.ErrDamaged // a record of no partition
			}
		}
		last.depth.Add(1)
		if k := r.ColumnRawBlob(1); len(k) == len(dedupKey{}) {
			known[dedupKey(k)] = uint32(r.ColumnInt64(2))
		}
		return nil
	})
	if err != nil {
		return err
	}
	o.doneRows = 0
	err = c.query("SELECT dedup, payload FROM outbox_done").rows(func(r *sqlite3.Stmt) error {
		o.doneRows++
		if k := r.ColumnRawBlob(0); len(k) == len(dedupKey{}) {
			known[dedupKey(k)] = uint32(r.ColumnInt64(1))
		}
		return nil
	})
	if err != nil {
		return err
	}
	if o.oldest, _, err = c.query("SELECT at FROM outbox_done ORDER BY id LIMIT 1").number(); err != nil {
		return err
	}
	if o.reserved, err = metaNumber(c, "seq"); err != nil {
		return err
	}
	// After a salvage numbers may be in use above what the file knows.
	o.next = max(o.next, o.reserved)
	o.known = known
	o.mu.Lock()
	o.partitions = partitions
	o.mu.Unlock()
	return nil
}

// partition returns the partition of a binding, nil before its first record.
func (o *Outbox) partition(binding string) *partition {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return o.partitions[binding]
}

func (o *Outbox) addPartition(c *conn, binding string) (*partition, error) {
	if err := c.query("INSERT INTO outbox_partition (binding) VALUES (?)").text(binding).exec(); err != nil {
		return nil, err
	}
	p := &partition{id: c.LastInsertRowID()}
	o.mu.Lock()
	o.partitions[binding] = p
	o.mu.Unlock()
	return p, nil
}

// forget takes back addPartition.
func (o *Outbox) forget(bindings []string) {
	o.mu.Lock()
	for _, b := range bindings {
		delete(o.partitions, b)
	}
	o.mu.Unlock()
}

func (o *Outbox) nextSeq(c *conn) (int64, error) {
	if o.next >= o.reserved {
		if err := c.query("UPDATE meta SET value = ? WHERE name = 'seq'").int(o.next + seqBlock).exec(); err != nil {
			return 0, err
		}
		o.reserved = o.next + seqBlock
	}
	o.next++
	return o.next - 1, nil
}

func (o *Outbox) due() time.Time {
	switch {
	case o.doneRows == 0:
		return time.Time{}
	case o.maxDone > 0 && o.doneRows > o.maxDone:
		return time.Unix(1, 0)
	}
	// A row of second n is older than retention from n+1 on.
	return time.Unix(o.oldest+1, 0).Add(o.retention + spread(o.retention))
}

// sweep removes evidence that outlived its retention, or the oldest over the bound.
// Records that wait are never touched.
func (o *Outbox) sweep(c *conn, now time.Time, budget int) (func(), error) {
	if fence, err := metaNumber(c, "fence"); err != nil || fence != o.fence {
		// Another handle owns the table: it sweeps.
		rows := o.doneRows
		o.doneRows = 0
		return func() { o.doneRows = rows }, err
	}
	expired := now.Add(-o.retention).Unix()
	surplus := 0
	if o.maxDone > 0 {
		surplus = max(o.doneRows-o.maxDone, 0)
	}
	before, rows := o.oldest, o.doneRows
	type entry struct {
		key dedupKey
		sum uint32
	}
	var gone []entry
	var upTo int64
	o.oldest = 0
	err := c.query("SELECT id, dedup, payload, at FROM outbox_done ORDER BY id LIMIT ?").int(int64(budget) + 1).
		rows(func(r *sqlite3.Stmt) error {
			at := r.ColumnInt64(3)
			if len(gone) == budget || (at >= expired && len(gone) >= surplus) {
				o.oldest = at
				return errEnough
			}
			e := entry{sum: uint32(r.ColumnInt64(2))}
			copy(e.key[:], r.ColumnRawBlob(1))
			gone = append(gone, e)
			upTo = r.ColumnInt64(0)
			return nil
		})
	undo := func() {
		o.oldest, o.doneRows = before, rows
		for _, e := range gone {
			o.known[e.key] = e.sum
		}
	}
	if err != nil && err != errEnough {
		return undo, err
	}
	if len(gone) == 0 {
		return undo, nil
	}
	if err := c.query("DELETE FROM outbox_done WHERE id <= ?").int(upTo).exec(); err != nil {
		return undo, err
	}
	o.doneRows -= len(gone)
	for _, e := range gone {
		delete(o.known, e.key)
	}
	return undo, nil
}

func (o *Outbox) unload() { o.fence = 0 }
