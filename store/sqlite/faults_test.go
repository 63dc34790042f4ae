package sqlite

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/vfs"

	"github.com/gobridge/gobridge"
)

// faulty is a VFS whose writes and syncs fail while told so.
type faulty struct {
	vfs.VFSFilename
	writes, syncs atomic.Pointer[error]
	onSync        atomic.Pointer[func()] // called before each sync, which waits for it
}

func (v *faulty) OpenFilename(name *vfs.Filename, flags vfs.OpenFlag) (vfs.File, vfs.OpenFlag, error) {
	f, flags, err := v.VFSFilename.OpenFilename(name, flags)
	if err != nil {
		return f, flags, err
	}
	return &faultyFile{File: f, v: v}, flags, nil
}

type faultyFile struct {
	vfs.File
	v *faulty
}

func (f *faultyFile) WriteAt(b []byte, at int64) (int, error) {
	if err := f.v.writes.Load(); err != nil {
		return 0, *err
	}
	return f.File.WriteAt(b, at)
}

func (f *faultyFile) Sync(flags vfs.SyncFlag) error {
	if err := f.v.syncs.Load(); err != nil {
		return *err
	}
	if on := f.v.onSync.Load(); on != nil {
		(*on)()
	}
	return f.File.Sync(flags)
}

func (f *faultyFile) SharedMemory() vfs.SharedMemory {
	return f.File.(vfs.FileSharedMemory).SharedMemory()
}

func (f *faultyFile) LockState() vfs.LockLevel { return f.File.(vfs.FileLockState).LockState() }

// faultySettings place a database in a new directory, on a faulty VFS.
func faultySettings(t *testing.T) (settings, *faulty) {
	t.Helper()
	v := &faulty{VFSFilename: vfs.Find("os").(vfs.VFSFilename)}
	name := "faulty-" + strings.ReplaceAll(t.Name(), "/", "-")
	vfs.Register(name, v)
	t.Cleanup(func() { vfs.Unregister(name) })
	s := testSettings(t, t.TempDir())
	s.uri = map[string][]string{"vfs": {name}}
	return s, v
}

type outcomes chan error

func (o outcomes) OutboxDone(_ []*gobridge.OutboxRecord, err error) { o <- err }

// ask makes a call of an outbox and returns its outcome.
func ask(call func([]*gobridge.OutboxRecord, gobridge.OutboxDone), records ...*gobridge.OutboxRecord) error {
	done := make(outcomes, 1)
	call(records, done)
	return <-done
}

func plain(binding string, n int) *gobridge.OutboxRecord {
	return &gobridge.OutboxRecord{RouteID: "r", BindingID: binding, Envelope: gobridge.Envelope{
		ID: strconv.Itoa(n), IDOrigin: gobridge.IDProducer, Payload: []byte("payload " + strconv.Itoa(n)),
	}}
}

func wantOutage(t *testing.T, err error) {
	t.Helper()
	if e := gobridge.AsError(err); err == nil || !e.Outage || e.Class != gobridge.ClassTransient || e.Hint == "" {
		t.Errorf("error %v, want a transient outage with a hint", err)
	}
}

func TestFullDiskRefusesUntilThereIsRoom(t *testing.T) {
	t.Parallel()
	s := testSettings(t, t.TempDir())
	s.pragmas = "PRAGMA max_page_count = 100;"
	o := openOutbox(t, s)
	defer o.Close()
	var stored []*gobridge.OutboxRecord
	var err error
	for n := 0; err == nil; n++ {
		r := plain("b", n)
		r.Envelope.Payload = make([]byte, 3000)
		if err = ask(o.Persist, r); err == nil {
			stored = append(stored, r)
		}
	}
	wantOutage(t, err)
	wantOutage(t, o.Err())
	if !errors.Is(err, sqlite3.FULL) || !strings.Contains(err.Error(), o.db.path) {
		t.Errorf("error %v does not say what is full", err)
	}
	if got := o.Depth("b"); got != len(stored) {
		t.Errorf("depth %d after %d confirmed records", got, len(stored))
	}
	// What makes room still works, and the store goes on by itself.
	for _, r := range stored[:len(stored)/2] {
		if err := ask(o.Complete, r); err != nil {
			t.Fatalf("complete on a full disk: %v", err)
		}
	}
	waitFor(t, "the store takes writes again", func() bool { return o.Err() == nil })
	if err := ask(o.Persist, plain("b", 10_000)); err != nil {
		t.Errorf("persist after room was made: %v", err)
	}
}

// The process that cannot open its store ends: nothing goes on by itself.
func TestFullDiskAtTheStartAsksForAnotherStart(t *testing.T) {
	t.Parallel()
	s := testSettings(t, t.TempDir())
	s.pragmas = "PRAGMA max_page_count = 2;"
	d, err := open(s)
	if err == nil {
		_ = d.close()
		t.Fatal("a store without room was opened")
	}
	wantOutage(t, err)
	if !errors.Is(err, sqlite3.FULL) || !strings.Contains(gobridge.AsError(err).Hint, "start again") {
		t.Errorf("got %v", err)
	}
}

func TestFullDiskRefusesOnlyWhatNeedsRoom(t *testing.T) {
	t.Parallel()
	s := testSettings(t, t.TempDir())
	o := openOutbox(t, s)
	defer o.Close()
	stored := plain("b", 1)
	if err := ask(o.Persist, stored); err != nil {
		t.Fatal(err)
	}
	limit := func(pages string) {
		t.Helper()
		err := o.db.do(t.Context(), false, func(c *conn) (func(), error) { return nil, c.Exec("PRAGMA max_page_count = " + pages) })
		if err != nil {
			t.Fatal(err)
		}
	}
	limit("1") // stands for the present size
	hold := make(chan struct{})
	o.Persist(nil, outcomeFunc(func([]*gobridge.OutboxRecord, error) { <-hold }))
	big, done := plain("b", 2), make(outcomes, 2)
	big.Envelope.Payload = make([]byte, 1<<20)
	o.Persist([]*gobridge.OutboxRecord{big}, done)
	o.Complete([]*gobridge.OutboxRecord{stored}, done)
	close(hold) // both are in one group
	wantOutage(t, <-done)
	if err := <-done; err != nil {
		t.Errorf("the completion in the group of a record without room: %v", err)
	}
	if big.Seq != 0 {
		t.Errorf("a refused record has seq %d", big.Seq)
	}
	limit("1000000")
	waitFor(t, "the store takes writes again", func() bool { return o.Err() == nil })
	if err := ask(o.Persist, big); err != nil || big.Duplicate {
		t.Errorf("the refused record again: duplicate %t, %v", big.Duplicate, err)
	}
}

func TestFailingDiskRefusesAndRecovers(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"write", "sync"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s, v := faultySettings(t)
			o := openOutbox(t, s)
			defer func() { o.Close() }()
			if err := ask(o.Persist, plain("b", 1)); err != nil {
				t.Fatal(err)
			}
			broken := error(sqlite3.IOERR_WRITE)
			fault := &v.writes
			if what == "sync" {
				broken, fault = sqlite3.IOERR_FSYNC, &v.syncs
			}
			fault.Store(&broken)
			wantOutage(t, ask(o.Persist, plain("b", 2)))
			wantOutage(t, o.Err())
			wantOutage(t, ask(o.Complete, plain("b", 1)))
			if page, err := o.Pending(t.Context(), "b", 0, 10, 1<<20); err == nil && len(page) != 1 {
				t.Errorf("%d records are pending, want 1", len(page))
			}
			fault.Store(nil)
			waitFor(t, "the store takes writes again", func() bool { return o.Err() == nil })
			if err := ask(o.Persist, plain("b", 2), plain("b", 3)); err != nil {
				t.Fatal(err)
			}
			if err := o.Close(); err != nil {
				t.Fatal(err)
			}
			o = openOutbox(t, s)
			page, err := o.Pending(t.Context(), "b", 0, 10, 1<<20)
			if err != nil || len(page) != 3 || o.Salvaged() != nil {
				t.Errorf("%d records after reopening, %v, salvage %v", len(page), err, o.Salvaged())
			}
		})
	}
}

func TestSlowSyncMakesLargerGroups(t *testing.T) {
	t.Parallel()
	s, v := faultySettings(t)
	o := openOutbox(t, s)
	defer o.Close()
	gate := make(chan struct{})
	v.onSync.Store(new(func() { <-gate }))
	const n = 500
	done := make(outcomes, n)
	for i := range n {
		o.Persist([]*gobridge.OutboxRecord{plain("b", i)}, done)
	}
	syncs := 0
	for left := n; left > 0; {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			left--
		case gate <- struct{}{}:
			syncs++
		case <-time.After(20 * time.Second):
			t.Fatal("records are not confirmed")
		}
	}
	// What came before the first group was taken, and what came while it waited.
	if syncs > 2 {
		t.Errorf("%d syncs for %d records that all waited", syncs, n)
	}
	v.onSync.Store(nil)
	close(gate)
}

func TestAFailingJobDoesNotHarmItsGroup(t *testing.T) {
	t.Parallel()
	o := openOutbox(t, testSettings(t, t.TempDir()))
	defer o.Close()
	hold, done := make(chan struct{}), make(outcomes, 3)
	o.Persist(nil, outcomeFunc(func([]*gobridge.OutboxRecord, error) { <-hold }))
	o.Persist([]*gobridge.OutboxRecord{plain("b", 1)}, done)
	bad := &call{done: make(chan error, 1), f: func(c *conn) (func(), error) {
		return nil, c.Exec("INSERT INTO meta VALUES ('fence', 1)") // there already
	}}
	o.db.queue.add(bad)
	tooLarge := plain("b", 2)
	tooLarge.Envelope.Payload = make([]byte, maxRecord+1)
	o.Persist([]*gobridge.OutboxRecord{tooLarge}, done)
	o.Persist([]*gobridge.OutboxRecord{plain("b", 3)}, done)
	close(hold)
	if err := <-done; err != nil {
		t.Errorf("before the failing jobs: %v", err)
	}
	if e := gobridge.AsError(<-bad.done); e.Code != gobridge.CodeInternal {
		t.Errorf("the failing job: %v", e)
	}
	if e := gobridge.AsError(<-done); e.Code != gobridge.CodePayloadTooLarge || e.Class != gobridge.ClassRejected {
		t.Errorf("the record that is too large: %v", e)
	}
	if err := <-done; err != nil {
		t.Errorf("after the failing jobs: %v", err)
	}
	if err := o.Err(); err != nil || o.Depth("b") != 2 {
		t.Errorf("depth %d, %v", o.Depth("b"), err)
	}
}

// A file that somebody removed takes writes that no later process would find.
func TestARemovedFileTakesNothingMore(t *testing.T) {
	t.Parallel()
	s := testSettings(t, t.TempDir())
	o := openOutbox(t, s)
	defer o.Close()
	stored := plain("b", 1)
	if err := ask(o.Persist, stored); err != nil {
		t.Fatal(err)
	}
	aside := s.path + ".aside"
	if err := os.Rename(s.path, aside); err != nil {
		t.Skipf("NOT RUN: an open file cannot be moved here: %v", err)
	}
	wantOutage(t, ask(o.Persist, plain("b", 2)))
	if err := o.Err(); !errors.Is(err, errGone) {
		t.Errorf("the store says %v", err)
	}
	if page, err := o.Pending(t.Context(), "b", 0, 10, 1<<20); err != nil || len(page) != 1 {
		t.Errorf("%d records are pending, want 1; %v", len(page), err)
	}
	if err := ask(o.Complete, stored); err != nil {
		t.Errorf("complete what was stored: %v", err)
	}
	if err := os.Rename(aside, s.path); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the store takes writes again", func() bool { return o.Err() == nil })
	if err := ask(o.Persist, plain("b", 2)); err != nil {
		t.Errorf("persist after the file came back: %v", err)
	}
}
