package engine

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/metric"
)

// gate lets messages pass to destinations while this process owns their source. A nil
// one is always open. Safe for concurrent use.
type gate struct {
	fence *gobridge.Fence
	// stepping: the ownership is being given up; only what is under way goes on.
	stepping atomic.Bool
}

// open reports whether a send may begin at that time.
func (g *gate) open(now time.Time) bool {
	return g == nil || !g.stepping.Load() && g.fence.Open(now)
}

// ownership is an exclusive session with the sessions that follow its lease (V8).
// They run while this process holds the lease and are closed before it is released.
type ownership struct {
	gate
	keeper *leaseKeeper
	slot   *slot
	// slots are that of the exclusive session and those that follow it.
	slots []*slot
	grace time.Duration
	log   *slog.Logger
	// intake ends when the bridge stops taking messages. Set by run.
	intake context.Context
}

// buildOwnerships puts the sessions under the leases that they need.
func (e *Engine) buildOwnerships() {
	e.owned = map[string]*ownership{}
	owners := e.spec.Owners()
	holder := newHolder(e.spec.Bridge.InstanceID)
	for _, s := range e.slots {
		if id := s.use.Session.ID; owners[id] == id {
			e.owned[id] = e.newOwnership(s, holder)
		}
	}
	for _, s := range e.slots {
		if o := e.owned[owners[s.use.Session.ID]]; o != nil && o.slot != s {
			o.slots = append(o.slots, s)
			o.attach(s)
		}
	}
}

// newOwnership makes the ownership of an exclusive session. holder names this process.
func (e *Engine) newOwnership(s *slot, holder string) *ownership {
	lease := s.use.Session.Lease.Effective()
	o := &ownership{slot: s, slots: []*slot{s}, grace: lease.StepDownGrace, log: s.log}
	o.fence = new(gobridge.Fence)
	o.keeper = &leaseKeeper{
		store: e.leases, key: e.spec.Bridge.ID + "/" + s.use.Session.ID, holder: holder, spec: lease, log: s.log,
		taken: e.metrics.Counter(metric.LeaseTransfers, s.use.Session.ID), fence: o.fence, doubts: make(chan struct{}, 1),
		connected: func() bool { return s.current().Health().Connected }, term: o.serve,
	}
	o.attach(s)
	return o
}

// attach puts a session under the lease.
func (o *ownership) attach(s *slot) {
	s.owned = o
	s.env.Fence, s.env.Doubt = o.fence, o.keeper.doubt
}

// newHolder names a process: two of one instance_id are told apart.
func newHolder(instance string) string {
	var nonce [4]byte
	_, _ = rand.Read(nonce[:]) // never fails
	return instance + "-" + hex.EncodeToString(nonce[:])
}

// run owns the session whenever it can until ctx ends. intake is that of slot.run.
func (o *ownership) run(ctx, intake context.Context) {
	o.intake = intake
	o.keeper.run(ctx)
}

// serve is one term: the sessions run until ctx ends. Then this process steps down:
// the source is closed, what is physically under way is awaited for step_down_grace,
// what only waits is left to the source (B1), and the sessions are closed.
func (o *ownership) serve(ctx context.Context) {
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	intake, stopIntake := context.WithCancel(o.intake)
	defer stopIntake()
	o.stepping.Store(false)
	var sessions sync.WaitGroup
	for _, s := range o.slots {
		sessions.Go(func() { s.run(work, intake) })
	}
	<-ctx.Done()
	cause := context.Cause(ctx)
	why := cause
	if errors.Is(cause, context.Canceled) {
		why = errors.New("the bridge stops")
	}
	o.log.Info("stepping down", "cause", why)

	stopIntake()
	o.stepping.Store(true)
	if o.part(ctx, o.grace) != nil {
		o.log.Warn("step_down_grace has passed with messages under way: they may be sent twice")
	}
	stop()
	sessions.Wait()
	_ = o.part(ctx, goneCheck) // what the receiver still offered while it was being stopped
}

// part empties the route of the source within the grace.
func (o *ownership) part(ctx context.Context, grace time.Duration) error {
	if o.slot.source == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	return o.slot.source.part(ctx)
}

// stateStandby is the state of a session that another process owns, or may own.
const stateStandby = "standby"

// amend tells in a session's health whether this process owns it.
func (o *ownership) amend(h *gobridge.SessionHealth, s *slot) {
	held, why, fault := o.keeper.standing()
	if fault != nil {
		h.LastError = fault.Error()
	}
	if held {
		h.HasLease = s == o.slot
		return
	}
	h.State, h.Connected, h.SessionPresent, h.SubscriptionsActive = stateStandby, false, false, 0
	h.ServiceLevel, h.Reasons = gobridge.LevelSubscribed, []string{why}
	if fault != nil {
		h.ServiceLevel = gobridge.LevelNone
		h.Reasons = append(h.Reasons, fault.Error())
	}
}

// role tells whether this process owns any of its exclusive sessions; empty when it
// has none.
func (e *Engine) role() string {
	if len(e.owned) == 0 {
		return ""
	}
	for _, o := range e.owned {
		if held, _, _ := o.keeper.standing(); held {
			return gobridge.RoleActive
		}
	}
	return gobridge.RoleStandby
}

// standsBy reports whether another process owns the session, or may own it.
func (s *slot) standsBy() bool {
	if s.owned == nil {
		return false
	}
	held, _, _ := s.owned.keeper.standing()
	return !held
}
