package admin

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/store/memory"
)

// rig is an API with a log that can be read.
type rig struct {
	t   *testing.T
	op  *fakeOperator
	api *API
	log *logBuffer
}

// logBuffer is a log that handlers and jobs write at once.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func newRig(t *testing.T, keys ...Key) *rig {
	t.Helper()
	r := &rig{t: t, op: &fakeOperator{dlq: memory.NewDLQ(0)}, log: &logBuffer{}}
	r.api = NewAPI(r.op, keys, slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	return r
}

// ask makes a request from this machine; headers are name, value, ...
func (r *rig) ask(method, target, body string, headers ...string) *httptest.ResponseRecorder {
	r.t.Helper()
	return r.askFrom("127.0.0.1:5555", method, target, body, headers...)
}

// askFrom makes a request of an address; a target without a host is on localhost.
func (r *rig) askFrom(peer, method, target, body string, headers ...string) *httptest.ResponseRecorder {
	r.t.Helper()
	if strings.HasPrefix(target, "/") {
		target = "http://localhost:8080" + target
	}
	req := httptest.NewRequest(method, target, strings.NewReader(body))
	req.RemoteAddr = peer
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	r.api.ServeHTTP(w, req)
	return w
}

// want checks status and body of an answer.
func (r *rig) want(w *httptest.ResponseRecorder, status int, body string) {
	r.t.Helper()
	if w.Code != status {
		r.t.Errorf("status = %d, want %d", w.Code, status)
	}
	if got := w.Header().Get("Content-Type"); got != "application/json" {
		r.t.Errorf("content type = %q", got)
	}
	if diff := cmp.Diff(body, w.Body.String()); diff != "" {
		r.t.Errorf("body (-want +got):\n%s", diff)
	}
}

// answer decodes an answer of the status.
func answer[T any](r *rig, w *httptest.ResponseRecorder, status int) T {
	r.t.Helper()
	var v T
	if w.Code != status {
		r.t.Fatalf("status = %d, want %d: %s", w.Code, status, w.Body)
	}
	if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil {
		r.t.Fatal(err)
	}
	return v
}

var epoch = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// bury puts dead letters into the queue and returns their ids, oldest first.
func (r *rig) bury(letters ...gobridge.DeadLetter) []string {
	r.t.Helper()
	for i := range letters {
		if letters[i].Key == "" {
			letters[i].Key = time.Now().String() + string(rune('a'+i))
		}
		if _, err := r.op.dlq.Put(r.t.Context(), &letters[i]); err != nil {
			r.t.Fatal(err)
		}
	}
	var ids []string
	for d, err := range r.op.dlq.List(r.t.Context(), gobridge.DLQFilter{}) {
		if err != nil {
			r.t.Fatal(err)
		}
		ids = append(ids, d.ID)
	}
	return ids
}

func (r *rig) depth() int {
	r.t.Helper()
	n, err := r.op.dlq.Depth(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

func TestErrorsOfTheAPIHaveOneShape(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	bare := newRig(t)
	bare.op.dlq = nil
	const (
		forRedrive = `send {"ids": ["..."]} or {"filter": {"route_id": "up", "since": "2026-11-01T12:00:00Z"}}`
		forDelete  = `send {"ids": ["..."]} or {"filter": {"route_id": "up", "before": "2026-11-01T12:00:00Z"}, "confirm": true}`
	)
	many := `{"ids": ["` + strings.Repeat(`x","`, maxIDs) + `x"]}`
	for _, c := range []struct {
		name, method, target, body string
		rig                        *rig
		status                     int
		err, hint                  string
	}{
		{"path", "GET", "/api/v1/admin/nothing", "", r, 404, "no such path: /api/v1/admin/nothing", "GET / lists the paths"},
		{"method", "DELETE", "/api/v1/admin/dlq", "", r, 405, "DELETE is not allowed on /api/v1/admin/dlq", "allowed: GET, HEAD"},
		{"parameter", "GET", "/api/v1/admin/dlq?route=up", "", r, 400, `unknown parameter "route"`, "parameters: route_id, category, code, since, before, limit, cursor, full"},
		{"category", "GET", "/api/v1/admin/dlq?category=odd", "", r, 400, `unknown category "odd"`, "categories: permanent, expired, poison, unstable_identity, retry_unsupported, filtered, subscription_removed"},
		{"limit", "GET", "/api/v1/admin/dlq?limit=1001", "", r, 400, "limit is not a number from 1 to 1000", ""},
		{"no entries", "GET", "/api/v1/admin/dlq?limit=0", "", r, 400, "limit is not a number from 1 to 1000", ""},
		{"time", "GET", "/api/v1/admin/dlq?since=yesterday", "", r, 400, "since is not a time", "write it as 2026-11-01T12:00:00Z"},
		{"times", "GET", "/api/v1/admin/dlq?since=2026-01-02T00:00:00Z&before=2026-01-01T00:00:00Z", "", r, 400, "since is not before before: nothing can match", ""},
		{"full", "GET", "/api/v1/admin/dlq?full=perhaps", "", r, 400, "full is not true or false", ""},
		{"id", "GET", "/api/v1/admin/dlq/absent", "", r, 404, `dead letter "absent": not found`, ""},
		{"queue", "GET", "/api/v1/admin/dlq", "", bare, 404, "the bridge has no dead-letter queue", "stores.dlq is of type none"},
		{"queue for redrive", "POST", "/api/v1/admin/dlq/redrive", `{"filter": {}}`, bare, 404, "the bridge has no dead-letter queue", "stores.dlq is of type none"},
		{"no body", "POST", "/api/v1/admin/dlq/redrive", "", r, 400, "the body is empty", forRedrive},
		{"field", "POST", "/api/v1/admin/dlq/redrive", `{"id": ["a"]}`, r, 400, `body: unknown field "id"`, forRedrive},
		{"field of a filter", "POST", "/api/v1/admin/dlq/delete", `{"filter": {"route": "up"}, "confirm": true}`, r, 400, `body: unknown field "route"`, forDelete},
		{"list", "POST", "/api/v1/admin/dlq/delete", `["a"]`, r, 400, "body: it is a list, not an object", forDelete},
		{"ids", "POST", "/api/v1/admin/dlq/delete", `{"ids": "a"}`, r, 400, "body: ids is a text, not a list", forDelete},
		{"id in a list", "POST", "/api/v1/admin/dlq/delete", `{"ids": [7]}`, r, 400, "body: ids is a number, not a text", forDelete},
		{"filter as text", "POST", "/api/v1/admin/dlq/redrive", `{"filter": "up"}`, r, 400, "body: filter is a text, not an object", forRedrive},
		{"confirm", "POST", "/api/v1/admin/dlq/delete", `{"filter": {}, "confirm": "yes"}`, r, 400, "body: confirm is a text, not true or false", forDelete},
		{"half a number", "POST", "/api/v1/admin/dlq/redrive", `{"filter": {}, "max": 1.5}`, r, 400, "body: max is a number, not a whole number", forRedrive},
		{"time in a body", "POST", "/api/v1/admin/dlq/redrive", `{"filter": {"since": "yesterday"}}`, r, 400, "body: yesterday is not a time", forRedrive},
		{"number for a time", "POST", "/api/v1/admin/dlq/redrive", `{"filter": {"since": 7}}`, r, 400, "body: a time is no text", forRedrive},
		{"no JSON", "POST", "/api/v1/admin/dlq/redrive", `ids=a`, r, 400, "body: no JSON at byte 1: invalid character 'i' looking for beginning of value", forRedrive},
		{"half a body", "POST", "/api/v1/admin/dlq/redrive", `{"ids": [`, r, 400, "body: it ends in the middle of the object", forRedrive},
		{"empty id", "POST", "/api/v1/admin/dlq/delete", `{"ids": [""]}`, r, 400, "one of the ids is empty", "GET /api/v1/admin/dlq lists them"},
		{"cursor", "GET", "/api/v1/admin/dlq?cursor=garbage", "", r, 400, "cursor is none of the dead letters", "take the next of an answer, the id of a dead letter"},
		{"seed", "POST", "/api/v1/admin/subscriptions/edge/seed", `{"filters": "a/#"}`, r, 400, "body: filters is a text, not a list", `send {"filters": ["a/#"]} or {"discard": true}`},
		{"two bodies", "POST", "/api/v1/admin/dlq/redrive", `{"ids": ["a"]} {}`, r, 400, "body: something follows the object", forRedrive},
		{"large body", "POST", "/api/v1/admin/dlq/redrive", `{"ids": ["` + strings.Repeat("x", maxBody) + `"]}`, r, 413, "body over 1048576 bytes", "select by filter instead of by ids"},
		{"nothing selected", "POST", "/api/v1/admin/dlq/redrive", `{}`, r, 400, "name ids or a filter", `an empty filter, "filter": {}, selects everything`},
		{"two selections", "POST", "/api/v1/admin/dlq/redrive", `{"ids": ["a"], "filter": {}}`, r, 400, "ids and filter exclude each other", ""},
		{"many ids", "POST", "/api/v1/admin/dlq/delete", many, r, 400, "1001 ids, more than 1000", "send several requests, or select by filter"},
		{"max", "POST", "/api/v1/admin/dlq/redrive", `{"filter": {}, "max": 100001}`, r, 400, "max goes with a filter and is a number from 1 to 100000", ""},
		{"max with ids", "POST", "/api/v1/admin/dlq/redrive", `{"ids": ["a"], "max": 1}`, r, 400, "max goes with a filter and is a number from 1 to 100000", ""},
		{"rate", "POST", "/api/v1/admin/dlq/redrive", `{"filter": {}, "rate": -1}`, r, 400, "rate is in entries a second, at least 0.001", "0 is no limit"},
		{"max_replays", "POST", "/api/v1/admin/dlq/redrive", `{"filter": {}, "max_replays": -1}`, r, 400, "max_replays is negative", "0 is no bound"},
		{"category of a redrive", "POST", "/api/v1/admin/dlq/redrive", `{"filter": {"category": "odd"}}`, r, 400, `unknown category "odd"`, "categories: permanent, expired, poison, unstable_identity, retry_unsupported, filtered, subscription_removed"},
		{"confirmation", "POST", "/api/v1/admin/dlq/delete", `{"filter": {}}`, r, 400, "deleting by filter needs a confirmation", `add "confirm": true`},
		{"job", "GET", "/api/v1/admin/jobs/absent", "", r, 404, "no such job", "the latest hundred are known, and none from before the start of the bridge"},
		{"job to cancel", "POST", "/api/v1/admin/jobs/absent/cancel", "", r, 404, "no such job", "the latest hundred are known, and none from before the start of the bridge"},
		{"outbox", "GET", "/api/v1/admin/outbox", "", r, 404, "the bridge has no outbox", "no route has delivery_mode: shared_outbox"},
		{"cursor of the outbox", "GET", "/api/v1/admin/outbox?cursor=x", "", r, 400, "cursor is none of the outbox", "take the next of an answer"},
		{"files", "POST", "/api/v1/admin/store/verify", "", r, 404, "no store of the bridge lives in a file", "stores of type memory have nothing to look after"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := c.rig.ask(c.method, c.target, c.body)
			if w.Code != c.status {
				t.Errorf("status = %d, want %d", w.Code, c.status)
			}
			var got Error
			if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(Error{c.err, c.hint}, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestFailuresOfAStoreHaveTheirStatus(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err    error
		status int
		body   Error
	}{
		{
			&gobridge.Error{Code: gobridge.CodeUnavailable, Outage: true, Op: "store x.db", Hint: "free some space"},
			http.StatusServiceUnavailable,
			Error{"store x.db", "free some space"},
		},
		{gobridge.ErrFull, http.StatusInsufficientStorage, Error{Error: "store is full"}},
		{gobridge.ErrDamaged, http.StatusInternalServerError, Error{Error: "damaged"}},
	} {
		r := newRig(t)
		r.op.stores = []gobridge.FileStore{&fakeFile{err: c.err}}
		w := r.ask("POST", "/api/v1/admin/store/verify", "")
		if got := answer[Error](r, w, c.status); got != c.body {
			t.Errorf("%v: %+v, want %+v", c.err, got, c.body)
		}
	}
}

func TestEveryActionIsLoggedWithItsActor(t *testing.T) {
	t.Parallel()
	r := newRig(t, Key{"ops", gobridge.NewSecret(rightKey)})
	id := r.bury(gobridge.DeadLetter{Envelope: gobridge.Envelope{Payload: []byte("Conf1dential")}})[0]
	for _, c := range []struct{ method, target, body, line string }{
		{"GET", "/api/v1/admin/dlq", "", `level=DEBUG msg="admin action" action=dlq.list actor=ops peer=127.0.0.1 status=200 entries=1`},
		{"GET", "/api/v1/admin/dlq?full=1", "", `level=INFO msg="admin action" action=dlq.list actor=ops peer=127.0.0.1 status=200 entries=1`},
		{"GET", "/api/v1/admin/dlq/" + id, "", `level=INFO msg="admin action" action=dlq.read_payload actor=ops peer=127.0.0.1 status=200 dead_letter_id=` + id},
		{"POST", "/api/v1/admin/dlq/redrive", `{"ids": ["a", "b"]}`, `level=INFO msg="admin action" action=dlq.redrive actor=ops peer=127.0.0.1 status=202 ids=2 job_id=`},
		{"POST", "/api/v1/admin/dlq/delete", `{"ids": ["a"]}`, `level=INFO msg="admin action" action=dlq.delete actor=ops peer=127.0.0.1 status=200 ids=1 deleted=0`},
		{"POST", "/api/v1/admin/store/acknowledge", "", `level=INFO msg="admin action" action=store.acknowledge actor=ops peer=127.0.0.1 status=200`},
		{"POST", "/api/v1/admin/store/verify", "", `action=store.verify actor=ops peer=127.0.0.1 status=404 err="no store of the bridge lives in a file (stores of type memory have nothing to look after)"`},
	} {
		r.ask(c.method, c.target, c.body, "X-API-Key", rightKey)
		if !strings.Contains(r.log.String(), c.line) {
			t.Errorf("no line with %q in\n%s", c.line, r.log)
		}
	}
	if strings.Contains(r.log.String(), "Conf1dential") || strings.Contains(r.log.String(), rightKey) {
		t.Errorf("the log holds a key or a payload:\n%s", r.log)
	}
}
