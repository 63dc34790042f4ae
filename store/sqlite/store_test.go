package sqlite

import (
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gobridge/gobridge"
)

func TestASecondOwnerIsRefusedWithTheFirstsPid(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, err := acquire(filepath.Join(dir, lockName))
	if err != nil {
		t.Fatal(err)
	}
	b := &gobridge.BridgeSpec{DataDir: dir}
	_, err = OutboxKind().Open(t.Context(), b, &gobridge.StoreSpec{}, testEnv(t))
	if err == nil || !strings.Contains(err.Error(), "pid "+strconv.Itoa(os.Getpid())) || !strings.Contains(err.Error(), dir) {
		t.Errorf("open while locked: %v", err)
	}
	l.release()
	o := outboxIn(t, dir)()
	if err := o.Close(); err != nil {
		t.Error(err)
	}
}

func TestTheStoresOfADataDirShareOneFileAndItsLock(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	o, q := outboxIn(t, dir)(), dlqIn(t, dir)()
	if a, b := o.(*Outbox).db, q.(*DLQ).db; a != b {
		t.Error("two databases for one file")
	}
	if err := o.Close(); err != nil {
		t.Error(err)
	}
	if _, err := q.Depth(t.Context()); err != nil {
		t.Errorf("after another store was closed: %v", err)
	}
	if _, err := q.Put(t.Context(), &gobridge.DeadLetter{Key: "k"}); err != nil {
		t.Errorf("after another store was closed: %v", err)
	}
	if _, err := acquire(filepath.Join(dir, lockName)); err == nil {
		t.Error("the lock went with the first store")
	}
	for range 2 { // Close may be repeated
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := q.Put(t.Context(), &gobridge.DeadLetter{Key: "k"}); !errors.Is(err, gobridge.ErrClosed) {
		t.Errorf("Put after Close: %v", err)
	}
	if runtime.GOOS != "windows" {
		info, err := os.Stat(filepath.Join(dir, fileName))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("mode %v, %v; messages are private", info.Mode(), err)
		}
	}
}

func TestAHistoryMayBeSharedByProcesses(t *testing.T) {
	t.Parallel()
	s := place(&gobridge.BridgeSpec{DataDir: t.TempDir()}, filepath.Join(t.TempDir(), "history.db"), false, testEnv(t))
	k := gobridge.HistoryKey{SessionID: "s", ClientID: "c"}
	// Two databases of one file, as two processes have them.
	for n := range 2 {
		d, err := open(s)
		if err != nil {
			t.Fatal(err)
		}
		defer d.close()
		h, err := newHistory(t.Context(), d)
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Remember(t.Context(), k, strconv.Itoa(n)); err != nil {
			t.Fatal(err)
		}
		if filters, _, err := h.Load(t.Context(), k); err != nil || len(filters) != n+1 {
			t.Errorf("process %d sees %v, %v", n, filters, err)
		}
	}
}

func TestForeignAndNewerFilesAreRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ script, want string }{
		{"CREATE TABLE songs (title)", "belongs to another program"},
		{"PRAGMA user_version = 3", "belongs to another program"},
		{fmt.Sprintf("PRAGMA application_id = %d; PRAGMA user_version = 99", storesSchema.id), "schema version 99"},
	} {
		s := testSettings(t, t.TempDir())
		c, err := connect(s.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Exec(tt.script); err != nil {
			t.Fatal(err)
		}
		if err := c.close(); err != nil {
			t.Fatal(err)
		}
		before, _ := os.ReadFile(s.path)
		d, err := open(s)
		if err == nil {
			d.close()
		}
		if e := gobridge.AsError(err); err == nil || !strings.Contains(err.Error(), tt.want) || e.Hint == "" || e.Class != gobridge.ClassPermanent {
			t.Errorf("%s: error %v, want one with %q and a hint", tt.script, err, tt.want)
		}
		if after, _ := os.ReadFile(s.path); string(after[100:]) != string(before[100:]) {
			t.Errorf("%s: the refused file was changed", tt.script)
		}
	}
}

// Covers: S1-406, S1-407
func TestEvidenceEndsAndWaitingRecordsStay(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	o, err := attach(testSettings(t, dir), func(d *database) (*Outbox, error) { return newOutbox(t.Context(), d, 0, 0) })
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	r := plain("b", 1)
	if err := ask(o.Persist, r, plain("b", 2)); err != nil {
		t.Fatal(err)
	}
	if err := ask(o.Complete, r); err != nil {
		t.Fatal(err)
	}
	rows := func(table string) int64 {
		var n int64
		if err := o.db.read(t.Context(), func(c *conn) (err error) {
			n, _, err = c.query("SELECT count(*) FROM " + table).number()
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	waitFor(t, "the evidence is swept", func() bool { return rows("outbox_done") == 0 })
	if rows("outbox") != 1 || rows("outbox_record") != 1 {
		t.Errorf("%d rows and %d records wait, want 1", rows("outbox"), rows("outbox_record"))
	}
	if err := ask(o.Persist, r); err != nil || r.Duplicate {
		t.Errorf("after the retention: duplicate %t, %v", r.Duplicate, err)
	}
}

func TestEvidenceIsBounded(t *testing.T) {
	t.Parallel()
	o, err := attach(testSettings(t, t.TempDir()), func(d *database) (*Outbox, error) { return newOutbox(t.Context(), d, time.Hour, 10) })
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	for n := range 30 {
		r := plain("b", n)
		if err := ask(o.Persist, r); err != nil {
			t.Fatal(err)
		}
		if err := ask(o.Complete, r); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, "ten rows are left", func() bool {
		var n int64
		err := o.db.read(t.Context(), func(c *conn) (err error) {
			n, _, err = c.query("SELECT count(*) FROM outbox_done").number()
			return err
		})
		return err == nil && n == 10
	})
	oldest, newest := plain("b", 0), plain("b", 29)
	if err := ask(o.Persist, oldest, newest); err != nil || oldest.Duplicate || !newest.Duplicate {
		t.Errorf("oldest duplicate %t, newest duplicate %t, %v", oldest.Duplicate, newest.Duplicate, err)
	}
}

func TestDeadLettersAreBoundedInBytesAndTime(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	q := dlqIn(t, dir, func(o *DLQOptions) { o.MaxBytes, o.Retention = 3000, time.Hour })()
	defer func() { q.Close() }()
	put := func(key string, size int, at time.Time) error {
		_, err := q.Put(t.Context(), &gobridge.DeadLetter{Key: key, FirstAt: at, LastAt: at, Envelope: gobridge.Envelope{ID: key, Payload: make([]byte, size)}})
		return err
	}
	now := time.Now()
	if err := errors.Join(put("old", 1000, now.Add(-30*time.Minute)), put("new", 1000, now)); err != nil {
		t.Fatal(err)
	}
	if err := put("too much", 1000, now); !errors.Is(err, gobridge.ErrFull) {
		t.Errorf("over max_bytes: %v, want ErrFull", err)
	}
	q.Close()
	q = dlqIn(t, dir, func(o *DLQOptions) { o.MaxBytes, o.Retention = 3000, 10*time.Minute })()
	waitFor(t, "the old entry is swept", func() bool { n, _ := q.Depth(t.Context()); return n == 1 })
	if err := put("fits now", 1000, now); err != nil {
		t.Error(err)
	}
	for l, err := range q.List(t.Context(), gobridge.DLQFilter{}) {
		if err != nil || l.Key == "old" {
			t.Errorf("listed %+v, %v", l, err)
		}
	}
}

func TestTheLedgerForgetsTheOldest(t *testing.T) {
	t.Parallel()
	l, err := attach(testSettings(t, t.TempDir()), func(d *database) (*Ledger, error) { return newLedger(t.Context(), d) })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	l.max = 3
	charge := func(id string, want int) {
		t.Helper()
		if n, err := l.Charge(t.Context(), gobridge.LedgerKey{RouteID: "r", EnvelopeID: id}); err != nil || n != want {
			t.Errorf("charge of %s: %d, %v; want %d", id, n, err, want)
		}
	}
	for _, id := range []string{"1", "2", "3"} {
		charge(id, 1)
	}
	charge("1", 2)
	charge("4", 1) // 2 was charged longest ago
	charge("1", 3)
	charge("2", 1) // and now 3
	if n, _ := l.Len(t.Context()); n != 3 {
		t.Errorf("%d messages, want 3", n)
	}
	// Eight days later.
	err = l.do(t.Context(), false, func(c *conn) (func(), error) {
		_, err := l.sweep(c, time.Now().Add(8*24*time.Hour), 100)
		return nil, err
	})
	if n, _ := l.Len(t.Context()); err != nil || n != 0 || !l.oldest.IsZero() {
		t.Errorf("%d messages after eight days, %v", n, err)
	}
}

func TestVerifyAndBackup(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	filled(t, dir, 100, 300, 5)
	o := openOutbox(t, testSettings(t, dir))
	v, err := o.Verify(t.Context())
	if err != nil || v.Records != 100 || v.DeadLetters != 5 || len(v.Problems) != 0 {
		t.Errorf("verification %+v, %v", v, err)
	}
	copied := filepath.Join(t.TempDir(), fileName)
	if err := o.Backup(t.Context(), copied); err != nil {
		t.Fatal(err)
	}
	if err := o.Backup(t.Context(), copied); err == nil {
		t.Error("a backup over an existing file was made")
	}
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	o, found := readAll(t, filepath.Dir(copied))
	if len(found) != 105 || o.Salvaged() != nil {
		t.Errorf("the backup holds %d messages", len(found))
	}
	o.Close()
	overwrite(t, copied, func(b []byte) []byte { b[len(b)-500] ^= 1; b[9*4096+1000] ^= 1; return b })
	s := testSettings(t, filepath.Dir(copied))
	h, err := attach(s, func(d *database) (*History, error) { return newHistory(t.Context(), d) })
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if v, err := h.Verify(t.Context()); err != nil || len(v.Problems) == 0 {
		t.Errorf("verification of a damaged file %+v, %v", v, err)
	}
}

func TestLeftoversOfAKilledProcessAreRemovedAtOpen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	leave := func(name string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	path := filepath.Join(dir, fileName)
	ours := []string{leave(gobridge.ScratchPrefix(path) + "123/copy.db"), leave(gobridge.ScratchPrefix(path) + "456")}
	theirs := []string{leave("backup-2026/copy.db"), leave(gobridge.ScratchPrefix("other.db") + "789"), leave("notes")}
	o := openOutbox(t, testSettings(t, dir))
	defer o.Close()
	for _, name := range ours {
		if _, err := os.Stat(name); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there: %v", name, err)
		}
	}
	for _, name := range theirs {
		if _, err := os.Stat(name); err != nil {
			t.Errorf("%s is gone: %v", name, err)
		}
	}
}

func TestAPlaceThatTheSystemRefusesIsNamedWithAHint(t *testing.T) {
	t.Parallel()
	link := func(t *testing.T, target, name string) {
		t.Helper()
		if err := os.Symlink(target, name); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name    string
		prepare func(t *testing.T, dir string)
		hint    string
	}{
		{"link to no directory", func(t *testing.T, dir string) { link(t, filepath.Join(dir, "gone"), filepath.Join(dir, "data")) }, "symbolic link to "},
		{"link to no file", func(t *testing.T, dir string) {
			if err := os.Mkdir(filepath.Join(dir, "data"), 0o700); err != nil {
				t.Fatal(err)
			}
			link(t, filepath.Join(dir, "gone", fileName), filepath.Join(dir, "data", fileName))
		}, "symbolic link to "},
		{"file instead of a directory", func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, "data"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "a directory is needed"},
		{"no right to write", func(t *testing.T, dir string) {
			if os.Getuid() <= 0 {
				t.Skip("this user may write everywhere, or rights are of another kind here")
			}
			if err := os.Mkdir(filepath.Join(dir, "data"), 0o500); err != nil {
				t.Fatal(err)
			}
		}, "needs to write to"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			tt.prepare(t, dir)
			d, err := open(testSettings(t, filepath.Join(dir, "data")))
			if err == nil {
				d.close()
			}
			if e, ok := errors.AsType[*gobridge.Error](err); !ok || !strings.Contains(e.Hint, tt.hint) {
				t.Errorf("open: %v, want a hint with %q", err, tt.hint)
			}
		})
	}
	for _, err := range []error{syscall.EROFS, syscall.EACCES, syscall.EPERM} {
		if refusalHint(filepath.Join(t.TempDir(), fileName), &os.PathError{Op: "open", Err: err}) == "" {
			t.Errorf("no hint for %v", err)
		}
	}
}

func TestOptionsHaveTheDefaultsOfTheContract(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ got, want any }{
		{OutboxKind().Options(), &OutboxOptions{Retention: time.Hour}},
		{DLQKind().Options(), &DLQOptions{MaxBytes: 1 << 30}},
		{LedgerKind().Options(), &LedgerOptions{}},
		{HistoryKind().Options(), &HistoryOptions{}},
	} {
		if diff := cmp.Diff(tt.want, tt.got); diff != "" {
			t.Errorf("defaults (-want +got):\n%s", diff)
		}
	}
	if _, err := OutboxKind().Open(t.Context(), &gobridge.BridgeSpec{}, &gobridge.StoreSpec{Options: &DLQOptions{}}, testEnv(t)); err == nil {
		t.Error("the options of another kind were taken")
	}
}

// The bytes of version 1 of both records; they must stay readable.
var golden = map[string]string{
	"record": "67425201028e80d0e2c6bfce972f05726f7574650762696e64696e6702746f010100026964000466726f6d00000004626f6479c6ff8ff2f780fdb3",
	"letter": "6742440101058080d0e2c6bfce972f80a8a69ccebfce972f0430313930036b657905726f7574650762696e64696e6706736f7572636506706f69736f6e0754494d454f555404736c6f7702746f010000026964000466726f6d00000004626f647921b3b44b4987a529",
}

func goldenRecord() *gobridge.OutboxRecord {
	return &gobridge.OutboxRecord{
		RouteID: "route", BindingID: "binding", Generation: 2, Address: "to", PersistedAt: time.Unix(1_700_000_000, 7),
		Envelope: gobridge.Envelope{ID: "id", IDOrigin: gobridge.IDProducer, Topic: "from", Payload: []byte("body")},
	}
}

func goldenLetter() *gobridge.DeadLetter {
	return &gobridge.DeadLetter{
		ID: "0190", Key: "key", RouteID: "route", BindingID: "binding", SourceID: "source", Category: gobridge.CategoryPoison,
		Code: gobridge.CodeTimeout, LastError: "slow", Attempts: 5, FirstAt: time.Unix(1_700_000_000, 0), LastAt: time.Unix(1_700_000_001, 0),
		Replays: 1, Address: "to", Envelope: gobridge.Envelope{ID: "id", Topic: "from", Payload: []byte("body")},
	}
}

func TestStoredRecordsStayReadable(t *testing.T) {
	t.Parallel()
	same := cmpopts.EquateApproxTime(0)
	var r gobridge.OutboxRecord
	if err := decodeRecord(unhex(t, golden["record"]), &r); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(goldenRecord(), &r, same); diff != "" {
		t.Errorf("record (-want +got):\n%s\nnow written as %x", diff, appendRecord(nil, goldenRecord()))
	}
	l, err := decodeLetter(unhex(t, golden["letter"]))
	if err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(goldenLetter(), l, same); diff != "" {
		t.Errorf("letter (-want +got):\n%s\nnow written as %x", diff, appendLetter(nil, goldenLetter()))
	}
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func FuzzRecords(f *testing.F) {
	f.Add(appendRecord(nil, goldenRecord()))
	f.Add(appendLetter(nil, goldenLetter()))
	f.Fuzz(func(t *testing.T, b []byte) {
		// Also with the checksum that a mutated record would need.
		for _, b := range [][]byte{b, seal(append([]byte(nil), b...), 0)} {
			var r gobridge.OutboxRecord
			if decodeRecord(b, &r) == nil {
				var again gobridge.OutboxRecord
				if err := decodeRecord(appendRecord(nil, &r), &again); err != nil {
					t.Errorf("a record that was read cannot be written: %v", err)
				}
			}
			if l, err := decodeLetter(b); err == nil {
				if _, err := decodeLetter(appendLetter(nil, l)); err != nil {
					t.Errorf("a letter that was read cannot be written: %v", err)
				}
			}
		}
	})
}
