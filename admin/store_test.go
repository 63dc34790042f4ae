package admin

import (
	"context"
	"errors"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
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
        "lost": 1
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
      "lost": 1
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
      ]
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

// The deadlines of the server are meant for clients that dawdle, not for long work.
func TestLongWorkOutlivesTheDeadlinesOfTheServer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const deadline = 50 * time.Millisecond
	r.op.stores = []gobridge.FileStore{&fakeFile{slow: 5 * deadline}}
	srv := httptest.NewUnstartedServer(r.api)
	srv.Config.ReadTimeout, srv.Config.WriteTimeout = deadline, deadline
	srv.Start()
	defer srv.Close()
	res, err := srv.Client().Post(srv.URL+"/api/v1/admin/store/verify", "application/json", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if body, err := io.ReadAll(res.Body); err != nil || res.StatusCode != 200 {
		t.Errorf("status %d, %s, %v", res.StatusCode, body, err)
	}
}
