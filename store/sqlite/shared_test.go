package sqlite

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/bridgetest"
	"github.com/gobridge/gobridge/metric"
)

// sharedEnv makes the test binary a process that shares a file with others; its value
// is the path.
const (
	sharedEnv  = "SQLITE_TEST_SHARED"
	sharerEnv  = "SQLITE_TEST_SHARER" // the name of the process
	sharedWork = "SQLITE_TEST_WORK"   // what it does
	turns      = 40
)

// sharer does its work on the shared file and writes what it achieved.
func sharer(path string) (code int) {
	name, ctx := os.Getenv(sharerEnv), context.Background()
	work := map[string]func() error{
		"leases":  func() error { return contend(ctx, path, name) },
		"history": func() error { return remember(ctx, path, name) },
		"hold":    func() error { return holdLease(ctx, path, name) },
	}[os.Getenv(sharedWork)]
	if err := work(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// contend takes and releases one lease again and again.
func contend(ctx context.Context, path, name string) error {
	l, err := openLeases(ctx, path, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	for won := 0; won < turns; {
		seen, err := l.Read(ctx, "k")
		if err != nil {
			return err
		}
		if seen.Holder != "" {
			continue
		}
		rec, err := l.Take(ctx, seen, name, time.Second)
		if errors.Is(err, gobridge.ErrVersionMismatch) {
			continue
		}
		if err == nil {
			rec, err = l.Renew(ctx, rec)
		}
		if err == nil {
			err = l.Release(ctx, rec)
		}
		if err != nil {
			return err
		}
		fmt.Println(rec.Version)
		won++
	}
	return l.Close()
}

// remember writes filters of its own into a history.
func remember(ctx context.Context, path, name string) error {
	h, err := sharedHistory(ctx, path)
	if err != nil {
		return err
	}
	for i := range turns {
		if err := h.Remember(ctx, sharedKey, fmt.Sprintf("%s/%d", name, i)); err != nil {
			return err
		}
		if i%2 == 1 {
			if err := h.Forget(ctx, sharedKey, fmt.Sprintf("%s/%d", name, i)); err != nil {
				return err
			}
		}
	}
	return h.Close()
}

var sharedKey = gobridge.HistoryKey{SessionID: "s", ClientID: "c"}

func sharedHistory(ctx context.Context, path string) (gobridge.History, error) {
	return HistoryKind().Open(ctx, &gobridge.BridgeSpec{DataDir: filepath.Dir(path) + "-of-nobody"},
		&gobridge.StoreSpec{Options: &HistoryOptions{Path: path}}, gobridge.Env{Logger: slog.New(slog.DiscardHandler), Metrics: metric.NewRegistry()})
}

// holdLease takes the lease, says so and renews it until it is killed.
func holdLease(ctx context.Context, path, name string) error {
	l, err := openLeases(ctx, path, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	seen, err := l.Read(ctx, "k")
	if err != nil {
		return err
	}
	rec, err := l.Take(ctx, seen, name, time.Second)
	for ; err == nil; rec, err = l.Renew(ctx, rec) {
		if rec.Beat == 1 {
			fmt.Println("renewing")
		}
	}
	return err
}

// share starts a process that shares the file.
func startSharer(t *testing.T, path, work string, n int) *bridgetest.Process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), sharedEnv+"="+path, sharedWork+"="+work, sharerEnv+"=p"+strconv.Itoa(n))
	return bridgetest.StartCommand(t, cmd)
}

func leasesIn(t testing.TB, dir string) func() gobridge.LeaseStore {
	return opener(t, dir, func(b *gobridge.BridgeSpec, s *gobridge.StoreSpec, env gobridge.Env) (gobridge.LeaseStore, error) {
		return LeaseKind().Open(t.Context(), b, s, env)
	})
}

func TestLeases(t *testing.T) {
	t.Parallel()
	bridgetest.RunLeases(t, bridgetest.LeaseHarness{New: func(t testing.TB) func() gobridge.LeaseStore {
		return leasesIn(t, t.TempDir())
	}})
}

// Three processes begin with no file at all.
func TestProcessesTakeEachVersionOnce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "shared", "leases.db")
	var all []*bridgetest.Process
	for n := range 3 {
		all = append(all, startSharer(t, path, "leases", n))
	}
	seen := map[string]bool{}
	for _, p := range all {
		if code := p.Wait(time.Minute); code != 0 {
			t.Fatalf("exit code %d: %s", code, p.Stderr())
		}
		for version := range strings.FieldsSeq(p.Stdout()) {
			if seen[version] {
				t.Errorf("version %s was taken twice", version)
			}
			seen[version] = true
		}
	}
	if len(seen) != 3*turns || !seen[strconv.Itoa(3*turns)] {
		t.Errorf("%d versions were taken, want those from 1 to %d", len(seen), 3*turns)
	}
}

func TestProcessesShareAHistory(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "shared", "history.db")
	var all []*bridgetest.Process
	for n := range 3 {
		all = append(all, startSharer(t, path, "history", n))
	}
	for _, p := range all {
		if code := p.Wait(time.Minute); code != 0 {
			t.Fatalf("exit code %d: %s", code, p.Stderr())
		}
	}
	h, err := sharedHistory(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	filters, known, err := h.Load(t.Context(), sharedKey)
	if err != nil || !known || len(filters) != 3*turns/2 {
		t.Errorf("%d filters, known %t, %v; want %d", len(filters), known, err, 3*turns/2)
	}
}

// A killed process leaves nothing that keeps the others out.
func TestLeaseOfAKilledProcessCanBeTaken(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for round := range long(5, 100) {
		p := startSharer(t, filepath.Join(dir, leaseFile), "hold", round)
		p.WaitOutput("renewing", 20*time.Second)
		p.Kill9()
		l := leasesIn(t, dir)()
		seen, err := l.Read(t.Context(), "k")
		if err != nil || seen.Version != uint64(2*round+1) || seen.Beat == 0 {
			t.Fatalf("round %d: %+v, %v", round, seen, err)
		}
		rec, err := l.Take(t.Context(), seen, "me", time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Release(t.Context(), rec); err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A process that is stopped while it writes keeps the lock of the file: calls end
// with their context then, and say why.
func TestLeaseCallsEndInTime(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := leasesIn(t, dir)()
	defer l.Close()
	locker, err := connect(filepath.Join(dir, leaseFile), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer locker.close()
	if err := locker.Exec("BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err = l.Take(ctx, gobridge.LeaseRecord{Key: "k"}, "a", time.Second)
	if err == nil || time.Since(began) > 2*time.Second {
		t.Errorf("Take on a locked file: %v after %v, want an error after 200 ms", err, time.Since(began))
	}
	if _, err := l.Read(t.Context(), "k"); err != nil {
		t.Errorf("Read on a locked file: %v", err)
	}
	if err := locker.Exec("ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	if rec, err := l.Take(t.Context(), gobridge.LeaseRecord{Key: "k"}, "a", time.Second); err != nil || rec.Version != 1 {
		t.Errorf("Take once the lock is gone: %+v, %v", rec, err)
	}
}

// Whoever renewed in a file that others no longer see would be alone with its lease.
func TestReplacedLeaseFileIsNoticed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := leasesIn(t, dir)()
	defer l.Close()
	rec, err := l.Take(t.Context(), gobridge.LeaseRecord{Key: "k"}, "a", time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, leaseFile)); err != nil {
		t.Fatal(err)
	}
	for _, tail := range []string{"-wal", "-shm"} {
		if err := os.Remove(filepath.Join(dir, leaseFile+tail)); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	if _, err := l.Renew(t.Context(), rec); !errors.Is(err, gobridge.ErrStaleFence) {
		t.Errorf("Renew in a new file: %v, want ErrStaleFence", err)
	}
}

func TestLeasesAndStoresDoNotMix(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := leasesIn(t, dir)()
	defer l.Close()
	_, err := sharedHistory(t.Context(), filepath.Join(dir, leaseFile))
	if err == nil || !strings.Contains(err.Error(), "a file of their own") {
		t.Errorf("history in the file of the leases: %v", err)
	}
}

func TestSharedPaths(t *testing.T) {
	t.Parallel()
	b := &gobridge.BridgeSpec{DataDir: "/var/lib/gobridge"}
	for path, want := range map[string]string{
		"":                             "",
		"/var/lib/gobridge/leases.db":  "",
		"/var/lib/gobridge/x/y.db":     "",
		"/srv/shared/leases.db":        "/srv/shared/leases.db",
		"/var/lib/gobridge-2/lease.db": "/var/lib/gobridge-2/lease.db",
	} {
		got, err := LeaseKind().Shared(b, &LeaseOptions{Path: path})
		if got != want || (err == nil) != (want != "") {
			t.Errorf("Shared(%q) = %q, %v; want %q", path, got, err, want)
		}
	}
}

// A damaged file names the way out and keeps nothing open.
func TestDamagedLeaseFileSaysWhatToDo(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), leaseFile)
	if err := os.WriteFile(path, []byte(strings.Repeat("not a database ", 500)), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := openLeases(t.Context(), path, slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "move it away") {
		t.Errorf("open of a damaged file: %v", err)
	}
}
