package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/ncruces/go-sqlite3"

	"github.com/gobridge/gobridge/admin"
	"github.com/gobridge/gobridge/bridgetest"
)

// Decision C6: damage in the file of the stores costs what is in the damaged bytes.
// Everything else is delivered, the loss is counted, and readiness names it until
// somebody has taken note.
//
// Covers: S1-411
func TestDamagedStoreLosesOnlyWhatIsDamaged(t *testing.T) {
	const page = 4096
	for name, harm := range map[string]struct {
		// of returns where the damage begins and how long it is. at is the place of a
		// record's payload in the middle of the outbox.
		of    func(file []byte, at int) (from, length int)
		whole bool // pages are lost with everything in them
	}{
		"payload of a record": {func(_ []byte, at int) (int, int) { return at + 10, 16 }, false},
		"page":                {func(_ []byte, at int) (int, int) { return at / page * page, page }, true},
		"header of a page":    {func(_ []byte, at int) (int, int) { return at / page * page, 8 }, true},
		"several pages":       {func(_ []byte, at int) (int, int) { return at / page * page, 5 * page }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, letters := pick(800, 8000), 5
			source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
			dest, _ := refusing(t)
			cfg := viaOutbox(t, source.URL(), dest.URL())
			cfg.policy["max_outbox_depth"] = 50_000
			col := collect(t, dest.Addr(), "out/in/open")
			b := cfg.start(t)
			b.waitReady("")
			c := client(t, source.Addr())
			for i := range letters {
				publish(t, c, &packets.Publish{Topic: fmt.Sprintf("in/secret/%d", i), QoS: 1, Payload: []byte("refused")})
			}
			b.expectCounter(float64(letters), "dlq_entries")
			dest.Stop()
			b.waitNotReady("destination", patience)
			pub := bridgetest.StartPublisher(t, bridgetest.PublisherConfig{
				Addr: source.Addr(), Topic: "in/open", N: n, QoS: 1, PayloadSize: 200,
				Properties: func(i int) *packets.Properties {
					return &packets.Properties{User: []packets.User{{Key: "mark", Value: mark(i)}}}
				},
			})
			pub.Wait(t, time.Minute)
			b.waitDepth(n, patience)
			b.stop()

			file := filepath.Join(cfg.bridge["data_dir"].(string), "gobridge.db")
			whole, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			at := bytes.Index(whole, []byte(strconv.Itoa(n/2)+" xxxx"))
			if at < 0 {
				t.Fatalf("message %d is not in %s", n/2, file)
			}
			from, length := harm.of(whole, at)
			damaged := map[int]bool{n / 2: true}
			if harm.whole {
				damaged = marksIn(whole[from/page*page : (from+length+page-1)/page*page])
			}
			overwrite(t, file, from, length)

			dest.Start()
			b = cfg.start(t)
			mustCount(t, col, n-len(damaged), b, time.Minute)
			if !col.WaitQuiet(500*time.Millisecond, patience) {
				t.Error("messages still arrive")
			}
			b.waitDepth(0, patience)
			r := col.Report(pub.Ledger())
			for _, lost := range r.Lost {
				if !damaged[lost] {
					t.Errorf("message %d is lost, and was not in the damaged bytes", lost)
				}
			}
			kept := ask[admin.DLQPage](t, "dlq", "list", "--url", b.url)
			if kept.Depth != letters || len(kept.DeadLetters) != letters {
				t.Errorf("%d dead letters are left, want %d", kept.Depth, letters)
			}

			// It is counted, and named until somebody has taken note of it, over restarts too.
			b.expectCounter(1, "store_salvaged", `store="outbox"`)
			salvageNamed := func() bool {
				_, ready := b.ready()
				return strings.Contains(fmt.Sprint(ready.Reasons), "acknowledge")
			}
			b.eventually(patience, "readiness names the salvage", salvageNamed)
			b.stop()
			b = cfg.start(t)
			b.eventually(patience, "readiness names the salvage after a restart", salvageNamed)
			noted := ask[admin.StoreAcknowledged](t, "store", "acknowledge", "--url", b.url).Acknowledged
			if len(noted) != 1 {
				t.Fatalf("%d salvages acknowledged, want 1", len(noted))
			}
			t.Logf("%v; %d records in the damaged bytes; salvaged %d, lost %d: %s", r, len(damaged), noted[0].Salvaged, noted[0].Lost, noted[0].Cause)
			if noted[0].Lost != len(r.Lost) || noted[0].Salvaged != n+letters-len(r.Lost) {
				t.Errorf("%d salvaged and %d lost are reported; %d are missing", noted[0].Salvaged, noted[0].Lost, len(r.Lost))
			}
			if _, err := os.Stat(noted[0].Damaged); err != nil {
				t.Errorf("the damaged file is not kept: %v", err)
			}
			b.waitReady("")
			if r.Unexplained > 0 || r.OutOfOrder > 0 {
				t.Errorf("want no duplicate and nothing out of order: %v", r)
			}
			b.stop()
		})
	}
}

// mark is a text that names message i and is found in the bytes of its record.
func mark(i int) string { return fmt.Sprintf("<%d>", i) }

var marks = regexp.MustCompile(`<(\d+)>`)

// marksIn returns the messages whose marks are in b.
func marksIn(b []byte) map[int]bool {
	found := map[int]bool{}
	for _, m := range marks.FindAllSubmatch(b, -1) {
		if i, err := strconv.Atoi(string(m[1])); err == nil {
			found[i] = true
		}
	}
	return found
}

// overwrite puts other bytes into a file.
func overwrite(t *testing.T, path string, from, length int) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(bytes.Repeat([]byte{0xa5}, length), int64(from)); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// Decision C2: one process owns a data_dir. The second one is told who, and the
// first one does not notice.
func TestSecondProcessOnOneDataDirIsRefused(t *testing.T) {
	t.Parallel()
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	cfg := viaOutbox(t, source.URL(), dest.URL())
	b := cfg.start(t)
	b.waitReady("")
	for _, args := range [][]string{
		{"run", "-c", cfg.path}, {"outbox", "stats", "-c", cfg.path}, {"dlq", "list", "-c", cfg.path},
	} {
		stdout, stderr, code := command(t, nil, args...)
		if code != 1 || !strings.Contains(stderr, "pid "+strconv.Itoa(b.PID())) {
			t.Errorf("gobridge %v: exit code %d, want 1 and the pid %d\n%s%s", args, code, b.PID(), stdout, stderr)
		}
	}
	if _, r := b.ready(); !r.Ready {
		t.Errorf("the first process is disturbed: %+v", r)
	}
	if tr := trafficTo(source.Log(), sourceID); tr.connects != 1 {
		t.Errorf("the source saw %d connects, want 1", tr.connects)
	}
	old := b.PID()
	b.Kill9() // leaves its pid in the lock file
	b = cfg.start(t)
	b.waitReady("")
	if _, stderr, code := command(t, nil, "run", "-c", cfg.path); code != 1 || strings.Contains(stderr, "pid "+strconv.Itoa(old)) {
		t.Errorf("after a crash: exit code %d\n%s", code, stderr)
	}
	b.stop()
}

// lockFile takes the write lock of a database, as a backup program or an operator with
// a shell would, and returns the function that lets go of it.
func lockFile(t *testing.T, path string) (unlock func()) {
	t.Helper()
	c, err := sqlite3.Open("file:" + path)
	if err != nil {
		t.Fatalf("open %s: %v", path, err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.BusyTimeout(5 * time.Second); err != nil {
		t.Fatal(err)
	}
	if err := c.Exec("BEGIN IMMEDIATE"); err != nil {
		t.Fatalf("lock %s: %v", path, err)
	}
	return func() {
		t.Helper()
		if err := c.Exec("ROLLBACK"); err != nil {
			t.Errorf("unlock %s: %v", path, err)
		}
	}
}
