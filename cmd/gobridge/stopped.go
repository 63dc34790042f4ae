package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/admin"
	"github.com/gobridge/gobridge/metric"
)

// need says which stores a command uses. fresh: they may be made, because the command
// brings what is to be in them.
type need struct{ dlq, outbox, history, others, fresh bool }

// stoppedBridge holds the stores of a bridge that does not run. It implements
// admin.Operator.
type stoppedBridge struct {
	spec    *gobridge.Spec
	kinds   *gobridge.Kinds
	fresh   bool
	dlq     gobridge.DLQ
	outbox  gobridge.Outbox
	history gobridge.History
	files   []gobridge.FileStore
	opened  []io.Closer
}

// openStopped opens stores of the bridge of a config file. A running bridge keeps
// its data_dir locked, and the error then names the process.
func openStopped(ctx context.Context, cmd *cobra.Command, name string, k *gobridge.Kinds, needs need) (*client, error) {
	file, _, err := loadConfig(cmd, name)
	if err != nil {
		return nil, err
	}
	spec := &file.Spec
	log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	s := &stoppedBridge{}
	if err := s.open(ctx, spec, k, needs, gobridge.Env{Logger: log, Metrics: metric.NewRegistry()}); err != nil {
		return nil, errors.Join(err, s.close())
	}
	api := admin.NewAPI(s, nil, slog.New(slog.DiscardHandler))
	return &client{
		base: &url.URL{Scheme: "http", Host: "localhost"}, stopped: s,
		http: &http.Client{Transport: inProcess{api}},
	}, nil
}

func (s *stoppedBridge) open(ctx context.Context, spec *gobridge.Spec, k *gobridge.Kinds, needs need, env gobridge.Env) error {
	s.spec, s.kinds, s.fresh = spec, k, needs.fresh
	b, stores := &spec.Bridge, &spec.Stores
	if needs.dlq {
		for _, kind := range k.DLQs {
			if kind.Name == stores.DLQ.Type {
				q, err := openStore(ctx, s, "dlq", kind.Open, b, &stores.DLQ, env)
				if err != nil {
					return err
				}
				s.dlq = q
			}
		}
	}
	if needs.outbox && spec.UsesOutbox() {
		for _, kind := range k.Outboxes {
			if kind.Name == stores.Outbox.Type {
				o, err := openStore(ctx, s, "outbox", kind.Open, b, &stores.Outbox, env)
				if err != nil {
					return err
				}
				s.outbox = o
			}
		}
	}
	if needs.history && stores.ManagedSubscriptions.Type == gobridge.StoreMemory {
		return goneWithProcess("managed_subscriptions")
	}
	if needs.history || needs.others {
		for _, kind := range k.Histories {
			if kind.Name == stores.ManagedSubscriptions.Type {
				h, err := openStore(ctx, s, "managed_subscriptions", kind.Open, b, &stores.ManagedSubscriptions, env)
				if err != nil {
					return err
				}
				s.history = h
			}
		}
	}
	if !needs.others {
		return nil
	}
	for _, kind := range k.Ledgers {
		if kind.Name == stores.ReplayLedger.Type {
			if _, err := openStore(ctx, s, "replay_ledger", kind.Open, b, &stores.ReplayLedger, env); err != nil {
				return err
			}
		}
	}
	return nil
}

// openStore opens one store and notes what is to be closed and looked after.
func openStore[T io.Closer](
	ctx context.Context, s *stoppedBridge, name string,
	open func(context.Context, *gobridge.BridgeSpec, *gobridge.StoreSpec, gobridge.Env) (T, error),
	b *gobridge.BridgeSpec, spec *gobridge.StoreSpec, env gobridge.Env,
) (T, error) {
	var none T
	if spec.Type == gobridge.StoreMemory {
		if name == "dlq" || name == "outbox" {
			return none, goneWithProcess(name)
		}
		return none, nil
	}
	// A directory that is not there would be made, and nothing found in it.
	if _, err := os.Lstat(b.DataDir); errors.Is(err, fs.ErrNotExist) && !s.fresh {
		return none, fmt.Errorf("bridge.data_dir %s does not exist (a relative one starts at the working directory of the bridge)", b.DataDir)
	}
	store, err := open(ctx, b, spec, env)
	if err != nil {
		return none, fmt.Errorf("open stores.%s: %w", name, err)
	}
	s.opened = append(s.opened, store)
	if f, ok := any(store).(gobridge.FileStore); ok &&
		!slices.ContainsFunc(s.files, func(other gobridge.FileStore) bool { return other.Path() == f.Path() }) {
		s.files = append(s.files, f)
	}
	return store, nil
}

func goneWithProcess(name string) error {
	return fmt.Errorf("stores.%s is of type memory: it is gone when the bridge stops (ask a running one with --url)", name)
}

func (s *stoppedBridge) close() error {
	var errs []error
	for _, store := range slices.Backward(s.opened) {
		errs = append(errs, store.Close())
	}
	return errors.Join(errs...)
}

// DLQ implements admin.Operator.
func (s *stoppedBridge) DLQ() gobridge.DLQ { return s.dlq }

// Outbox implements admin.Operator.
func (s *stoppedBridge) Outbox() gobridge.Outbox { return s.outbox }

// Stores implements admin.Operator.
func (s *stoppedBridge) Stores() []gobridge.FileStore { return s.files }

// Redrive implements admin.Operator: there is nobody to send.
func (s *stoppedBridge) Redrive(context.Context, string) error { return errNeedsBridge }

var errNeedsBridge = errors.New("redrive needs a running bridge, which does the sending (start it, then use --url)")

// inProcess answers requests from a handler of this process.
type inProcess struct{ handler http.Handler }

// RoundTrip implements http.RoundTripper. The answer is complete when it returns.
func (t inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	served := r.Clone(r.Context())
	served.RemoteAddr, served.Host = "127.0.0.1:0", "localhost"
	w := &answer{header: http.Header{}, status: http.StatusOK}
	t.handler.ServeHTTP(w, served)
	return &http.Response{
		StatusCode: w.status, Status: http.StatusText(w.status), Header: w.header, Request: r,
		Body: io.NopCloser(&w.body), ContentLength: int64(w.body.Len()),
	}, nil
}

// answer keeps what a handler writes.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) WriteHeader(status int)      { a.status = status }
func (a *answer) Write(b []byte) (int, error) { return a.body.Write(b) }
