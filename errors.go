package gobridge

import (
	"errors"
	"fmt"
	"time"
)

// Class decides what happens to a message whose send failed.
type Class uint8

const (
	// ClassTransient: the same send may work later.
	ClassTransient Class = iota
	// ClassPermanent: the destination will not take this message.
	ClassPermanent
	// ClassRejected: the message itself is unfit (its size, its address).
	ClassRejected
	// ClassExpired: the message is too old.
	ClassExpired
)

func (c Class) String() string {
	return [...]string{"transient", "permanent", "rejected", "expired"}[c]
}

// Code names a failure for people and programs. The set is closed: it is a metric
// label.
type Code string

// The codes, by class.
const (
	CodeTimeout        Code = "TIMEOUT"
	CodeConnectionLost Code = "CONNECTION_LOST"
	CodeUnavailable    Code = "UNAVAILABLE"
	CodeThrottled      Code = "THROTTLED"
	CodeBrokerBusy     Code = "BROKER_BUSY"

	CodeNotAuthorized     Code = "NOT_AUTHORIZED"
	CodeForbidden         Code = "FORBIDDEN"
	CodeNotFound          Code = "NOT_FOUND"
	CodeInvalidConfig     Code = "INVALID_CONFIG"
	CodeProtocolError     Code = "PROTOCOL_ERROR"
	CodeQoSNotSupported   Code = "QOS_NOT_SUPPORTED"
	CodeNotSupported      Code = "NOT_SUPPORTED"
	CodeVersionMismatch   Code = "VERSION_MISMATCH"
	CodeDuplicateRecord   Code = "DUPLICATE_RECORD"
	CodeStaleFence        Code = "STALE_FENCING_TOKEN"
	CodeInternal          Code = "INTERNAL"
	CodePoisonMessage     Code = "POISON_MESSAGE"
	CodeHopLimit          Code = "HOP_LIMIT"
	CodeUnrecoverable     Code = "SESSION_UNRECOVERABLE"
	CodeStoreFull         Code = "STORE_FULL"
	CodeInvalidPayload    Code = "INVALID_PAYLOAD"
	CodePayloadTooLarge   Code = "PAYLOAD_TOO_LARGE"
	CodeInvalidTopic      Code = "INVALID_TOPIC"
	CodeAddressTemplate   Code = "ADDRESS_TEMPLATE"
	CodeMessageExpired    Code = "MESSAGE_EXPIRED"
	CodeMessageTooOld     Code = "MESSAGE_TOO_OLD"
	CodeShutdown          Code = "SHUTDOWN"
	CodeSubscriptionFault Code = "SUBSCRIPTION_REFUSED"
	// CodeSubscriptionRemoved: the message came for a filter that has left the config.
	CodeSubscriptionRemoved Code = "SUBSCRIPTION_REMOVED"
	// CodeUnknownBaseline: the broker has a session of which the history knows nothing.
	CodeUnknownBaseline Code = "UNKNOWN_BASELINE"
	// CodeLeaseLost: another process owns the session, or may own it by now.
	CodeLeaseLost Code = "LEASE_LOST"
)

// Error is a typed failure: one decision table reads it, nothing reads texts.
type Error struct {
	Code  Code
	Class Class
	// Outage says that the destination as a whole cannot be reached at the moment:
	// the message is held and not charged for it.
	Outage bool
	// RetryAfter is the destination's own wish; zero is none.
	RetryAfter time.Duration
	// Op says what was tried and where, Hint what to do about it. Neither holds a
	// secret.
	Op   string
	Hint string
	Err  error
}

// Error is one line: what and where, why, hint.
func (e *Error) Error() string {
	s := e.Op
	if s == "" {
		s = string(e.Code)
	}
	if e.Err != nil {
		s = fmt.Sprintf("%s: %v", s, e.Err)
	}
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// Is makes two errors of one code equal, so that errors.Is works with the
// sentinels below.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// Sentinels for errors.Is; they compare by code. Wrap them or return an *Error of
// the same code.
var (
	// ErrNotSupported: the transport cannot do what was asked.
	ErrNotSupported = &Error{Code: CodeNotSupported, Class: ClassPermanent}
	// ErrNotConnected: there is no connection to the destination.
	ErrNotConnected = &Error{Code: CodeConnectionLost, Class: ClassTransient, Outage: true, Op: "not connected"}
	// ErrConnectionLost: the connection went away before the answer came.
	ErrConnectionLost = &Error{Code: CodeConnectionLost, Class: ClassTransient, Outage: true, Op: "connection lost"}
	// ErrTimeout: no answer in time on a live connection.
	ErrTimeout = &Error{Code: CodeTimeout, Class: ClassTransient, Op: "no answer in time"}
	// ErrUnavailable: a transient failure without a better name.
	ErrUnavailable = &Error{Code: CodeUnavailable, Class: ClassTransient}
	// ErrNotAuthorized, ErrBrokerBusy and ErrProtocolError: answers of a broker.
	ErrNotAuthorized = &Error{Code: CodeNotAuthorized, Class: ClassPermanent}
	ErrBrokerBusy    = &Error{Code: CodeBrokerBusy, Class: ClassTransient, Outage: true}
	ErrProtocolError = &Error{Code: CodeProtocolError, Class: ClassPermanent}
	// ErrSessionUnrecoverable: this session instance is dead; a fresh one may work.
	ErrSessionUnrecoverable = &Error{Code: CodeUnrecoverable, Class: ClassPermanent, Op: "session cannot go on"}
	// ErrFull: a store has reached its bounds.
	ErrFull = &Error{Code: CodeStoreFull, Class: ClassTransient, Op: "store is full"}
	// ErrNotFound: no such entry.
	ErrNotFound = &Error{Code: CodeNotFound, Class: ClassPermanent, Op: "not found"}
	// ErrStaleFence: another owner has taken the store since this handle was opened.
	ErrStaleFence = &Error{Code: CodeStaleFence, Class: ClassPermanent, Op: "another owner has taken the store"}
	// ErrVersionMismatch: somebody else has changed the record since it was read.
	ErrVersionMismatch = &Error{Code: CodeVersionMismatch, Class: ClassTransient, Op: "changed by somebody else meanwhile"}
	// ErrLeaseLost: another process owns the session, or may own it by now.
	ErrLeaseLost = &Error{Code: CodeLeaseLost, Class: ClassTransient, Outage: true, Op: "not the owner of the session"}
	// ErrClosed: the thing has been stopped.
	ErrClosed = &Error{Code: CodeShutdown, Class: ClassTransient, Outage: true, Op: "closed"}
)

// ErrNotTried goes with the error of a redrive that has sent nothing and charged
// nothing: its destination cannot be reached, or its route had no room.
var ErrNotTried = errors.New("not tried")

// AsError returns the *Error in err's chain. An error without one is transient
// and no outage: it is charged to the message (an unrecognised failure must not
// hold a route for ever).
func AsError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return &Error{Code: CodeUnavailable, Class: ClassTransient, Err: err}
}
