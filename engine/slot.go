package engine

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/metric"
)

// The waits before a dead session instance is replaced.
const (
	rebuildMin = time.Second
	rebuildMax = 30 * time.Second
)

// slot is the place of one session in the engine. Session instances are
// single-use: the slot opens the next one when an instance dies, and ties the
// routes to it. What must outlive instances is in env.Carried (D3).
type slot struct {
	use     *gobridge.SessionUse
	kind    *gobridge.Transport
	env     gobridge.Env
	log     *slog.Logger
	rebuilt *metric.Counter
	// source is the pipeline that the session's receiver feeds, nil without one.
	source *pipeline
	// users are the bindings that send through the session.
	users []user
	// owned is the ownership that the session belongs to, nil for one that always runs.
	owned *ownership
	ran   bool // the latest instance was run; of run

	mu      sync.Mutex
	session gobridge.Session
	lastErr string
	// again ends the wait for the next instance when it is closed; nil while there is
	// no wait, or it was ended.
	again chan struct{}
}

// user is one binding of one route.
type user struct {
	route    *route
	binding  *binding
	senderID string
}

// open makes a fresh instance and ties the routes to it.
func (s *slot) open() (gobridge.Session, error) {
	session, err := s.kind.Open(s.use, s.env)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.session, s.again = session, nil
	s.mu.Unlock()
	for _, u := range s.users {
		sender := session.Sender(u.senderID)
		u.route.mu.Lock()
		u.binding.sender = sender
		u.route.mu.Unlock()
		sender.Notify(func() { u.route.available(u.binding) })
	}
	if s.source != nil {
		s.source.attach(session.Receiver())
	}
	return session, nil
}

// current returns the latest instance.
func (s *slot) current() gobridge.Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.session
}

// run keeps an instance running until ctx ends. intake ends earlier: from then on
// the receiver offers nothing, while settlements still go out. It may be called again.
func (s *slot) run(ctx, intake context.Context) {
	wait := rebuildMin
	for session := s.first(ctx, &wait); session != nil; {
		began := time.Now()
		err := s.serve(ctx, intake, session)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > rebuildMax {
			wait = rebuildMin
		}
		session = s.replace(ctx, err, &wait)
	}
}

// first returns an instance that has not run.
func (s *slot) first(ctx context.Context, wait *time.Duration) gobridge.Session {
	if !s.ran {
		return s.current()
	}
	session, err := s.open()
	if err != nil {
		return s.replace(ctx, err, wait)
	}
	return session
}

// serve runs one instance to its end.
func (s *slot) serve(ctx, intake context.Context, session gobridge.Session) error {
	s.ran = true
	var receiving sync.WaitGroup
	instance, stop := context.WithCancel(intake)
	if s.source != nil {
		receiver := session.Receiver()
		receiving.Go(func() {
			if err := receiver.Run(instance, s.source.emit()); err != nil {
				s.log.Error("receiver stopped", "err", err)
			}
		})
	}
	err := session.Run(ctx)
	stop()
	receiving.Wait()
	if err == nil {
		err = errors.New("session ended without being asked to")
	}
	return err
}

// replace opens the instance that follows a dead one, after a wait that grows, and
// after the route holds nothing of the dead one any more. It returns nil when ctx
// ends first.
func (s *slot) replace(ctx context.Context, err error, wait *time.Duration) gobridge.Session {
	again, due := s.fail(err, *wait), time.Now().Add(*wait)
	s.empty(ctx)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Until(due)):
		case <-again:
		}
		*wait = min(2**wait, rebuildMax)
		session, err := s.open()
		if err == nil {
			s.rebuilt.Inc()
			return session
		}
		again, due = s.fail(err, *wait), time.Now().Add(*wait)
	}
}

// empty gives back what the route holds of a dead instance: a fresh one receives it
// again. Sends that hang end after send_timeout, and so does the wait for them.
func (s *slot) empty(ctx context.Context) {
	if s.source == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, s.source.spec.Policy.SendTimeout)
	defer cancel()
	if err := s.source.quiesce(ctx, metric.ReturnSessionEnd); err != nil {
		s.log.Warn("messages of a dead session instance are still being sent: they may be sent twice", "err", err)
	}
}

// fail notes why there is no live instance, and returns what ends the wait for the
// next one early.
func (s *slot) fail(err error, wait time.Duration) <-chan struct{} {
	again := make(chan struct{})
	s.mu.Lock()
	s.lastErr = err.Error()
	s.again = again
	s.mu.Unlock()
	s.log.Error("session instance is dead: a fresh one will take its place", "in", wait, "err", err)
	return again
}

// retry ends the wait for the next instance, or else the one of the live instance.
func (s *slot) retry() error {
	if s.standsBy() {
		return nil // its next instance looks at everything anew
	}
	s.mu.Lock()
	again := s.again
	s.again = nil
	s.mu.Unlock()
	if again != nil {
		close(again)
		return nil
	}
	control, err := s.control()
	if err != nil {
		return err
	}
	control.Retry()
	return nil
}

func (s *slot) health() gobridge.SessionHealth {
	s.mu.Lock()
	session, lastErr := s.session, s.lastErr
	s.mu.Unlock()
	h := session.Health()
	if h.LastError == "" {
		h.LastError = lastErr
	}
	if s.owned != nil {
		s.owned.amend(&h, s)
	}
	return h
}

// carry makes what outlives the instances of one session.
func carry(t *gobridge.Transport) any {
	if t.Carry == nil {
		return nil
	}
	return t.Carry()
}
