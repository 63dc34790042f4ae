package mqtt

import (
	"errors"
	"fmt"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/transport/mqtt/wire"
)

// permanentCause is what is wrong with a session that only a person can change (D3).
// The session closes its connection before it acknowledges anything more, and waits as
// after refused credentials.
type permanentCause struct{ err *gobridge.Error }

func (e *permanentCause) Error() string { return e.err.Error() }
func (e *permanentCause) Unwrap() error { return e.err }

// errDiscard ends a connection whose session is to be thrown away: the next CONNECT
// does it.
var errDiscard = errors.New("the session in the broker is to be thrown away")

// unknownBaseline is the permanent cause of a resumed session whose filters in the
// broker nobody knows (D4).
func (s *session) unknownBaseline() error {
	seed := "gobridge subscriptions seed " + s.id
	return &permanentCause{&gobridge.Error{
		Code: gobridge.CodeUnknownBaseline, Class: gobridge.ClassPermanent,
		Op:   fmt.Sprintf("broker resumed a session of client id %s that the managed subscription history does not know", s.set.ClientID),
		Hint: seed + " keeps what is queued in it, " + seed + " --discard throws it away",
	}}
}

// cannotKeep is the permanent cause of a session that has messages of a removed filter,
// or may get some, and no dead-letter queue to keep them in.
func cannotKeep(session string, removed error) error {
	return &permanentCause{&gobridge.Error{
		Code: gobridge.CodeSubscriptionRemoved, Class: gobridge.ClassPermanent,
		Op: "no dead-letter queue for messages of removed subscriptions", Err: removed,
		Hint: "configure a dead-letter queue, put the filter back, or throw the session away: gobridge subscriptions seed " + session + " --discard",
	}}
}

// downgradedForGood is the permanent cause of a filter that the broker grants at less
// again and again. Called with mu held.
func downgradedForGood(f *subscription) error {
	return &permanentCause{&gobridge.Error{
		Code: gobridge.CodeQoSNotSupported, Class: gobridge.ClassPermanent,
		Op:   fmt.Sprintf("subscription %q", f.filter),
		Err:  fmt.Errorf("%s, %d times in a row", f.why, downgradesForPermanent),
		Hint: "lower the topic's qos, lift the broker's cap, or set on_qos_downgrade: accept",
	}}
}

// standStill ends the connection number epoch if err says so.
func (s *session) standStill(epoch int, err error) {
	s.mu.Lock()
	c := s.link
	if s.connects != epoch {
		c = nil
	}
	s.mu.Unlock()
	if c == nil {
		return
	}
	if errors.Is(err, errDiscard) {
		s.log.Warn("reconnecting", "why", err)
		s.depart(c.guardConn, err, func() {
			s.forgo()
			s.backoff.skip()
			s.discard = true
			s.carried.holds(holdingNothing)
		})
		return
	}
	if cause, ok := errors.AsType[*permanentCause](err); ok {
		s.failClosed(c.guardConn, cause)
	}
}

// failClosed ends the connection c for a permanent cause.
func (s *session) failClosed(c *guardConn, cause *permanentCause) {
	if times, ok := s.carried.halts.allowText(cause.Error(), time.Now()); ok {
		s.log.Error("session stands still until a person changes something, or for the longest wait", "err", cause, "times", times)
	}
	s.depart(c, cause, func() {
		s.forgo()
		s.backoff.refused()
		s.lastError = cause.Error()
		s.carried.setCause(cause.Error())
	})
}

// forgo gives up what the connection that was just taken from inbound still owed to
// the route: messages withheld from it, and a recovery that waits for its turn, because
// the end of the connection does the same, or the messages are thrown away. Called with
// mu held.
func (s *session) forgo() {
	s.in.withdraw()
	s.recovery.event(recoverForgo, 0, nil)
}

// depart ends the connection c on purpose, unless that has begun. Nothing more of it
// is taken from when note is called, with mu held. Safe from any goroutine, that of
// the reader included, which must not close the connection itself.
func (s *session) depart(c *guardConn, cause error, note func()) {
	s.mu.Lock()
	l := s.link
	if l == nil || l.guardConn != c || s.deliberate || s.closing {
		s.mu.Unlock()
		return
	}
	s.deliberate = true
	s.in.lost(c)
	note()
	s.linkEnd(cause)
	s.mu.Unlock()
	l.fail(cause)
	s.out.lost(c)
	c.disconnect(disconnectFor(wire.ReasonSuccess))
	c.resume()
	_ = c.SetReadDeadline(time.Unix(1, 0)) // the next read fails and tells the library
}
