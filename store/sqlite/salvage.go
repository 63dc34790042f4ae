package sqlite

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ncruces/go-sqlite3"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/metric"
)

// salvagedSuffix is that of the new file until it has taken the place of the
// damaged one.
const salvagedSuffix = ".salvaged"

// rebuild sets the damaged file aside, begins a new one with everything that can be
// read, and reports what was lost (decision C6). Called by the writer goroutine, or
// before that runs, outside of transactions. Afterwards the connections are those of
// the new file.
func (d *database) rebuild(cause error) error {
	if d.owner == nil {
		return fmt.Errorf("store %s is damaged and not repaired, because other processes may use it (stop them and move the file away): %w", d.path, cause)
	}
	d.readMu.Lock()
	defer d.readMu.Unlock()
	d.log.Error("store is damaged: beginning a new file with what can be read", "path", d.path, "err", cause)
	d.disconnect()
	report, err := d.copyReadable(cause)
	if err == nil {
		err = d.replace(report)
	}
	if err == nil {
		err = d.connect()
	}
	for _, p := range d.allParts() {
		if err == nil {
			err = p.load(d.w)
		}
	}
	if err != nil {
		return fmt.Errorf("salvage %s: %w", d.path, err)
	}
	d.rebuilds.Add(1)
	for _, p := range d.allParts() {
		d.metrics.Counter(metric.StoreSalvaged, p.label()).Inc()
	}
	d.log.Error("store was salvaged: look at the count of lost messages, then run gobridge store acknowledge",
		"path", d.path, "damaged", report.Damaged, "salvaged", report.Salvaged, "lost", report.Lost, "lost_unknown", report.LostUnknown)
	return nil
}

// copyReadable writes the new file beside the damaged one.
func (d *database) copyReadable(cause error) (*gobridge.Salvage, error) {
	path := d.path + salvagedSuffix
	if err := removeDatabase(path); err != nil {
		return nil, err
	}
	if err := makePrivate(path); err != nil {
		return nil, err
	}
	c, err := connect(path, d.params())
	if err != nil {
		return nil, err
	}
	defer c.close()
	if err := c.Exec("PRAGMA journal_mode = DELETE; PRAGMA synchronous = FULL; PRAGMA temp_store = MEMORY;"); err != nil {
		return nil, err
	}
	if err := migrate(c, path, &storesSchema); err != nil {
		return nil, err
	}
	now := time.Now()
	report := &gobridge.Salvage{
		At: now.UTC(), Cause: cause.Error(),
		Damaged: d.path + ".corrupt-" + now.UTC().Format("20060102T150405.000Z"),
	}
	if err := c.Exec("BEGIN"); err != nil {
		return nil, err
	}
	// Before SQLite opens the file, and writes into the shared memory how much of the
	// log it can read.
	pages, err := openPages(d.path)
	if err != nil {
		return nil, err
	}
	defer pages.close()
	x := &salvager{db: d, from: pages, to: c, report: report, waiting: map[int64]waiting{}, partitions: map[string]int64{}}
	for _, step := range []func() error{x.tables, x.messages, x.finish} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	if err := c.Exec("COMMIT"); err != nil {
		return nil, err
	}
	if err := c.close(); err != nil {
		return nil, err
	}
	return report, syncFile(path)
}

// replace puts the new file in the place of the damaged one.
func (d *database) replace(report *gobridge.Salvage) error {
	// The database first: its log alone is nothing, the database without it lacks
	// what was committed last.
	if err := os.Rename(d.path, report.Damaged); err != nil {
		return err
	}
	if err := os.Rename(d.path+"-wal", report.Damaged+"-wal"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := syncDir(filepath.Dir(d.path)); err != nil {
		return err
	}
	return finishSalvage(d.path)
}

// finishSalvage ends a salvage that a crash interrupted: a new file is complete once
// the damaged one has gone from its place.
func finishSalvage(path string) error {
	if _, err := os.Stat(path + salvagedSuffix); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if _, err := os.Stat(path); err == nil {
		return removeDatabase(path + salvagedSuffix) // it was being written
	}
	// What is left of the damaged file's log must not be taken for the new one's.
	for _, suffix := range []string{"-wal", "-shm"} {
		if err := os.Remove(path + suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if err := os.Rename(path+salvagedSuffix, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func removeDatabase(path string) error {
	for _, suffix := range []string{"", "-journal", "-wal", "-shm"} {
		if err := os.Remove(path + suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// salvager copies what can be read of a damaged database to a new one.
type salvager struct {
	db     *database
	from   *pages
	to     *conn
	report *gobridge.Salvage

	waiting    map[int64]waiting // by seq, from the table outbox
	letters    int               // rows that the table dlq is known to have had
	partitions map[string]int64
	maxSeq     int64
	records    int
	copied     int // dead letters
	unreadable int // records and dead letters with a wrong checksum that nothing else names
}

// waiting is what the table outbox says of a record.
type waiting struct{ replays, firstAttempt int64 }

// tables copies the small tables by SQL. A table is read from both ends, so that one
// damaged page costs what is on it.
func (x *salvager) tables() error {
	from, err := connect(x.db.path, x.db.params())
	if err != nil {
		return ignoreDamage(err)
	}
	defer from.close()
	// The damaged file stays as it is, its log too.
	if _, err := from.Config(sqlite3.DBCONFIG_NO_CKPT_ON_CLOSE, true); err != nil {
		return err
	}
	if err := from.Exec("PRAGMA query_only = ON"); err != nil {
		return ignoreDamage(err)
	}
	steps := []struct {
		sql  string // without its order
		keys string
		row  func(s *sqlite3.Stmt) error
	}{
		{"SELECT name, value FROM meta WHERE name IN ('fence', 'seq')", "name", func(s *sqlite3.Stmt) error {
			return x.to.query("UPDATE meta SET value = max(value, ?) WHERE name = ?").int(s.ColumnInt64(1)).text(s.ColumnText(0)).exec()
		}},
		{"SELECT value FROM meta WHERE name = 'salvage'", "name", func(s *sqlite3.Stmt) error {
			var earlier gobridge.Salvage
			if json.Unmarshal(s.ColumnRawText(0), &earlier) == nil {
				// Nobody has acknowledged those yet.
				x.report.Lost += earlier.Lost
				x.report.LostUnknown = x.report.LostUnknown || earlier.LostUnknown
			}
			return nil
		}},
		{"SELECT id, dedup, payload, at FROM outbox_done", "id", func(s *sqlite3.Stmt) error {
			return x.to.query("INSERT OR IGNORE INTO outbox_done VALUES (?, ?, ?, ?)").
				int(s.ColumnInt64(0)).blob(slices.Clone(s.ColumnRawBlob(1))).int(s.ColumnInt64(2)).int(s.ColumnInt64(3)).exec()
		}},
		{"SELECT route, envelope, attempts, at FROM ledger", "route, envelope", func(s *sqlite3.Stmt) error {
			return x.to.query("INSERT OR IGNORE INTO ledger VALUES (?, ?, ?, ?)").
				text(s.ColumnText(0)).text(s.ColumnText(1)).int(s.ColumnInt64(2)).int(s.ColumnInt64(3)).exec()
		}},
		{"SELECT session, client, filter FROM history", "session, client, filter", func(s *sqlite3.Stmt) error {
			return x.to.query("INSERT OR IGNORE INTO history VALUES (?, ?, ?)").
				text(s.ColumnText(0)).text(s.ColumnText(1)).text(s.ColumnText(2)).exec()
		}},
	}
	// Any index of the table knows how many entries it had.
	for _, index := range []string{"dlq_age", "dlq_route", "dlq_category", "dlq_code"} {
		n, _, err := from.query("SELECT count(*) FROM dlq INDEXED BY " + index).number()
		if err := ignoreDamage(err); err != nil {
			return err
		}
		x.letters = max(x.letters, int(n))
	}
	for _, step := range steps {
		ascending := step.sql + " ORDER BY " + step.keys
		descending := step.sql + " ORDER BY " + strings.ReplaceAll(step.keys, ",", " DESC,") + " DESC"
		for _, sql := range []string{ascending, descending} {
			err := from.query(sql).rows(step.row)
			if err == nil {
				break
			}
			if err := ignoreDamage(err); err != nil {
				return err
			}
		}
	}
	return nil
}

// ignoreDamage drops the errors that a damaged file brings with it: what cannot be
// read is counted at the end.
func ignoreDamage(err error) error {
	if damage(err) || errors.Is(err, sqlite3.ERROR) || errors.Is(err, sqlite3.IOERR_SHORT_READ) {
		return nil
	}
	return err
}

// messages copies records and dead letters, page by page. First come the rows of the
// table outbox: they tell what there has to be.
func (x *salvager) messages() error {
	var buf []column
	err := x.from.rows(func(_ int64, record []byte, inIndex bool) error {
		if !inIndex {
			return nil
		}
		// part, seq, dedup, payload, replays, first_attempt: no index has as many.
		if buf = columns(record, buf); len(buf) == 6 {
			seq, isSeq := buf[1].int()
			replays, isCount := buf[4].int()
			first, isTime := buf[5].int()
			if isSeq && isCount && isTime {
				x.waiting[seq] = waiting{replays, first}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return x.from.rows(func(rowid int64, record []byte, inIndex bool) error {
		if inIndex {
			return nil
		}
		buf = columns(record, buf)
		if len(buf) == 0 || !buf[len(buf)-1].isBlob() {
			return nil
		}
		switch blob := buf[len(buf)-1].body; {
		case bytes.HasPrefix(blob, recordMagic):
			return x.record(rowid, blob)
		case bytes.HasPrefix(blob, letterMagic):
			return x.letter(blob)
		}
		return nil
	})
}

func (x *salvager) record(seq int64, blob []byte) error {
	var r gobridge.OutboxRecord
	if err := decodeRecord(blob, &r); err != nil {
		if _, counted := x.waiting[seq]; !counted && errors.Is(err, gobridge.ErrDamaged) {
			x.unreadable++
		}
		return nil
	}
	part, found := x.partitions[r.BindingID]
	if !found {
		if err := x.to.query("INSERT INTO outbox_partition (binding) VALUES (?)").text(r.BindingID).exec(); err != nil {
			return err
		}
		part = x.to.LastInsertRowID()
		x.partitions[r.BindingID] = part
	}
	// A page that went out of use may repeat a record.
	if err := x.to.query("INSERT OR IGNORE INTO outbox_record VALUES (?, ?)").int(seq).blob(blob).exec(); err != nil {
		return err
	}
	if x.to.Changes() == 0 {
		return nil
	}
	var key []byte
	if keyed(&r) {
		k := keyOf(&r)
		key = k[:]
	}
	w := x.waiting[seq]
	delete(x.waiting, seq)
	x.records++
	x.maxSeq = max(x.maxSeq, seq)
	return x.to.query("INSERT INTO outbox VALUES (?, ?, ?, ?, ?, ?)").
		int(part).int(seq).blob(key).int(int64(payloadSum(&r.Envelope))).int(w.replays).int(w.firstAttempt).exec()
}

func (x *salvager) letter(blob []byte) error {
	l, err := decodeLetter(blob)
	if err != nil {
		if x.letters == 0 && errors.Is(err, gobridge.ErrDamaged) {
			x.unreadable++
		}
		return nil
	}
	known, _, err := x.to.query("SELECT count(*) FROM dlq WHERE id = ? OR key = ?").text(l.ID).text(l.Key).number()
	if err != nil || known > 0 {
		return err
	}
	x.copied++
	return insertLetter(x.to, l, blob)
}

// finish writes the report. Records that the table outbox named and no page gave up
// are lost.
func (x *salvager) finish() error {
	x.report.Salvaged = x.records + x.copied
	lost := len(x.waiting) + max(x.letters-x.copied, 0) + x.unreadable
	x.report.LostUnknown = x.report.LostUnknown || x.from.cut || x.report.Salvaged+lost == 0
	x.report.Lost += lost
	for seq := range x.waiting {
		x.maxSeq = max(x.maxSeq, seq)
	}
	text, err := json.Marshal(x.report)
	if err != nil {
		return err
	}
	if err := x.to.query("REPLACE INTO meta VALUES ('salvage', ?)").text(string(text)).exec(); err != nil {
		return err
	}
	// The fence must be above every one given out, also when the old value is lost.
	fence := x.db.fence.Load()
	if fence == 0 {
		fence = x.report.At.Unix()
	}
	if err := x.to.query("UPDATE meta SET value = ? WHERE name = 'fence' AND value = 0").int(fence).exec(); err != nil {
		return err
	}
	return x.to.query("UPDATE meta SET value = max(value, ?) WHERE name = 'seq'").int(x.maxSeq + seqBlock).exec()
}
