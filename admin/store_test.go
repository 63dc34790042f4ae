package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gobridge/gobridge"
)

// fakeFile is a store in a file, with the content "the store".
type fakeFile struct {
	path         string
	salvage      *gobridge.Salvage
	verification gobridge.Verification
	err          error
	slow         time.Duration
}

func (f *fakeFile) Path() string                { return f.path }
func (f *fakeFile) Salvaged() *gobridge.Salvage { return f.salvage }

func (f *fakeFile) Acknowledge(context.Context) error {
	if f.err == nil {
		f.salvage = nil
	}
	return f.err
}

func (f *fakeFile) Verify(ctx context.Context) (*gobridge.Verification, error) {
	if f.slow > 0 {
		select {
		case <-time.After(f.slow):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return &f.verification, f.err
}

func (f *fakeFile) Backup(_ context.Context, path string) error {
	if f.err != nil {
		return f.err
	}
	// Whoever opens the store finds it, should this process be killed.
	if dir := filepath.Base(filepath.Dir(path)); !strings.HasPrefix(dir, gobridge.ScratchPrefix(f.path)) {
		return fmt.Errorf("a copy in %s would stay for ever", dir)
	}
	return os.WriteFile(path, []byte("the store"), 0o600)
}

func salvagedFile() *fakeFile {
	return &fakeFile{path: "/data/gobridge.db", salvage: &gobridge.Salvage{
		At: epoch, Damaged: "/data/gobridge.db.damaged", Cause: "page 7", Salvaged: 12, Lost: 1,
	}}
}

func TestStoresAreListedAndAcknowledged(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.want(r.ask("GET", "/api/v1/admin/store", ""), 200, `{
  "stores": []
}
`)
	r.op.stores = []gobridge.FileStore{salvagedFile(), &fakeFile{path: "/data/other.db"}}
	r.want(r.ask("GET", "/api/v1/admin/store", ""), 200, `{
  "stores": [
    {
      "store": 0,
      "path": "/data/gobridge.db",
      "salvage": {
        "at": "2026-11-01T12:00:00Z",
        "damaged": "/data/gobridge.db.damaged",
        "cause": "page 7",
        "salvaged": 12,
        "lost": 1,
        "lost_unknown": false
      }
    },
    {
      "store": 1,
      "path": "/data/other.db",
      "salvage": null
    }
  ]
}
`)
	r.want(r.ask("POST", "/api/v1/admin/store/acknowledge", ""), 200, `{
  "acknowledged": [
    {
      "at": "2026-11-01T12:00:00Z",
      "damaged": "/data/gobridge.db.damaged",
      "cause": "page 7",
      "salvaged": 12,
      "lost": 1,
      "lost_unknown": false
    }
  ]
}
`)
	r.want(r.ask("POST", "/api/v1/admin/store/acknowledge", ""), 200, `{
  "acknowledged": []
}
`)
}

func TestStoresAreVerified(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.op.stores = []gobridge.FileStore{&fakeFile{verification: gobridge.Verification{
		Path: "/data/gobridge.db", Records: 3, DeadLetters: 2, Problems: []string{"record 7: checksum"},
	}}}
	r.want(r.ask("POST", "/api/v1/admin/store/verify", ""), 200, `{
  "stores": [
    {
      "path": "/data/gobridge.db",
      "records": 3,
      "dead_letters": 2,
      "problems": [
        "record 7: checksum"
      ],
      "salvage": null
    }
  ]
}
`)
}

func TestBackupIsSentAndItsCopyRemoved(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	dir := t.TempDir()
	r.op.stores = []gobridge.FileStore{
		&fakeFile{path: filepath.Join(dir, "broken.db"), err: errors.New("disk fails")}, &fakeFile{path: filepath.Join(dir, "other.db")},
	}
	w := r.ask("GET", "/api/v1/admin/store/backup?store=1", "")
	content, err := io.ReadAll(w.Body)
	if err != nil || w.Code != 200 || string(content) != "the store" || w.Header().Get("Content-Length") != "9" {
		t.Errorf("status %d, %q, %v, %v", w.Code, content, w.Header(), err)
	}
	r.want(r.ask("GET", "/api/v1/admin/store/backup", ""), 500, `{
  "error": "disk fails"
}
`)
	r.want(r.ask("GET", "/api/v1/admin/store/backup?store=2", ""), 400, `{
  "error": "store is not a number from 0 to 1",
  "hint": "GET /api/v1/admin/store lists them"
}
`)
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

// pipeListener accepts the one connection that is put into it.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { close(l.closed); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// The deadlines of the server are meant for clients that dawdle, not for long work.
// They run on the clock of the bubble, whatever else the machine does.
func TestLongWorkOutlivesTheDeadlinesOfTheServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Key{"ops", gobridge.NewSecret(rightKey)})
		file := &fakeFile{slow: 5 * max(readTimeout, writeTimeout)}
		r.op.stores = []gobridge.FileStore{file}
		client, server := net.Pipe()
		l := &pipeListener{conns: make(chan net.Conn, 1), closed: make(chan struct{})}
		l.conns <- server
		s := &Server{listener: l, logger: testLogger(t), http: newHTTPServer(r.api, nil, testLogger(t))}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- s.Run(ctx) }()
		h := &http.Client{Transport: &http.Transport{
			DialContext: func(context.Context, string, string) (net.Conn, error) { return client, nil },
		}}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/api/v1/admin/store/verify", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-API-Key", rightKey)
		begin := time.Now()
		res, err := h.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		if took := time.Since(begin); err != nil || res.StatusCode != 200 || took < file.slow {
			t.Errorf("after %v: status %d, %s, %v", took, res.StatusCode, body, err)
		}
		res.Body.Close()
		h.CloseIdleConnections()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
