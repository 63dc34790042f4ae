package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/metric"
)

// Options are what an engine needs beside its spec.
type Options struct {
	// Kinds lists the transports and stores that the spec may name. Required.
	Kinds *gobridge.Kinds
	// Logger receives the log. Defaults to one that discards it.
	Logger *slog.Logger
	// Metrics counts. Defaults to a registry of its own, see [Engine.Metrics].
	Metrics *metric.Registry
}

// Engine runs one bridge. It is single-use: Run is called once.
type Engine struct {
	spec      *gobridge.Spec
	kinds     *gobridge.Kinds
	log       *slog.Logger
	metrics   *metric.Registry
	slots     []*slot
	pipelines []*pipeline
	dlq       gobridge.DLQ
	ledger    gobridge.Ledger
	outbox    gobridge.Outbox
	history   gobridge.History
	leases    gobridge.LeaseStore   // nil without an exclusive session
	owned     map[string]*ownership // by the id of the exclusive session
	// credentials are the sources of the sessions that have a credentials_uri.
	credentials []io.Closer

	redriving sync.Map // ids of dead letters under way

	mu       sync.Mutex
	running  bool
	stopping bool
}

// SpecError reports every fault of a spec.
type SpecError struct{ Problems []gobridge.Problem }

func (e *SpecError) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// UnsettledError is returned by Run when deliveries were left with their source:
// it will deliver them again.
type UnsettledError struct{ Count int }

func (e *UnsettledError) Error() string {
	return fmt.Sprintf("stopped with %d deliveries unsettled at their source", e.Count)
}

// New checks the spec, completes its defaults in place, and builds the engine.
// The stores, the credentials and the session objects are opened; nothing is
// connected before Run, which closes them again. Faults of the spec come as one *SpecError.
func New(spec *gobridge.Spec, opts Options) (*Engine, error) {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.Metrics == nil {
		opts.Metrics = metric.NewRegistry()
	}
	e := &Engine{spec: spec, kinds: opts.Kinds, log: opts.Logger, metrics: opts.Metrics}
	var faults []gobridge.Problem
	for _, p := range spec.Check(opts.Kinds) {
		if p.Warning {
			e.log.Warn(p.What, "field", p.Path, "hint", p.Hint)
			continue
		}
		faults = append(faults, p)
	}
	if len(faults) > 0 {
		return nil, &SpecError{faults}
	}
	if err := e.openStores(); err != nil {
		return nil, errors.Join(err, e.closeHandles())
	}
	if err := e.build(); err != nil {
		return nil, errors.Join(err, e.closeHandles())
	}
	return e, nil
}

// DLQ returns the dead-letter queue, nil without one. Outbox returns the outbox, nil
// when no route uses one.
func (e *Engine) DLQ() gobridge.DLQ { return e.dlq }

// Outbox is described at DLQ.
func (e *Engine) Outbox() gobridge.Outbox { return e.outbox }

// Metrics returns the registry that the engine counts in.
func (e *Engine) Metrics() *metric.Registry { return e.metrics }

func (e *Engine) openStores() error {
	env := gobridge.Env{Logger: e.log, Metrics: e.metrics}
	ctx, cancel := context.WithTimeout(context.Background(), openTimeout)
	defer cancel()
	stores, b := &e.spec.Stores, &e.spec.Bridge
	for _, k := range e.kinds.DLQs {
		if k.Name != stores.DLQ.Type {
			continue
		}
		dlq, err := k.Open(ctx, b, &stores.DLQ, env)
		if err != nil {
			return fmt.Errorf("open dead-letter queue: %w", err)
		}
		e.dlq = dlq
		e.metrics.GaugeFunc(metric.DLQDepth, e.dlqDepth)
	}
	for _, k := range e.kinds.Ledgers {
		if k.Name != stores.ReplayLedger.Type {
			continue
		}
		ledger, err := k.Open(ctx, b, &stores.ReplayLedger, env)
		if err != nil {
			return fmt.Errorf("open replay ledger: %w", err)
		}
		e.ledger = ledger
	}
	for _, k := range e.kinds.Outboxes {
		if k.Name != stores.Outbox.Type || !e.spec.UsesOutbox() {
			continue
		}
		outbox, err := k.Open(ctx, b, &stores.Outbox, env)
		if err != nil {
			return fmt.Errorf("open outbox: %w", err)
		}
		e.outbox = outbox
	}
	for _, k := range e.kinds.Histories {
		if k.Name != stores.ManagedSubscriptions.Type {
			continue
		}
		history, err := k.Open(ctx, b, &stores.ManagedSubscriptions, env)
		if err != nil {
			return fmt.Errorf("open managed subscription history: %w", err)
		}
		e.history = history
	}
	for _, k := range e.kinds.Leases {
		if k.Name != stores.Lease.Type || len(e.spec.Owners()) == 0 {
			continue
		}
		leases, err := k.Open(ctx, b, &stores.Lease, env)
		if err != nil {
			return fmt.Errorf("open lease store: %w", err)
		}
		e.leases = leases
	}
	return nil
}

func (e *Engine) dlqDepth() float64 {
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	n, err := e.dlq.Depth(ctx)
	if err != nil {
		return math.NaN()
	}
	return float64(n)
}

// openTimeout bounds the opening of all stores; a large outbox is read then.
const openTimeout = time.Minute

// handles lists the stores and sources of credentials that are open.
func (e *Engine) handles() []io.Closer {
	var all []io.Closer
	if e.dlq != nil {
		all = append(all, e.dlq)
	}
	if e.ledger != nil {
		all = append(all, e.ledger)
	}
	if e.outbox != nil {
		all = append(all, e.outbox)
	}
	if e.history != nil {
		all = append(all, e.history)
	}
	if e.leases != nil {
		all = append(all, e.leases)
	}
	return append(all, e.credentials...)
}

// Stores returns the stores that live in files, one for each file.
func (e *Engine) Stores() []gobridge.FileStore {
	var all []gobridge.FileStore
	for _, h := range e.handles() {
		if f, ok := h.(gobridge.FileStore); ok && !slices.ContainsFunc(all, func(o gobridge.FileStore) bool { return o.Path() == f.Path() }) {
			all = append(all, f)
		}
	}
	return all
}

func (e *Engine) closeHandles() error {
	var errs []error
	for _, h := range e.handles() {
		errs = append(errs, h.Close())
	}
	return errors.Join(errs...)
}

// build makes routes and slots and ties them together.
func (e *Engine) build() error {
	slots := map[string]*slot{}
	for i := range e.spec.Sessions {
		s := &e.spec.Sessions[i]
		log := e.log.With("session_id", s.ID)
		sl := &slot{
			use:     &gobridge.SessionUse{Bridge: &e.spec.Bridge, Session: s},
			kind:    e.kinds.Transport(s.Transport),
			env:     gobridge.Env{Logger: log, Metrics: e.metrics, History: e.history, Carried: carry(e.kinds.Transport(s.Transport))},
			log:     log,
			rebuilt: e.metrics.Counter(metric.SessionRebuilds, s.ID),
		}
		if err := e.openCredentials(sl); err != nil {
			return fmt.Errorf("session %s: credentials_uri: %w", s.ID, err)
		}
		slots[s.ID] = sl
		e.slots = append(e.slots, sl)
	}
	for i := range e.spec.Senders {
		s := &e.spec.Senders[i]
		sl := slots[s.SessionID]
		sl.use.Senders = append(sl.use.Senders, s)
	}
	e.buildOwnerships()
	for i := range e.spec.Routes {
		if err := e.buildRoute(&e.spec.Routes[i], slots); err != nil {
			return err
		}
	}
	for _, s := range e.slots {
		if _, err := s.open(); err != nil {
			return fmt.Errorf("open session %s: %w", s.use.Session.ID, err)
		}
	}
	return nil
}

// openCredentials begins to watch the credential of a session.
func (e *Engine) openCredentials(s *slot) error {
	uri := s.use.Session.CredentialsURI
	scheme, _, _ := strings.Cut(uri, "://")
	kind := e.kinds.Credential(scheme)
	if kind == nil {
		return nil // none is named: the check knows the schemes
	}
	source, err := kind.Open(context.Background(), uri, s.env)
	if err != nil {
		return err
	}
	s.env.Credentials = source
	e.credentials = append(e.credentials, source)
	return nil
}

func (e *Engine) buildRoute(spec *gobridge.RouteSpec, slots map[string]*slot) error {
	bindings, err := newBindings(spec, e.metrics)
	if err != nil {
		return err
	}
	p := &pipeline{spec: spec}
	m := newRouteMetrics(e.metrics, spec.ID)
	if spec.DeliveryMode == gobridge.SharedOutbox {
		for _, b := range bindings {
			part := newPartition(b.id, b.template, e.outbox, e.metrics, spec.ID, e.log)
			r := newRoute(spec, []*binding{b}, e.dlq, e.ledger, m, e.log)
			r.outbox, r.receiver = e.outbox, part
			p.partitions, p.routes = append(p.partitions, part), append(p.routes, r)
		}
		unwanted, err := newBindings(spec, e.metrics)
		if err != nil {
			return err
		}
		p.intake = newIntake(spec, e.outbox, p.partitions, newRoute(spec, unwanted, e.dlq, e.ledger, m, e.log), e.metrics, e.log)
	} else {
		p.routes = []*route{newRoute(spec, bindings, e.dlq, e.ledger, m, e.log)}
	}
	e.metrics.GaugeFunc(metric.MessagesInFlight, func() float64 { return float64(p.inFlight()) }, spec.ID)
	e.pipelines = append(e.pipelines, p)

	for i := range e.spec.Receivers {
		if rs := &e.spec.Receivers[i]; rs.ID == spec.ReceiverID {
			sl := slots[rs.SessionID]
			sl.use.Receiver, sl.use.Route, sl.source = rs, spec, p
			if o := e.owned[sl.use.Session.ID]; o != nil {
				for _, b := range bindings {
					b.gate = &o.gate
				}
			}
			sl.env.Quiesce = func(ctx context.Context) error { return p.quiesce(ctx, metric.ReturnRecovering) }
			sl.env.DeadLetters = e.dlq != nil
		}
	}
	for _, r := range p.routes {
		for _, b := range r.bindings {
			senderID := spec.Bindings[slices.Index(bindings, b)].SenderID
			for j := range e.spec.Senders {
				if ss := &e.spec.Senders[j]; ss.ID == senderID {
					sl := slots[ss.SessionID]
					sl.users = append(sl.users, user{r, b, ss.ID})
				}
			}
		}
	}
	return nil
}

// Run moves messages until ctx ends. Then it stops intake, waits up to
// bridge.drain_timeout for what is physically under way, writes the last
// acknowledgements, disconnects, and returns: nil when every admitted delivery
// was settled, an *UnsettledError when some were left with their source.
func (e *Engine) Run(ctx context.Context) error {
	e.mu.Lock()
	if e.running {
		e.mu.Unlock()
		return errors.New("engine: Run may be called once")
	}
	e.running = true
	e.mu.Unlock()

	// The work goes on while ctx is already done: it ends after the drain.
	work, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	sessions, helpers := sync.WaitGroup{}, sync.WaitGroup{}
	for _, p := range e.pipelines {
		helpers.Go(func() { p.run(work, ctx) })
	}
	for _, s := range e.slots {
		if s.owned == nil {
			sessions.Go(func() { s.run(work, ctx) })
		}
	}
	for _, o := range e.owned {
		sessions.Go(func() { o.run(work, ctx) })
	}
	e.log.Info("bridge started", "bridge_id", e.spec.Bridge.ID, "routes", len(e.pipelines), "sessions", len(e.slots))

	<-ctx.Done()
	stopAt := time.Now().Add(e.spec.Bridge.ShutdownTimeout)
	e.mu.Lock()
	e.stopping = true
	e.mu.Unlock()
	e.log.Info("stopping", "cause", context.Cause(ctx))
	left := e.drain(work)

	stopWork()
	stopped := make(chan struct{})
	go func() { // ends with the sessions, whose Run honours its context
		sessions.Wait()
		helpers.Wait()
		close(stopped)
	}()
	select {
	case <-stopped:
	case <-time.After(time.Until(stopAt)):
		e.log.Error("shutdown_timeout passed before everything was closed")
	}
	if n := e.forgotten(); n > 0 {
		e.log.Warn("dead letters in memory end with the process", "count", n)
	}
	err := e.closeHandles()
	if left > 0 {
		return errors.Join(&UnsettledError{left}, err)
	}
	e.log.Info("stopped: every admitted delivery is settled")
	return err
}

// forgotten counts the dead letters that end with the process.
func (e *Engine) forgotten() int {
	if e.dlq == nil || e.spec.Stores.DLQ.Type != gobridge.StoreMemory {
		return 0
	}
	n, err := e.dlq.Depth(context.Background())
	if err != nil {
		return 0
	}
	return n
}

// drain drains all routes at once and returns how many deliveries were left.
func (e *Engine) drain(ctx context.Context) int {
	ctx, cancel := context.WithTimeout(ctx, e.spec.Bridge.DrainTimeout)
	defer cancel()
	var wg sync.WaitGroup
	counts := make([]int, len(e.pipelines))
	for i, p := range e.pipelines {
		wg.Go(func() { counts[i] = p.drain(ctx) })
	}
	wg.Wait()
	left := 0
	for i, n := range counts {
		if n > 0 {
			e.log.Warn("deliveries left with their source", "route_id", e.pipelines[i].spec.ID, "count", n)
		}
		left += n
	}
	return left
}
