package credential

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/gobridge/gobridge"
)

const (
	fileScheme = "file"
	// maxFile bounds a credential file, in bytes.
	maxFile = 1 << 20
	// settle is the quiet time after a change before the file is read: a writer that
	// truncates and writes is not read in between, as a rule.
	settle = 50 * time.Millisecond
	// restless bounds that wait where something changes all the time.
	restless = time.Second
	// pollEvery finds changes that no event told of (network file systems, a full event
	// queue, a link in between that was turned).
	pollEvery = 30 * time.Second
)

var errFileURI = errors.New("write file:///absolute/path")

// FileKind is file:///absolute/path.
func FileKind() *gobridge.CredentialKind {
	return &gobridge.CredentialKind{
		Scheme: fileScheme,
		Check: func(uri string) error {
			_, err := pathOf(uri)
			return err
		},
		Open: func(ctx context.Context, uri string, env gobridge.Env) (gobridge.Credentials, error) {
			path, err := pathOf(uri)
			if err != nil {
				return nil, err
			}
			return watchFile(ctx, path, env.Logger, pollEvery), nil
		},
	}
}

func pathOf(uri string) (string, error) {
	u, err := url.Parse(uri)
	if err != nil || u.Scheme != fileScheme || u.Host != "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", errFileURI
	}
	path := u.Path
	if runtime.GOOS == "windows" {
		path = strings.TrimPrefix(path, "/") // file:///C:/secrets/edge.json
	}
	path = filepath.FromSlash(path)
	if !filepath.IsAbs(path) || strings.HasSuffix(u.Path, "/") {
		return "", errFileURI
	}
	return filepath.Clean(path), nil
}

// file is a credential in a file. It watches directories, not the file: a rename over
// it and a turned symbolic link (Kubernetes turns ..data) leave a watch on a file with
// what is no longer there.
type file struct {
	path string
	log  *slog.Logger
	stop context.CancelFunc
	done chan struct{}

	mu      sync.Mutex
	good    gobridge.Credential
	err     error // why what is there now cannot be used
	changed chan struct{}
	warned  bool // of its permissions
}

// watchFile reads the file and watches it until Close.
func watchFile(ctx context.Context, path string, log *slog.Logger, poll time.Duration) *file {
	// Whoever opened it closes it: the values of ctx go on, its end does not matter.
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	f := &file{path: path, log: log, stop: stop, done: make(chan struct{}), changed: make(chan struct{})}
	events, err := fsnotify.NewWatcher()
	if err != nil {
		log.Warn("file events are not available: credential is looked at now and then", "file", path, "every", poll, "err", err)
		events = nil
	}
	// Before the first look, so that no change falls in between.
	f.follow(events)
	f.read()
	go func() {
		defer close(f.done)
		f.watch(ctx, events, poll)
	}()
	return f
}

func (f *file) Current() (gobridge.Credential, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.good, f.err
}

func (f *file) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

func (f *file) Close() error {
	f.stop()
	<-f.done
	return nil
}

func (f *file) watch(ctx context.Context, events *fsnotify.Watcher, poll time.Duration) {
	var happened <-chan fsnotify.Event
	var faults <-chan error
	if events != nil {
		defer events.Close()
		happened, faults = events.Events, events.Errors
	}
	quiet := time.NewTimer(settle)
	quiet.Stop()
	defer quiet.Stop()
	tick := time.NewTicker(poll)
	defer tick.Stop()
	var since time.Time // of the first event that was not looked at
	for {
		select {
		case <-ctx.Done():
			return
		case <-happened:
		case <-faults: // such as an overflow: events are lost
		case <-quiet.C:
			since = time.Time{}
			f.follow(events)
			f.read()
			continue
		case <-tick.C:
			f.follow(events)
			f.read()
			continue
		}
		if since.IsZero() {
			since = time.Now()
		}
		quiet.Reset(min(settle, time.Until(since.Add(restless))))
	}
}

// follow watches the directory of the file and that of what it links to; where one is
// missing, the nearest one above that is there.
func (f *file) follow(events *fsnotify.Watcher) {
	if events == nil {
		return
	}
	wanted := map[string]bool{existing(filepath.Dir(f.path)): true}
	if real, err := filepath.EvalSymlinks(f.path); err == nil {
		wanted[filepath.Dir(real)] = true
	}
	for _, dir := range events.WatchList() {
		if !wanted[dir] {
			_ = events.Remove(dir) // it may be gone, and its watch with it
		}
	}
	for dir := range wanted {
		if err := events.Add(dir); err != nil {
			f.log.Debug("directory of the credential cannot be watched", "directory", dir, "err", err)
		}
	}
}

// existing is dir, or the nearest directory above it that exists.
func existing(dir string) string {
	for {
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			return dir
		}
		dir = up
	}
}

// read looks at the file and tells of what is new.
func (f *file) read() {
	cred, mode, err := load(f.path)
	if err != nil {
		err = fmt.Errorf("credential file %s: %w", f.path, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil && mode&0o077 != 0 && runtime.GOOS != "windows" && !f.warned {
		f.warned = true
		f.log.Warn("credential file can be read by others than its owner", "file", f.path, "mode", fmt.Sprintf("%04o", mode), "hint", "chmod 600")
	}
	same := err == nil && f.err == nil && cred.Equal(f.good) || err != nil && f.err != nil && err.Error() == f.err.Error()
	if same {
		return
	}
	f.err = err
	if err == nil {
		f.good = cred
	}
	close(f.changed)
	f.changed = make(chan struct{})
}

func load(path string) (gobridge.Credential, fs.FileMode, error) {
	info, err := os.Stat(path)
	if err != nil {
		return gobridge.Credential{}, 0, cause(err)
	}
	if !info.Mode().IsRegular() { // to open a pipe would wait for its writer
		return gobridge.Credential{}, 0, errors.New("it is not a file")
	}
	file, err := os.Open(path)
	if err != nil {
		return gobridge.Credential{}, 0, cause(err)
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	switch {
	case err != nil:
		return gobridge.Credential{}, 0, cause(err)
	case len(data) > maxFile:
		return gobridge.Credential{}, 0, fmt.Errorf("it is larger than %d bytes", maxFile)
	}
	cred, err := parse(data)
	return cred, info.Mode().Perm(), err
}

// cause is an error without the path that it repeats.
func cause(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}
