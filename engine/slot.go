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
// routes to it.
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

	mu      sync.Mutex
	session gobridge.Session
	lastErr string
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
	s.session = session
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

// run keeps an instance running until ctx ends. intake ends earlier: from then on
// the receiver offers nothing, while settlements still go out.
func (s *slot) run(ctx, intake context.Context, session gobridge.Session) {
	wait := rebuildMin
	for {
		began := time.Now()
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
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errors.New("session ended without being asked to")
		}
		if time.Since(began) > rebuildMax {
			wait = rebuildMin
		}
		s.fail(err, wait)
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
			wait = min(2*wait, rebuildMax)
			if session, err = s.open(); err == nil {
				break
			}
			s.fail(err, wait)
		}
		s.rebuilt.Inc()
	}
}

func (s *slot) fail(err error, wait time.Duration) {
	s.mu.Lock()
	s.lastErr = err.Error()
	s.mu.Unlock()
	s.log.Error("session instance is dead: a fresh one will take its place", "in", wait, "err", err)
}

func (s *slot) health() gobridge.SessionHealth {
	s.mu.Lock()
	session, lastErr := s.session, s.lastErr
	s.mu.Unlock()
	h := session.Health()
	if h.LastError == "" {
		h.LastError = lastErr
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
