package sqlite

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/metric"
)

// marked is a record whose payload appears nowhere else.
func marked(n, size int) *gobridge.OutboxRecord {
	r := plain("b", n)
	mark := fmt.Sprintf("<message %06d>", n)
	r.Envelope.Payload = []byte(mark + strings.Repeat("x", size) + "</message " + strconv.Itoa(n) + ">")
	return r
}

// filled makes a closed store with records, dead letters, a ledger and a history in
// dir, and returns its file.
func filled(t *testing.T, dir string, records, size, letters int) string {
	t.Helper()
	s := testSettings(t, dir)
	o := openOutbox(t, s)
	var all []*gobridge.OutboxRecord
	for n := range records {
		all = append(all, marked(n, size))
	}
	if err := ask(o.Persist, all...); err != nil {
		t.Fatal(err)
	}
	all[1].ReplayCount = 3
	if err := ask(o.Charge, all[1]); err != nil {
		t.Fatal(err)
	}
	done := marked(records, size)
	for _, call := range []func([]*gobridge.OutboxRecord, gobridge.OutboxDone){o.Persist, o.Complete} {
		if err := ask(call, done); err != nil {
			t.Fatal(err)
		}
	}
	q := dlqIn(t, dir)()
	for n := range letters {
		l := &gobridge.DeadLetter{Key: strconv.Itoa(n), RouteID: "r", LastAt: time.Now(), FirstAt: time.Now(), Envelope: marked(1_000_000+n, size).Envelope}
		if _, err := q.Put(t.Context(), l); err != nil {
			t.Fatal(err)
		}
	}
	h, err := attach(s, func(d *database) (*History, error) { return newHistory(t.Context(), d) })
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Remember(t.Context(), gobridge.HistoryKey{SessionID: "s", ClientID: "c"}, "a/#"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []interface{ Close() error }{o, q, h} {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return s.path
}

// overwrite changes a file in place.
func overwrite(t *testing.T, path string, change func(b []byte) []byte) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b = change(b)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return b
}

// readAll reads everything, so that damage shows, and returns the numbers of the
// messages found: of records and dead letters.
func readAll(t *testing.T, dir string) (o *Outbox, found map[int]bool) {
	t.Helper()
	o = openOutbox(t, testSettings(t, dir))
	found = map[int]bool{}
	number := func(e *gobridge.Envelope) {
		n, err := strconv.Atoi(e.ID)
		if err != nil || found[n] {
			t.Errorf("message %q: repeated or never stored", e.ID)
		}
		found[n] = true
	}
	// Twice: the first read may find the damage, the second sees what is left.
	for range 2 {
		if _, err := o.Pending(t.Context(), "b", 0, 1<<20, 1<<40); err != nil {
			t.Fatal(err)
		}
	}
	q := dlqIn(t, dir)()
	defer q.Close()
	for _, err := range q.List(t.Context(), gobridge.DLQFilter{}) {
		if err != nil {
			t.Fatal(err)
		}
	}
	records, err := o.Pending(t.Context(), "b", 0, 1<<20, 1<<40)
	if err != nil {
		t.Fatal(err)
	}
	if len(records) != o.Depth("b") {
		t.Errorf("depth %d, %d records", o.Depth("b"), len(records))
	}
	last := uint64(0)
	for _, r := range records {
		if r.Seq <= last {
			t.Errorf("seq %d after %d", r.Seq, last)
		}
		last = r.Seq
		number(&r.Envelope)
	}
	n := 0
	for l, err := range q.List(t.Context(), gobridge.DLQFilter{}) {
		if err != nil {
			t.Fatal(err)
		}
		number(&l.Envelope)
		n++
	}
	if depth, _ := q.Depth(t.Context()); depth != n {
		t.Errorf("dead-letter depth %d, %d entries", depth, n)
	}
	return o, found
}

// once finds the messages whose bytes are in the file exactly once: those are in the
// page that is in use. (SQLite leaves the bytes of rows that it has moved.)
func once(file []byte, ids []int, size int) map[int]bool {
	there := map[int]bool{}
	for _, n := range ids {
		there[n] = bytes.Count(file, marked(n, size).Envelope.Payload) == 1
	}
	return there
}

// Covers: S1-411
func TestDamagedPagesCostOnlyWhatIsOnThem(t *testing.T) {
	t.Parallel()
	const records, letters, size = 1500, 60, 500
	var ids []int
	for n := range records {
		ids = append(ids, n)
	}
	for n := range letters {
		ids = append(ids, 1_000_000+n)
	}
	lost, counted := 0, 0
	for round := range long(4, 60) {
		dir := t.TempDir()
		path := filled(t, dir, records, size, letters)
		seed := uint64(time.Now().UnixNano())
		rng := rand.New(rand.NewPCG(seed, 0))
		var before map[int]bool
		damaged := overwrite(t, path, func(b []byte) []byte {
			before = once(b, ids, size)
			for range 1 + rng.IntN(6) {
				page := 1 + rng.IntN(len(b)/4096-1)
				if round%2 == 0 {
					clear(b[page*4096 : (page+1)*4096])
					continue
				}
				for i := range 4096 {
					b[page*4096+i] = byte(rng.Uint32())
				}
			}
			return b
		})
		there := once(damaged, ids, size)
		o, found := readAll(t, dir)
		for _, n := range ids {
			if before[n] && there[n] != found[n] {
				t.Errorf("seed %d: message %d is in the damaged file: %t, salvaged: %t", seed, n, there[n], found[n])
			}
		}
		s := o.Salvaged()
		missing := len(ids) - len(found)
		switch {
		case s == nil && missing > 0:
			t.Errorf("seed %d: %d messages are gone without a report", seed, missing)
		case s != nil && (s.Salvaged != len(found) || s.Lost > missing):
			t.Errorf("seed %d: report of %d salvaged and %d lost; found %d, missing %d", seed, s.Salvaged, s.Lost, len(found), missing)
		}
		lost += missing
		if s != nil {
			counted += s.Lost
			if _, err := os.Stat(s.Damaged); err != nil {
				t.Errorf("the damaged file was not kept: %v", err)
			}
		}
		if err := o.Close(); err != nil {
			t.Fatal(err)
		}
	}
	// A message and the row that names it can be lost together; that is rare.
	if counted < lost*3/4 {
		t.Errorf("%d messages were lost, the reports counted %d", lost, counted)
	}
	t.Logf("%d messages were lost, the reports counted %d", lost, counted)
}

func TestDamageIsReportedUntilAcknowledged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filled(t, dir, 50, 500, 0)
	// One flipped bit in a payload: the structure is sound, the checksum is not.
	overwrite(t, path, func(b []byte) []byte {
		b[bytes.Index(b, marked(20, 500).Envelope.Payload)+30] ^= 4
		return b
	})
	o, found := readAll(t, dir)
	if len(found) != 49 || found[20] {
		t.Errorf("%d messages, message 20 among them: %t", len(found), found[20])
	}
	s := o.Salvaged()
	if s == nil || s.Salvaged != 49 || s.Lost != 1 || !strings.Contains(s.Cause, "checksum") {
		t.Fatalf("report %+v", s)
	}
	if got := o.db.metrics.Counter(metric.StoreSalvaged, "outbox").Value(); got != 1 {
		t.Errorf("StoreSalvaged is %d", got)
	}
	if err := o.Err(); err != nil {
		t.Errorf("a salvaged store takes no writes: %v", err)
	}
	// Charges, evidence, history and seqs came along.
	records, err := o.Pending(t.Context(), "b", 0, 2, 1<<20)
	if err != nil || records[1].ReplayCount != 3 {
		t.Errorf("replay count %d, %v", records[1].ReplayCount, err)
	}
	again := marked(50, 500)
	if err := ask(o.Persist, again); err != nil || !again.Duplicate {
		t.Errorf("a completed message again: duplicate %t, %v", again.Duplicate, err)
	}
	fresh := marked(9999, 1)
	if err := ask(o.Persist, fresh); err != nil || fresh.Seq <= 51 {
		t.Errorf("seq %d after a salvage, %v", fresh.Seq, err)
	}
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	h := opener(t, dir, func(b *gobridge.BridgeSpec, s *gobridge.StoreSpec, env gobridge.Env) (gobridge.History, error) {
		return HistoryKind().Open(t.Context(), b, s, env)
	})()
	if filters, known, err := h.Load(t.Context(), gobridge.HistoryKey{SessionID: "s", ClientID: "c"}); len(filters) != 1 || !known || err != nil {
		t.Errorf("history %v, %t, %v", filters, known, err)
	}
	f := h.(gobridge.FileStore)
	if f.Salvaged() == nil {
		t.Error("the report ended with the process")
	}
	if err := f.Acknowledge(t.Context()); err != nil || f.Salvaged() != nil {
		t.Errorf("acknowledge: %v, report %+v", err, f.Salvaged())
	}
	h.Close()
	o = openOutbox(t, testSettings(t, dir))
	defer o.Close()
	if o.Salvaged() != nil {
		t.Error("an acknowledged report came back")
	}
}

func TestBrokenFilesStillOpen(t *testing.T) {
	t.Parallel()
	const records = 300
	for _, tt := range []struct {
		name   string
		change func(b []byte) []byte
		atMost int    // messages lost
		report string // of what was lost, empty without a salvage
	}{
		{"the header is zero", func(b []byte) []byte { clear(b[:100]); return b }, 0, "0 are lost"},
		{"the first page is zero", func(b []byte) []byte { clear(b[:4096]); return b }, 0, "0 are lost"},
		{"the last half is missing", func(b []byte) []byte { return b[:len(b)/2] }, records * 3 / 4, "at least "},
		{"a page is cut in the middle", func(b []byte) []byte { return b[:len(b)-700] }, 10, " are lost"},
		{"everything is zero", func(b []byte) []byte { clear(b); return b }, records, "an unknown number are lost"},
		{"it is something else", func([]byte) []byte { return bytes.Repeat([]byte("not a database "), 5000) }, records, "an unknown number are lost"},
		{"it is empty", func([]byte) []byte { return nil }, records, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path := filled(t, dir, records, 500, 0)
			overwrite(t, path, tt.change)
			o, found := readAll(t, dir)
			defer func() { o.Close() }()
			if lost := records - len(found); lost > tt.atMost {
				t.Errorf("%d of %d messages are lost, want at most %d", lost, records, tt.atMost)
			}
			if s := o.Salvaged(); (s == nil) != (tt.report == "") || s != nil && !strings.Contains(s.String(), tt.report) {
				t.Errorf("report %v, want %q", s, tt.report)
			}
			if err := ask(o.Persist, marked(7777, 10)); err != nil {
				t.Fatal(err)
			}
			if err := o.Close(); err != nil {
				t.Fatal(err)
			}
			if o, found = readAll(t, dir); !found[7777] {
				t.Error("the new file does not keep messages")
			}
		})
	}
}

func TestSalvageReadsTheLogAndLargeRecords(t *testing.T) {
	t.Parallel()
	const records = 40
	from := t.TempDir()
	s := testSettings(t, from)
	s.pragmas = "PRAGMA wal_autocheckpoint = 0;"
	path := filled(t, from, records/2, 20_000, 0) // in the database
	o := openOutbox(t, s)
	// Message records/2 was completed.
	for n := records/2 + 1; n < records; n++ { // in the log
		if err := ask(o.Persist, marked(n, 20_000)); err != nil {
			t.Fatal(err)
		}
	}
	if err := ask(o.Complete, mustPending(t, o)[0]); err != nil {
		t.Fatal(err)
	}
	// What a crash leaves.
	dir := t.TempDir()
	for _, suffix := range []string{"", "-wal"} {
		b, err := os.ReadFile(path + suffix)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, fileName+suffix), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	overwrite(t, filepath.Join(dir, fileName), func(b []byte) []byte {
		b[bytes.Index(b, []byte("</message 7>"))-100] ^= 1
		return b
	})
	o, found := readAll(t, dir)
	defer o.Close()
	for n := range records {
		if want := n != 7 && n != 0 && n != records/2; found[n] != want {
			t.Errorf("message %d was found: %t, want %t", n, found[n], want)
		}
	}
	if s := o.Salvaged(); s == nil || s.Lost != 1 || s.Salvaged != records-3 {
		t.Errorf("report %+v", s)
	}
}

func mustPending(t *testing.T, o *Outbox) []*gobridge.OutboxRecord {
	t.Helper()
	records, err := o.Pending(t.Context(), "b", 0, 1<<20, 1<<40)
	if err != nil {
		t.Fatal(err)
	}
	return records
}

func TestInterruptedSalvageIsFinished(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filled(t, dir, 10, 100, 0)
	rename := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	// The crash came after the damaged file had been set aside, its log had not.
	rename(path, path+salvagedSuffix)
	if err := os.WriteFile(path+"-wal", []byte("the log of the damaged file"), 0o600); err != nil {
		t.Fatal(err)
	}
	o, found := readAll(t, dir)
	o.Close()
	if len(found) != 10 {
		t.Errorf("%d messages, want 10", len(found))
	}
	// The crash came while the new file was written.
	if err := os.WriteFile(path+salvagedSuffix, []byte("half a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	o, found = readAll(t, dir)
	defer o.Close()
	if _, err := os.Stat(path + salvagedSuffix); len(found) != 10 || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%d messages, want 10; the half file: %v", len(found), err)
	}
}

func TestASharedFileIsNotReplaced(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filled(t, dir, 10, 100, 0)
	overwrite(t, path, func(b []byte) []byte { clear(b[:4096]); return b })
	s := testSettings(t, dir)
	s.lock = ""
	if d, err := open(s); err == nil {
		d.close()
		t.Fatal("a damaged file that others may use was opened")
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the file is gone: %v", err)
	}
}

// The reader of pages takes whatever is in a file.
func FuzzPages(f *testing.F) {
	dir := f.TempDir()
	f.Add([]byte("SQLite format 3\x00\x10\x00"), []byte{})
	f.Fuzz(func(t *testing.T, db, wal []byte) {
		path := filepath.Join(dir, "fuzz.db")
		for name, b := range map[string][]byte{path: db, path + "-wal": wal} {
			if err := os.WriteFile(name, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		p, err := openPages(path)
		if err != nil {
			t.Fatal(err)
		}
		defer p.close()
		if err := p.rows(func(_ int64, record []byte, _ bool) error {
			for _, c := range columns(record, nil) {
				c.int()
			}
			return nil
		}); err != nil {
			t.Errorf("rows: %v", err)
		}
	})
}
