package credential

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gobridge/gobridge"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testWait = 10 * time.Second

// journal is a log that can be read while it is written.
type journal struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.String()
}

// watched is a file source under test.
type watched struct {
	*file
	t   *testing.T
	log *journal
}

// watch follows a file by its events alone; poll is for the tests of the poll.
func watch(t *testing.T, path string, poll time.Duration) *watched {
	t.Helper()
	j := new(journal)
	w := &watched{t: t, log: j, file: watchFile(t.Context(), path, slog.New(slog.NewTextHandler(j, nil)), poll)}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// becomes makes a change and waits for the user that follows from it.
func (w *watched) becomes(user string, change func()) {
	w.t.Helper()
	w.until("user "+user, change, func(c gobridge.Credential, err error) bool { return err == nil && c.Username == user })
}

func (w *watched) until(what string, change func(), ok func(gobridge.Credential, error) bool) {
	w.t.Helper()
	deadline := time.After(testWait)
	for changed := w.Changed(); ; changed = w.Changed() {
		if change != nil {
			change()
			change = nil
		}
		cred, err := w.Current()
		if ok(cred, err) {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			w.t.Fatalf("not in %s: %s; it is %+v, %v", testWait, what, cred, err)
		}
	}
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestFileIsFollowedHoweverItChanges(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "edge")
	put(t, path, "one:pw\n")
	w := watch(t, path, time.Hour)
	w.becomes("one", nil)
	w.becomes("two", func() { put(t, path, "two:pw\n") }) // in place
	for _, user := range []string{"three", "four"} {      // a rename over it
		w.becomes(user, func() {
			put(t, path+".new", user+":pw\n")
			must(t, os.Rename(path+".new", path))
		})
	}
	w.until("the file is missed", func() { must(t, os.Remove(path)) }, func(c gobridge.Credential, err error) bool {
		return err != nil && c.Username == "four"
	})
	w.becomes("five", func() { put(t, path, "five:pw\n") })
}

// Kubernetes mounts edge -> ..data/edge and ..data -> a directory with a time in its
// name, and turns ..data by a rename.
func TestTurnedLinkIsFollowed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	turn := func(version, user string) {
		must(t, os.Mkdir(filepath.Join(dir, version), 0o700))
		put(t, filepath.Join(dir, version, "edge"), user+":pw")
		must(t, os.Symlink(version, filepath.Join(dir, "..data_tmp")))
		must(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	}
	turn("..2024_01", "one")
	must(t, os.Symlink(filepath.Join("..data", "edge"), filepath.Join(dir, "edge")))
	w := watch(t, filepath.Join(dir, "edge"), time.Hour)
	w.becomes("one", nil)
	w.becomes("two", func() { turn("..2024_02", "two") })
	must(t, os.RemoveAll(filepath.Join(dir, "..2024_01")))
	w.becomes("three", func() { turn("..2024_03", "three") })
}

// The file is a link into another directory, and changes there.
func TestTargetInAnotherDirectoryIsFollowed(t *testing.T) {
	t.Parallel()
	target, link := filepath.Join(t.TempDir(), "real"), filepath.Join(t.TempDir(), "edge")
	put(t, target, "one:pw")
	must(t, os.Symlink(target, link))
	w := watch(t, link, time.Hour)
	w.becomes("one", nil)
	w.becomes("two", func() { put(t, target, "two:pw") })
}

func TestFileAndItsDirectoryMayComeLater(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "run", "secrets")
	path := filepath.Join(dir, "edge")
	w := watch(t, path, time.Hour)
	if c, err := w.Current(); err == nil || !c.IsZero() || !strings.Contains(err.Error(), path) {
		t.Errorf("a missing file gives %+v, %v", c, err)
	}
	w.becomes("one", func() {
		must(t, os.MkdirAll(dir, 0o700))
		put(t, path, "one:pw")
	})
	w.becomes("two", func() { put(t, path, "two:pw") })
}

func TestHalfWrittenFileKeepsTheLastGoodCredential(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "edge")
	put(t, path, `{"username":"one","password":"hunter2"}`)
	w := watch(t, path, time.Hour)
	w.until("the broken file is reported", func() { put(t, path, `{"username":"two","password":"hunter`) },
		func(c gobridge.Credential, err error) bool {
			return err != nil && c.Username == "one" && strings.Contains(err.Error(), path) && !strings.Contains(err.Error(), "hunter")
		})
	w.becomes("two", func() { put(t, path, `{"username":"two","password":"hunter3"}`) })
	if log := w.log.String(); strings.Contains(log, "hunter") {
		t.Errorf("the log quotes the file:\n%s", log)
	}
}

// Without events the poll finds the change.
func TestPollFindsWhatNoEventTold(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "edge")
	put(t, path, "one:pw")
	f := &file{path: path, log: slog.New(slog.DiscardHandler), stop: func() {}, done: make(chan struct{}), changed: make(chan struct{})}
	f.read()
	ctx := t.Context()
	go func() {
		defer close(f.done)
		f.watch(ctx, nil, 10*time.Millisecond)
	}()
	w := &watched{file: f, t: t}
	w.becomes("two", func() { put(t, path, "two:pw") })
	t.Cleanup(func() { <-f.done })
}

func TestOneWarningForAFileThatOthersCanRead(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "edge")
	put(t, path, "one:pw")
	must(t, os.Chmod(path, 0o640))
	w := watch(t, path, time.Hour)
	w.becomes("two", func() { put(t, path, "two:pw") })
	if n := strings.Count(w.log.String(), "level=WARN"); n != 1 {
		t.Errorf("%d warnings, want 1:\n%s", n, w.log)
	}
}

func TestClosedSourceAnswersWithTheLastCredential(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "edge")
	put(t, path, "one:pw")
	w := watch(t, path, time.Hour)
	must(t, w.Close())
	if c, err := w.Current(); err != nil || c.Username != "one" {
		t.Errorf("got %+v, %v", c, err)
	}
	must(t, w.Close())
}
