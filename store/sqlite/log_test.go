package sqlite

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gobridge/gobridge"
)

// crashed is what a process that was killed leaves: so many messages, the second
// half of them in the log only, each committed alone.
func crashed(t *testing.T, records, size int) (files map[string][]byte) {
	t.Helper()
	from := t.TempDir()
	s := testSettings(t, from)
	s.pragmas = "PRAGMA wal_autocheckpoint = 0;"
	path := filled(t, from, records/2, size, 0) // in the database
	o := openOutbox(t, s)
	for n := records/2 + 1; n <= records; n++ { // filled completed one that it numbered records/2
		if err := ask(o.Persist, marked(n, size)); err != nil {
			t.Fatal(err)
		}
	}
	files = map[string][]byte{}
	for _, suffix := range []string{"", "-wal", "-shm"} {
		b, err := os.ReadFile(path + suffix)
		if err != nil {
			t.Fatal(err)
		}
		files[suffix] = b
	}
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	return files
}

// reopen opens an outbox on files and returns the messages in it.
func reopen(t *testing.T, files map[string][]byte) (found map[int]bool, s *gobridge.Salvage) {
	t.Helper()
	dir := t.TempDir()
	for suffix, b := range files {
		if err := os.WriteFile(filepath.Join(dir, fileName+suffix), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	o, found := readAll(t, dir)
	defer o.Close()
	return found, o.Salvaged()
}

// SQLite takes a damaged frame of the log for its end. What was committed after it
// must not go with it, and what is lost must be told.
func TestDamageInTheLogCostsOnlyWhatItHits(t *testing.T) {
	t.Parallel()
	const records, size, frame = 60, 300, frameHeaderBytes + 4096
	whole := crashed(t, records, size)
	frames := (len(whole["-wal"]) - logHeaderBytes) / frame
	seed := uint64(time.Now().UnixNano())
	t.Logf("%d frames, seed %d", frames, seed)
	rng := rand.New(rand.NewPCG(seed, 2))
	for name, tt := range map[string]struct {
		harm func(log []byte)
		most int // messages that may be lost
	}{
		"header of the log":        {func(b []byte) { b[rng.IntN(logHeaderBytes)] ^= 1 }, 0},
		"byte order of the log":    {func(b []byte) { b[3] ^= 1 }, 0},
		"all of the header":        {func(b []byte) { clear(b[:logHeaderBytes]) }, 0},
		"header of the first":      {func(b []byte) { b[logHeaderBytes+rng.IntN(frameHeaderBytes)] ^= 1 }, 0},
		"header of a frame":        {func(b []byte) { b[logHeaderBytes+rng.IntN(frames)*frame+rng.IntN(frameHeaderBytes)] ^= 1 }, 0},
		"byte of a page":           {func(b []byte) { b[logHeaderBytes+rng.IntN(frames)*frame+frameHeaderBytes+rng.IntN(4096)] ^= 1 }, 4096/size + 1},
		"page":                     {func(b []byte) { clear(b[logHeaderBytes+rng.IntN(frames)*frame+frameHeaderBytes:][:4096]) }, 4096/size + 1},
		"frame":                    {func(b []byte) { clear(b[logHeaderBytes+rng.IntN(frames)*frame:][:frame]) }, 4096/size + 1},
		"the last frame":           {func(b []byte) { clear(b[logHeaderBytes+(frames-1)*frame:]) }, 4096/size + 1},
		"its commit and its page":  {func(b []byte) { clear(b[logHeaderBytes+(frames-1)*frame+4:][:frame/2]) }, 4096/size + 1},
		"two frames in a row":      {func(b []byte) { clear(b[logHeaderBytes+rng.IntN(frames-2)*frame:][:2*frame]) }, 2 * (4096/size + 1)},
		"the first and the header": {func(b []byte) { clear(b[:logHeaderBytes+frame]) }, 4096/size + 1},
	} {
		t.Run(name, func(t *testing.T) {
			for range long(5, 200) {
				files := map[string][]byte{"": whole[""], "-wal": bytes.Clone(whole["-wal"]), "-shm": whole["-shm"]}
				tt.harm(files["-wal"])
				found, s := reopen(t, files)
				missing := records - len(found)
				if missing > tt.most {
					t.Errorf("%d messages are missing, want at most %d", missing, tt.most)
				}
				if s == nil {
					t.Errorf("the damage is not reported; %d messages are missing", missing)
				} else if s.Salvaged != len(found) || s.Lost < missing || s.LostUnknown {
					t.Errorf("%v is reported; %d were found", s, len(found))
				}
			}
		})
	}
	t.Run("a log cut short", func(t *testing.T) {
		files := map[string][]byte{"": whole[""], "-wal": whole["-wal"][:len(whole["-wal"])/2], "-shm": whole["-shm"]}
		if found, s := reopen(t, files); s == nil || s.Salvaged != len(found) || !s.LostUnknown {
			t.Errorf("%d messages, report %+v", len(found), s)
		}
	})
}

// What a loss of power leaves at the end of a log is no damage: its transaction was
// never confirmed.
func TestTornEndOfALogIsNoDamage(t *testing.T) {
	t.Parallel()
	const records, frame = 40, frameHeaderBytes + 4096
	whole := crashed(t, records, 300)
	log := whole["-wal"]
	frames := (len(log) - logHeaderBytes) / frame
	commit := func(i int) bool { return binary.BigEndian.Uint32(log[logHeaderBytes+i*frame+4:]) != 0 }
	first := frames - 1 // of the last transaction
	for !commit(first - 1) {
		first--
	}
	if first == frames-1 {
		t.Fatal("the last transaction has one frame only")
	}
	// The shared memory is as it was before it.
	for i := first; i < frames; i++ {
		for name, harm := range map[string]func(log []byte) []byte{
			"missing": func(b []byte) []byte { clear(b[logHeaderBytes+i*frame:][:frame]); return b },
			"torn":    func(b []byte) []byte { clear(b[logHeaderBytes+i*frame+512:][:frame-512]); return b },
			"cut":     func(b []byte) []byte { return b[:logHeaderBytes+i*frame] },
		} {
			found, s := reopen(t, map[string][]byte{"": whole[""], "-wal": harm(bytes.Clone(log))})
			if s != nil || len(found) != records-1 {
				t.Errorf("frame %d of %d %s: %d messages, want %d; report %+v", i+1, frames, name, len(found), records-1, s)
			}
		}
	}
}

// The length of a new log may reach the disk without its content. Its first
// transaction was never confirmed.
func TestNewLogWithoutItsContentIsNoDamage(t *testing.T) {
	t.Parallel()
	const records = 20
	whole := crashed(t, records, 300)
	files := map[string][]byte{"": whole[""], "-wal": make([]byte, len(whole["-wal"]))}
	if found, s := reopen(t, files); s != nil || len(found) != records/2 {
		t.Errorf("%d messages, want the %d of the database; report %+v", len(found), records/2, s)
	}
}
