package mqtt

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/autopaho"
	"github.com/eclipse/paho.golang/paho"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/transport/mqtt/wire"
)

// recoverySpacing is the shortest time from the end of one recovery to the start of
// the next one: a route that refuses everything must not become a storm of reconnects.
const recoverySpacing = 30 * time.Second

var (
	errRecoveryTime  = errors.New("not done within the recovery bound")
	errSessionAbsent = errors.New("broker no longer had the session, and with it the unacknowledged messages")
)

// connection is one connection as its reconcile needs it.
type connection struct {
	ctx   context.Context // ends with it
	cm    *autopaho.ConnectionManager
	ca    *paho.Connack
	epoch int
}

// recovery is the recoveryState of a session instance with what waits for it. Safe
// for concurrent use. Its mutex is taken last.
type recovery struct {
	log *slog.Logger
	// wanted tells the worker that an attempt is wanted, adopted which connection the
	// attempt has to reconcile.
	wanted  chan struct{}
	adopted chan connection
	// dead ends, with the permanent error as its cause, when the instance dies.
	dead context.Context
	die  context.CancelCauseFunc

	mu    sync.Mutex
	state recoveryState
}

func newRecovery(log *slog.Logger) *recovery {
	r := &recovery{log: log, wanted: make(chan struct{}, 1), adopted: make(chan connection, 1)}
	r.dead, r.die = context.WithCancelCause(context.Background())
	return r
}

// event lets something happen to the recovery. cause is the reason if it dies of it.
// The caller does what the effects say, apart from recoveryWork and recoveryTerminal,
// which are done.
func (r *recovery) event(kind recoveryEventKind, epoch int, cause error) recoveryEffects {
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.state.phase
	var fx recoveryEffects
	r.state, fx = r.state.step(recoveryEvent{kind: kind, epoch: epoch})
	if fx.has(recoveryTerminal) {
		r.die(fmt.Errorf("%w: settlement recovery, %s: %w", gobridge.ErrSessionUnrecoverable, was, cause))
	}
	if fx.has(recoveryWork) {
		select {
		case r.wanted <- struct{}{}:
		default: // the worker has not looked yet
		}
	}
	return fx
}

// request asks for a recovery because of a delivery that was given back.
func (r *recovery) request(reason error) {
	if r.event(recoverQueue, 0, nil).has(recoveryWork) {
		r.log.Warn("recovery queued: the connection is made anew, so that the broker sends unsettled messages again", "err", reason)
	}
}

// connack takes note of an accepted connection.
func (r *recovery) connack(epoch int, present bool) {
	kind := recoverPresent
	if !present {
		kind = recoverAbsent
	}
	r.event(kind, epoch, errSessionAbsent)
}

// adopt takes over the reconcile of a connection, which is then not an ordinary one.
// A dead instance reconciles nothing.
func (r *recovery) adopt(c connection) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state.phase == recoveryResuming && r.state.target == c.epoch {
		r.adopted <- c // it has room: there is one connection in each attempt
		return true
	}
	return r.state.phase == recoveryFailed
}

func (r *recovery) phase() recoveryPhase {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.phase
}

// owning reports whether the connection is the recovery's.
func (r *recovery) owning() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.owning() || r.state.phase == recoveryFailed
}

// owes reports whether a dead instance owns a settlement barrier that nobody has begun.
func (r *recovery) owes() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.phase == recoveryFailed && r.state.drain == drainInProgress
}

// failure returns the permanent error of a dead instance, nil while it lives.
func (r *recovery) failure() error { return context.Cause(r.dead) }

// recoverUntil is the worker of the recoveries: one attempt after the other until ctx
// ends or one fails. A failure ends the instance: it closes dead when nothing of the
// route is left to be settled over the connection.
func (s *session) recoverUntil(ctx context.Context, dead chan<- struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.recovery.dead.Done():
		case <-s.recovery.wanted:
			if s.awaitSpacing(ctx) {
				s.attemptRecovery(ctx)
			}
		}
		if s.recovery.failure() != nil {
			s.terminate(ctx)
			close(dead)
			return
		}
	}
}

// awaitSpacing reports whether an attempt may begin.
func (s *session) awaitSpacing(ctx context.Context) bool {
	wait := s.carried.recoveryWait(s.spacing)
	if wait <= 0 {
		return true
	}
	s.log.Info("recovery waits, because the last one has just ended", "wait", wait.Round(time.Millisecond))
	select {
	case <-time.After(wait):
		return true
	case <-ctx.Done():
	case <-s.recovery.dead.Done():
	}
	return false
}

// attemptRecovery makes one attempt. Everything in it stands under one deadline.
func (s *session) attemptRecovery(ctx context.Context) {
	bounded, cancel := context.WithTimeoutCause(ctx, s.bound, errRecoveryTime)
	defer cancel()
	// A death elsewhere ends every wait but that of the settlement barrier, which is
	// one for all.
	waits, abort := context.WithCancelCause(bounded)
	defer context.AfterFunc(s.recovery.dead, func() { abort(s.recovery.failure()) })()
	defer abort(nil)

	if err := s.gate.acquire(waits); err != nil {
		s.giveUp(ctx, err)
		return
	}
	defer s.gate.release()
	if !s.recovery.event(recoverGate, 0, nil).has(recoveryCount) {
		return // dead meanwhile, or nothing is wanted any more
	}
	defer s.carried.recovered()
	s.count.recoveryRecycle.Inc()
	s.carried.recycled()
	s.log.Info("recovery begins")

	if err := s.drain(bounded); err != nil {
		s.giveUp(ctx, err)
		s.recovery.event(recoverDrainFailed, 0, err)
		return
	}
	if s.recovery.event(recoverDrained, 0, nil); s.recovery.failure() != nil {
		return
	}
	s.leave(waits)
	var c connection
	select {
	case c = <-s.recovery.adopted:
	case <-waits.Done():
		s.giveUp(ctx, context.Cause(waits))
		return
	}
	switch err := s.resume(waits, c); {
	case err == nil:
		if s.recovery.event(recoverReconciled, c.epoch, nil).has(recoveryComplete) {
			s.log.Info("recovery complete")
			s.tasks.Go(func() { s.reconcile(c) }) // confirms, once the gate is free, what was taken on trust
		}
	case waits.Err() != nil:
		s.giveUp(ctx, context.Cause(waits))
	default:
		s.recovery.event(recoverReconcileFailed, c.epoch, err)
	}
}

// giveUp takes note of a step that was given up.
func (s *session) giveUp(ctx context.Context, err error) {
	switch {
	case ctx.Err() != nil:
		s.recovery.event(recoverClose, 0, nil)
	case errors.Is(err, errRecoveryTime):
		s.recovery.event(recoverDeadline, 0, err)
	default:
		s.recovery.event(recoverCancel, 0, err)
	}
}

// drain is the settlement barrier: nothing is offered to the route any more, and what
// it holds is awaited without a bound of its own, because each send, processor and
// store call has one. What was settled is acknowledged.
func (s *session) drain(ctx context.Context) error {
	offering, cancel := context.WithTimeoutCause(ctx, s.set.ReconcileTimeout,
		errors.New("the route did not return from taking deliveries within reconcile_timeout"))
	defer cancel()
	if err := s.in.hold(offering); err != nil {
		return err
	}
	if s.quiesce != nil {
		if err := s.quiesce(ctx); err != nil {
			return fmt.Errorf("waiting for what the route holds: %w", err)
		}
	}
	s.in.Flush()
	return nil
}

// leave ends the connection; the broker keeps the session. Where there is none, that
// is done.
func (s *session) leave(ctx context.Context) {
	s.mu.Lock()
	c := s.link
	if c == nil {
		s.backoff.wake()
		s.in.release()
		s.recovery.event(recoverDisconnected, 0, nil) // before the next CONNACK, which takes mu
		s.mu.Unlock()
		return
	}
	s.deliberate = true
	s.in.lost(c.guardConn)
	s.in.release() // before the next connection, which takes mu
	s.mu.Unlock()
	s.backoff.skip()
	s.out.lost(c.guardConn)
	c.disconnect(disconnectFor(wire.ReasonSuccess))
	// Closing before the broker has read the acknowledgements could destroy them.
	select {
	case <-c.closed():
	case <-time.After(closeWait):
	case <-ctx.Done():
	}
	c.fail(errors.New("reconnecting: recovery"))
	_ = c.Close() // the reader's error tells the library
}

// resume reconciles the connection that the attempt has made.
func (s *session) resume(ctx context.Context, c connection) error {
	link, cancel := context.WithCancelCause(c.ctx)
	defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
	defer cancel(nil)
	if err := s.converge(link, c, true); err != nil {
		return err
	}
	return context.Cause(link) // nil while the connection is there
}

// terminate is what a dead instance still does: it takes nothing more from the broker,
// and waits for what the route holds unless the attempt has done so.
func (s *session) terminate(ctx context.Context) {
	s.log.Warn("session cannot go on", "err", s.recovery.failure())
	s.in.stop()
	if s.recovery.owes() {
		bounded, cancel := context.WithTimeoutCause(ctx, s.bound, errRecoveryTime)
		err := s.drain(bounded)
		cancel()
		if err != nil && ctx.Err() == nil {
			s.log.Warn("route still holds deliveries of the session that ends", "err", err)
		}
		s.recovery.event(recoverDrained, 0, err)
	}
}
