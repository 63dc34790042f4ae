package sqlite

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/bridgetest"
	"github.com/gobridge/gobridge/metric"
)

// childEnv makes the test binary the child of the kill test; its value is the
// directory of the store.
const childEnv = "SQLITE_TEST_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		child(dir)
	}
	if path := os.Getenv(sharedEnv); path != "" {
		os.Exit(sharer(path))
	}
	goleak.VerifyTestMain(m)
}

// child stores messages until it is killed. It writes a line for each that was
// confirmed ("s 12"), is about to be completed ("b 12") and was completed ("f 12").
func child(dir string) {
	s := settings{
		path: filepath.Join(dir, fileName), lock: filepath.Join(dir, lockName),
		log: slog.New(slog.DiscardHandler), metrics: metric.NewRegistry(), pragmas: "PRAGMA wal_autocheckpoint = 50;",
	}
	o, err := attach(s, func(d *database) (*Outbox, error) { return newOutbox(context.Background(), d, time.Hour, maxDone) })
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var mu sync.Mutex
	say := func(what string, records []*gobridge.OutboxRecord, err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, what, err)
			os.Exit(1)
		}
		var b strings.Builder
		for _, r := range records {
			fmt.Fprintln(&b, what, r.Envelope.ID)
		}
		mu.Lock()
		defer mu.Unlock()
		fmt.Print(b.String())
	}
	first, _ := strconv.Atoi(os.Getenv("SQLITE_TEST_FIRST"))
	room := make(chan struct{}, 40)
	for n := first; ; n++ {
		room <- struct{}{}
		o.Persist([]*gobridge.OutboxRecord{lossMessage(n)}, outcomeFunc(func(records []*gobridge.OutboxRecord, err error) {
			say("s", records, err)
			if n%4 == 0 {
				<-room
				return
			}
			say("b", records, nil)
			o.Complete(records, outcomeFunc(func(records []*gobridge.OutboxRecord, err error) {
				say("f", records, err)
				<-room
			}))
		}))
	}
}

// Covers: G05
func TestKilledProcessesLoseNothingConfirmed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	was, begun, ended := map[int]bool{}, map[int]bool{}, map[int]bool{}
	last := -1
	for round := range long(6, 200) {
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), childEnv+"="+dir, "SQLITE_TEST_FIRST="+strconv.Itoa(last+10_000))
		p := bridgetest.StartCommand(t, cmd)
		p.WaitOutput("f ", 30*time.Second)
		select {
		case <-p.Exited():
			t.Fatalf("the child ended: %s", p.Stderr())
		case <-time.After(time.Duration(rand.Int64N(int64(150 * time.Millisecond)))):
		}
		p.Kill9()
		lines := bufio.NewScanner(strings.NewReader(p.Stdout()))
		for lines.Scan() {
			what, number, _ := strings.Cut(lines.Text(), " ")
			n, err := strconv.Atoi(number)
			if err != nil {
				continue // the last line, cut off
			}
			last = max(last, n)
			map[string]map[int]bool{"s": was, "b": begun, "f": ended}[what][n] = true
		}
		o := openOutbox(t, testSettings(t, dir))
		pending := map[int]bool{}
		for _, b := range []string{"0", "1", "2"} {
			records, err := o.Pending(t.Context(), b, 0, 1<<20, 1<<40)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range records {
				n, _ := strconv.Atoi(r.Envelope.ID)
				pending[n] = true
			}
		}
		for n := range was {
			if !begun[n] && !pending[n] {
				t.Errorf("round %d: message %d is lost", round, n)
			}
			if ended[n] && pending[n] {
				t.Errorf("round %d: message %d came back after its completion", round, n)
			}
		}
		if o.Salvaged() != nil {
			t.Errorf("round %d: the file was damaged", round)
		}
		if err := o.Close(); err != nil {
			t.Fatal(err)
		}
		if t.Failed() {
			return
		}
	}
	t.Logf("%d messages stored, %d completed", len(was), len(ended))
}
