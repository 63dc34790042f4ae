package sqlite

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ncruces/go-sqlite3/vfs"

	"github.com/gobridge/gobridge"
)

// A loss of power keeps what was synced and any part of what was not: each write
// since the last sync of its file may be on the disk, partly there, or missing, in
// any combination.

// recorder is a VFS that notes what reaches the files of one database. The test
// adds its own notes between.
type recorder struct {
	vfs.VFSFilename

	mu     sync.Mutex
	events []event
}

type eventKind int

const (
	wrote eventKind = iota
	truncated
	synced
	deleted
	dirSynced // no deletion before it can come undone
	// What the test notes about message n.
	stored    // its Persist was confirmed
	finishing // its Complete begins
	finished  // its Complete was confirmed
)

type event struct {
	kind eventKind
	file string
	at   int64 // offset, or size for truncated
	data []byte
	n    int
}

func (r *recorder) note(e event) {
	r.mu.Lock()
	r.events = append(r.events, e)
	r.mu.Unlock()
}

func (r *recorder) OpenFilename(name *vfs.Filename, flags vfs.OpenFlag) (vfs.File, vfs.OpenFlag, error) {
	f, flags, err := r.VFSFilename.OpenFilename(name, flags)
	if err != nil || name == nil {
		return f, flags, err
	}
	// The VFS syncs the directory with the first sync of a journal that it made.
	journal := flags&vfs.OPEN_CREATE != 0 && flags&(vfs.OPEN_MAIN_JOURNAL|vfs.OPEN_WAL) != 0
	return &recordedFile{File: f, r: r, name: filepath.Base(name.String()), fresh: journal}, flags, nil
}

func (r *recorder) Delete(name string, syncDir bool) error {
	err := r.VFSFilename.Delete(name, syncDir)
	if err == nil {
		r.note(event{kind: deleted, file: filepath.Base(name)})
		if syncDir {
			r.note(event{kind: dirSynced})
		}
	}
	return err
}

type recordedFile struct {
	vfs.File
	r     *recorder
	name  string
	fresh bool
}

func (f *recordedFile) WriteAt(b []byte, at int64) (int, error) {
	f.r.note(event{kind: wrote, file: f.name, at: at, data: slices.Clone(b)})
	return f.File.WriteAt(b, at)
}

func (f *recordedFile) Truncate(size int64) error {
	f.r.note(event{kind: truncated, file: f.name, at: size})
	return f.File.Truncate(size)
}

func (f *recordedFile) Sync(flags vfs.SyncFlag) error {
	err := f.File.Sync(flags)
	if err == nil {
		f.r.note(event{kind: synced, file: f.name})
		if f.fresh {
			f.fresh = false
			f.r.note(event{kind: dirSynced})
		}
	}
	return err
}

func (f *recordedFile) SharedMemory() vfs.SharedMemory {
	return f.File.(vfs.FileSharedMemory).SharedMemory()
}

func (f *recordedFile) LockState() vfs.LockLevel { return f.File.(vfs.FileLockState).LockState() }

// record registers a recorder for one test.
func record(t *testing.T) (*recorder, url.Values) {
	t.Helper()
	r := &recorder{VFSFilename: vfs.Find("os").(vfs.VFSFilename)}
	name := "recorder-" + strings.ReplaceAll(t.Name(), "/", "-")
	vfs.Register(name, r)
	t.Cleanup(func() { vfs.Unregister(name) })
	return r, url.Values{"vfs": {name}}
}

// lossMessage is the n-th message of the workload; every third has an id made up by
// the bridge.
func lossMessage(n int) *gobridge.OutboxRecord {
	r := &gobridge.OutboxRecord{
		RouteID: "r", BindingID: strconv.Itoa(n % 3),
		Envelope: gobridge.Envelope{ID: strconv.Itoa(n), IDOrigin: gobridge.IDProducer, Payload: []byte(strings.Repeat(strconv.Itoa(n)+" ", 1+n*37%400))},
	}
	if n%3 == 2 {
		r.Envelope.IDOrigin = gobridge.IDGenerated
	}
	return r
}

// outcomeFunc is an OutboxDone made of a function.
type outcomeFunc func(records []*gobridge.OutboxRecord, err error)

func (f outcomeFunc) OutboxDone(records []*gobridge.OutboxRecord, err error) { f(records, err) }

// loseWorkload persists, charges and completes messages at random and notes what was
// confirmed.
func loseWorkload(t *testing.T, s settings, r *recorder, rng *rand.Rand, messages int) {
	t.Helper()
	next := 0
	for next < messages {
		o := openOutbox(t, s)
		var mu sync.Mutex
		var held []*gobridge.OutboxRecord
		for stop := next + messages/3; next < stop; {
			var group []*gobridge.OutboxRecord
			for range 1 + rng.IntN(8) {
				group = append(group, lossMessage(next))
				next++
			}
			wait := make(chan struct{})
			o.Persist(group, outcomeFunc(func(records []*gobridge.OutboxRecord, err error) {
				if err != nil {
					t.Errorf("persist: %v", err)
				}
				for _, rec := range records {
					n, _ := strconv.Atoi(rec.Envelope.ID)
					r.note(event{kind: stored, n: n})
				}
				mu.Lock()
				held = append(held, records...)
				mu.Unlock()
				close(wait)
			}))
			if rng.IntN(3) == 0 {
				<-wait
			}
			mu.Lock()
			rng.Shuffle(len(held), func(i, j int) { held[i], held[j] = held[j], held[i] })
			leave := held[:rng.IntN(len(held)+1)]
			held = slices.Clone(held[len(leave):])
			charged := slices.Clone(held[:len(held)/2]) // the store reads it later
			mu.Unlock()
			for _, rec := range leave {
				n, _ := strconv.Atoi(rec.Envelope.ID)
				r.note(event{kind: finishing, n: n})
			}
			o.Charge(charged, outcomeFunc(func([]*gobridge.OutboxRecord, error) {}))
			o.Complete(leave, outcomeFunc(func(records []*gobridge.OutboxRecord, err error) {
				if err != nil {
					t.Errorf("complete: %v", err)
				}
				for _, rec := range records {
					n, _ := strconv.Atoi(rec.Envelope.ID)
					r.note(event{kind: finished, n: n})
				}
			}))
		}
		if err := o.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// openOutbox opens an outbox with settings of a test.
func openOutbox(t testing.TB, s settings) *Outbox {
	t.Helper()
	o, err := attach(s, func(d *database) (*Outbox, error) { return newOutbox(t.Context(), d, time.Hour, maxDone) })
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return o
}

// diskFile is what one file is on the disk, and what has been asked of it since its
// last sync.
type diskFile struct {
	content []byte
	gone    bool
	open    []event
}

func (f *diskFile) apply(e event) {
	switch e.kind {
	case wrote:
		if end := int(e.at) + len(e.data); end > len(f.content) {
			f.content = append(f.content, make([]byte, end-len(f.content))...)
		}
		copy(f.content[e.at:], e.data)
		f.gone = false
	case truncated:
		f.content = append([]byte(nil), f.content...)
		if int(e.at) <= len(f.content) {
			f.content = f.content[:e.at]
		} else {
			f.content = append(f.content, make([]byte, int(e.at)-len(f.content))...)
		}
	case deleted:
		f.content, f.gone = nil, true
	}
}

// keepDeletions makes the last deletion final.
func (f *diskFile) keepDeletions() {
	for i := len(f.open) - 1; i >= 0; i-- {
		if f.open[i].kind == deleted {
			for _, e := range f.open[:i+1] {
				f.apply(e)
			}
			f.open = f.open[i+1:]
			return
		}
	}
}

// crash is what a loss of power leaves of a file.
func (f *diskFile) crash(rng *rand.Rand, mode lossMode) *diskFile {
	left := &diskFile{content: slices.Clone(f.content), gone: f.gone}
	prefix := rng.IntN(len(f.open) + 1)
	for i, e := range f.open {
		switch {
		case mode == keepAll, mode == keepPrefix && i < prefix, mode == keepSome && rng.IntN(2) == 0:
			left.apply(e)
		case mode == keepSome && e.kind == wrote && rng.IntN(2) == 0, mode == keepPrefix && i == prefix && e.kind == wrote:
			// Torn: some sectors of it.
			torn := e
			torn.data = e.data[:min(len(e.data), 512*rng.IntN(len(e.data)/512+1))]
			left.apply(torn)
		}
	}
	return left
}

type lossMode int

const (
	keepNone lossMode = iota
	keepAll
	keepPrefix
	keepSome
	lossModes
)

// disk replays events into files.
func disk(events []event) map[string]*diskFile {
	files := map[string]*diskFile{}
	for _, e := range events {
		if e.kind == dirSynced {
			for _, f := range files {
				f.keepDeletions()
			}
		}
		if e.file == "" {
			continue
		}
		f := files[e.file]
		if f == nil {
			f = &diskFile{gone: true}
			files[e.file] = f
		}
		switch e.kind {
		case synced:
			for _, e := range f.open {
				f.apply(e)
			}
			f.open = nil
		default:
			f.open = append(f.open, e)
		}
	}
	return files
}

// verifyLoss opens what a loss of power left and returns what is wrong with it.
func verifyLoss(t *testing.T, events []event, files map[string]*diskFile, rng *rand.Rand, mode lossMode) (faults []string) {
	t.Helper()
	dir := t.TempDir()
	defer os.RemoveAll(dir)
	for name, f := range files {
		if left := f.crash(rng, mode); !left.gone {
			if err := os.WriteFile(filepath.Join(dir, name), left.content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	o := openOutbox(t, testSettings(t, dir))
	defer o.Close()
	if s := o.Salvaged(); s != nil {
		return []string{"the file was damaged: " + s.Cause}
	}
	was, begun, ended := map[int]bool{}, map[int]bool{}, map[int]bool{}
	for _, e := range events {
		switch e.kind {
		case stored:
			was[e.n] = true
		case finishing:
			begun[e.n] = true
		case finished:
			ended[e.n] = true
		}
	}
	pending := map[int]bool{}
	for _, b := range []string{"0", "1", "2"} {
		records, err := o.Pending(t.Context(), b, 0, 1<<20, 1<<40)
		if err != nil {
			t.Fatal(err)
		}
		for _, rec := range records {
			n, _ := strconv.Atoi(rec.Envelope.ID)
			if string(rec.Envelope.Payload) != string(lossMessage(n).Envelope.Payload) {
				faults = append(faults, fmt.Sprintf("message %d has another payload", n))
			}
			pending[n] = true
		}
		if len(records) != o.Depth(b) {
			faults = append(faults, fmt.Sprintf("depth %d, %d records", o.Depth(b), len(records)))
		}
	}
	var again []*gobridge.OutboxRecord
	for n := range was {
		if !begun[n] && !pending[n] {
			faults = append(faults, fmt.Sprintf("message %d is lost", n))
		}
		if ended[n] && pending[n] {
			faults = append(faults, fmt.Sprintf("message %d came back after its completion", n))
		}
		if rec := lossMessage(n); keyed(rec) {
			again = append(again, rec)
		}
	}
	done := make(chan error, 1)
	o.Persist(again, outcomeFunc(func(_ []*gobridge.OutboxRecord, err error) { done <- err }))
	if err := <-done; err != nil {
		faults = append(faults, err.Error())
	}
	for _, rec := range again {
		if !rec.Duplicate {
			faults = append(faults, "the evidence of message "+rec.Envelope.ID+" is lost")
		}
	}
	return faults
}

// losePower runs the workload and cuts the power at random moments; it returns the
// first faults.
func losePower(t *testing.T, pragmas string, cuts int) []string {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	r, uri := record(t)
	s := testSettings(t, t.TempDir())
	// Small, so that checkpoints and new logs are part of it.
	s.uri, s.pragmas = uri, "PRAGMA wal_autocheckpoint = 30;"+pragmas
	loseWorkload(t, s, r, rng, 240)
	for range cuts {
		at := rng.IntN(len(r.events) + 1)
		files := disk(r.events[:at])
		for mode := range lossModes {
			if faults := verifyLoss(t, r.events[:at], files, rng, mode); len(faults) > 0 {
				return append(faults[:min(len(faults), 5)], fmt.Sprintf("(event %d of %d, mode %d)", at, len(r.events), mode))
			}
		}
	}
	return nil
}

// Covers: G05
func TestPowerLossLosesNothingConfirmed(t *testing.T) {
	t.Parallel()
	if faults := losePower(t, "", long(25, 2000)); faults != nil {
		t.Errorf("after a loss of power: %s", strings.Join(faults, "; "))
	}
}

// The test above has to be able to fail: with weaker settings it finds losses.
func TestPowerLossIsNoticedWithoutFullSync(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"OFF", "NORMAL"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			if losePower(t, "PRAGMA synchronous = "+level, 200) == nil {
				t.Errorf("no loss was found with synchronous = %s", level)
			}
		})
	}
}

// long is how many times a test repeats: few, or with LONG=1 many.
func long(few, many int) int {
	if os.Getenv("LONG") == "1" {
		return many
	}
	return few
}
