package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gobridge/gobridge"
)

// Operator is what the admin API works on. The engine implements it. Safe for
// concurrent use.
type Operator interface {
	// DLQ returns the dead-letter queue, nil when the bridge has none.
	DLQ() gobridge.DLQ
	// Outbox returns the outbox, nil when the bridge has none.
	Outbox() gobridge.Outbox
	// Stores returns the stores that live in files, one for each file.
	Stores() []gobridge.FileStore
	// Redrive sends one dead letter again, to the binding that failed (decision F2).
	// It blocks until that is decided or ctx ends. nil means that the destination
	// confirmed it and that the entry is deleted; otherwise the entry is still there,
	// up to date, and the error, wrapping a *gobridge.Error, tells why. One that wraps
	// gobridge.ErrNotTried too says that nothing was sent and nothing charged.
	Redrive(ctx context.Context, id string) error
	// Topology names the sessions.
	Topology() gobridge.Topology
	// Subscriptions tells what is known of the subscriptions of a durable session.
	// Here and below the error is gobridge.ErrNotFound for an unknown session, and
	// gobridge.ErrNotSupported where its transport has nothing of the kind.
	Subscriptions(ctx context.Context, sessionID string) (gobridge.SessionSubscriptions, error)
	// SeedSubscriptions gives a session the baseline that it waits for and lets it try
	// again (decision D4): its broker holds the filters of the config and the further
	// ones, or, with discard, is to forget the session.
	SeedSubscriptions(ctx context.Context, sessionID string, discard bool, further ...string) error
	// DrainSession removes the session's subscriptions from its broker and returns once
	// what was queued there has been settled. The session stays without subscriptions
	// until RetrySession.
	DrainSession(ctx context.Context, sessionID string) error
	// EndSession removes the session from its broker with whatever is queued there. It
	// stays closed until RetrySession.
	EndSession(ctx context.Context, sessionID string) error
	// RetrySession ends whatever the session waits for.
	RetrySession(sessionID string) error
}

// Bounds of one request.
const (
	requestTimeout = 20 * time.Second
	// slowTimeout is for what reads whole files or waits for a queue to run empty.
	slowTimeout = 15 * time.Minute
	// answerMargin is left to say that it took too long.
	answerMargin = 5 * time.Second
	maxBody      = 1 << 20
)

// API is the admin API:
//
//	GET  /api/v1/admin/dlq                            a page of dead letters, oldest first
//	GET  /api/v1/admin/dlq/{id}                       one with everything that is known of it
//	POST /api/v1/admin/dlq/redrive                    202: a job that sends dead letters again
//	POST /api/v1/admin/dlq/delete                     by ids, or by filter
//	GET  /api/v1/admin/jobs/{id}                      how far a job is
//	POST /api/v1/admin/jobs/{id}/cancel               ends it after the entry at hand
//	GET  /api/v1/admin/outbox                         depths, ages, and a page of records
//	GET  /api/v1/admin/subscriptions                  what durable sessions have at their brokers
//	POST /api/v1/admin/subscriptions/{id}/seed        gives a session a baseline by hand
//	POST /api/v1/admin/sessions/{id}/drain            unsubscribes and waits for the queue to run empty
//	POST /api/v1/admin/sessions/{id}/end              removes the session from its broker, with its queue
//	POST /api/v1/admin/sessions/{id}/retry            ends whatever the session waits for
//	GET  /api/v1/admin/store                          the files and what was salvaged
//	GET  /api/v1/admin/store/backup                   a consistent copy of one of them
//	POST /api/v1/admin/store/verify                   reads and checks everything
//	POST /api/v1/admin/store/acknowledge              ends the report of a salvage
//
// Every request that changes or reveals something is logged with its actor.
type API struct {
	op      Operator
	gate    *gate
	jobs    *jobs
	log     *slog.Logger
	handler http.Handler
}

// NewAPI returns the API. Keys let their holders in from everywhere; without a key it
// answers programs on this machine only. Its jobs need [API.Run].
func NewAPI(op Operator, keys []Key, logger *slog.Logger) *API {
	a := &API{op: op, gate: newGate(keys, logger), jobs: newJobs(), log: logger}
	mux := http.NewServeMux()
	for pattern, e := range map[string]endpoint{
		"GET /api/v1/admin/dlq":                      {action: "dlq.list", handle: a.listDLQ},
		"GET /api/v1/admin/dlq/{id}":                 {action: "dlq.read_payload", handle: a.showDLQ},
		"POST /api/v1/admin/dlq/redrive":             {action: "dlq.redrive", handle: a.redriveDLQ},
		"POST /api/v1/admin/dlq/delete":              {action: "dlq.delete", handle: a.deleteDLQ},
		"GET /api/v1/admin/jobs/{id}":                {action: "job.read", handle: a.showJob},
		"POST /api/v1/admin/jobs/{id}/cancel":        {action: "job.cancel", handle: a.cancelJob},
		"GET /api/v1/admin/outbox":                   {action: "outbox.list", handle: a.listOutbox},
		"GET /api/v1/admin/subscriptions":            {action: "subscriptions.list", handle: a.listSubscriptions},
		"POST /api/v1/admin/subscriptions/{id}/seed": {action: "subscriptions.seed", handle: a.seedSubscriptions},
		"POST /api/v1/admin/sessions/{id}/drain":     {action: "session.drain", handle: onSession("drain", op.DrainSession), timeout: slowTimeout},
		"POST /api/v1/admin/sessions/{id}/end":       {action: "session.end", handle: onSession("end", op.EndSession)},
		"POST /api/v1/admin/sessions/{id}/retry": {action: "session.retry", handle: onSession("retry", func(_ context.Context, id string) error {
			return op.RetrySession(id)
		})},
		"GET /api/v1/admin/store":              {action: "store.list", handle: a.listStores},
		"GET /api/v1/admin/store/backup":       {action: "store.backup", handle: a.backupStore, timeout: slowTimeout},
		"POST /api/v1/admin/store/verify":      {action: "store.verify", handle: a.verifyStores, timeout: slowTimeout},
		"POST /api/v1/admin/store/acknowledge": {action: "store.acknowledge", handle: a.acknowledgeStores},
	} {
		mux.Handle(pattern, a.serve(e))
	}
	a.handler = a.guarded(jsonErrors(mux))
	return a
}

// ServeHTTP answers one request.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.handler.ServeHTTP(w, r) }

// Run works on jobs until ctx ends; then the one at hand stops after its entry, and
// new ones are refused. Called once.
func (a *API) Run(ctx context.Context) {
	a.jobs.run(ctx, func(ctx context.Context, j *job) {
		a.redrive(ctx, j)
		s := a.jobs.snapshot(j)
		a.log.Info("admin job ended", "action", s.Action, "actor", s.Actor, "job_id", s.ID, "state", string(s.State),
			"total", s.Total, "done", s.Done, "failed", s.Failed, "skipped", s.Skipped, "not_tried", s.NotTried, "dry_run", s.DryRun)
	})
}

// actorKey is the key of the actor's name in the context of a request.
type actorKey struct{}

// guarded lets through who may use the API; a browser may not be made to use it for
// another site.
func (a *API) guarded(next http.Handler) http.Handler {
	crossOrigin := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := crossOrigin.Check(r); err != nil {
			a.log.Warn("admin request refused", "peer", peerOf(r).String(), "path", r.URL.Path, "reason", "from another origin")
			writeJSON(w, http.StatusForbidden, Error{Error: "requests from the pages of another origin are refused"})
			return
		}
		if actor, ok := a.gate.admit(w, r); ok {
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), actorKey{}, actor)))
		}
	})
}

// endpoint is one method of the API.
type endpoint struct {
	// action is its name in the log.
	action string
	handle func(c *call) error
	// timeout bounds the request. Defaults to requestTimeout.
	timeout time.Duration
}

// call is one request at work. A handler either answers or returns an error.
type call struct {
	*http.Request
	w       http.ResponseWriter
	actor   string
	status  int
	details []any // attributes of the line in the log
	quiet   bool  // logged only when it fails or for debugging
}

// answer sends the one answer of a call.
func (c *call) answer(status int, v any) error {
	c.status = status
	writeJSON(c.w, status, v)
	return nil
}

// detail adds to the line in the log.
func (c *call) detail(attrs ...any) { c.details = append(c.details, attrs...) }

func (a *API) serve(e endpoint) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		timeout := e.timeout
		if timeout == 0 {
			timeout = requestTimeout
		}
		// The deadline of the server is shorter. What is in memory only has none to put off.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(timeout + answerMargin))
		ctx, cancel := context.WithTimeout(r.Context(), timeout)
		defer cancel()
		actor, _ := ctx.Value(actorKey{}).(string)
		c := &call{Request: r.WithContext(ctx), w: w, actor: actor}
		if err := e.handle(c); err != nil {
			f := failureOf(err)
			c.detail("err", err)
			_ = c.answer(f.status, f.body)
		}
		level := slog.LevelInfo
		if c.quiet && c.status < http.StatusInternalServerError {
			level = slog.LevelDebug
		}
		a.log.Log(ctx, level, "admin action", append([]any{
			"action", e.action, "actor", actor, "peer", peerOf(r).String(), "status", c.status,
		}, c.details...)...)
	})
}

// failure is an error with its place in HTTP.
type failure struct {
	status int
	body   Error
}

func (f *failure) Error() string {
	if f.body.Hint == "" {
		return f.body.Error
	}
	return f.body.Error + " (" + f.body.Hint + ")"
}

func badRequest(hint, format string, args ...any) error {
	return &failure{http.StatusBadRequest, Error{fmt.Sprintf(format, args...), hint}}
}

// failureOf is the one place that knows which status an error has.
func failureOf(err error) *failure {
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	f := &failure{status: http.StatusInternalServerError, body: Error{Error: err.Error()}}
	e, typed := errors.AsType[*gobridge.Error](err)
	if typed && e.Hint != "" {
		f.body = Error{strings.TrimSuffix(f.body.Error, " ("+e.Hint+")"), e.Hint}
	}
	switch {
	case errors.Is(err, gobridge.ErrNotFound):
		f.status = http.StatusNotFound
	case errors.Is(err, gobridge.ErrNotSupported):
		f.status = http.StatusNotImplemented
	case errors.Is(err, gobridge.ErrLeaseLost), typed && e.Code == gobridge.CodeUnknownBaseline:
		f.status = http.StatusConflict
	case errors.Is(err, gobridge.ErrFull):
		f.status = http.StatusInsufficientStorage
	case typed && e.Outage:
		f.status = http.StatusServiceUnavailable
	case errors.Is(err, context.DeadlineExceeded):
		f.status = http.StatusGatewayTimeout
	}
	return f
}

// known refuses query parameters that a method does not have: a filter with a
// misspelt name would select too much.
func (c *call) known(allowed ...string) error {
	for name := range c.URL.Query() {
		if !slices.Contains(allowed, name) {
			return badRequest("parameters: "+strings.Join(allowed, ", "), "unknown parameter %q", name)
		}
	}
	return nil
}
