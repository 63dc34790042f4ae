package mqtt

import (
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/eclipse/paho.golang/autopaho"
	"github.com/eclipse/paho.golang/paho"
	"github.com/gorilla/websocket"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/transport/mqtt/wire"
)

// reason is what one reason code of the server means for the bridge.
type reason struct {
	name   string
	code   gobridge.Code // empty for a success
	class  gobridge.Class
	outage bool // the destination as a whole is unavailable (B2)
	hint   string
}

// reasons are all reason codes of MQTT v5 (2.4, table 2-6), whichever packet
// brings them.
var reasons = map[byte]reason{
	0x00: {name: "Success"}, // also: Normal disconnection, Granted QoS 0
	0x01: {name: "Granted QoS 1"},
	0x02: {name: "Granted QoS 2"},
	0x04: {name: "Disconnect with Will Message"},
	0x10: {name: "No matching subscribers"},
	0x11: {name: "No subscription existed"},
	0x18: {name: "Continue authentication"},
	0x19: {name: "Re-authenticate"},

	0x80: {name: "Unspecified error", code: gobridge.CodeUnavailable, hint: "see the broker's log"},
	0x81: {name: "Malformed Packet", code: gobridge.CodeProtocolError, class: gobridge.ClassPermanent, hint: "broker and bridge disagree on the protocol; see the broker's log"},
	0x82: {name: "Protocol Error", code: gobridge.CodeProtocolError, class: gobridge.ClassPermanent, hint: "broker and bridge disagree on the protocol; see the broker's log"},
	0x83: {name: "Implementation specific error", code: gobridge.CodeUnavailable, hint: "see the broker's log"},
	0x84: {name: "Unsupported Protocol Version", code: gobridge.CodeVersionMismatch, class: gobridge.ClassPermanent, hint: "the broker must speak MQTT v5"},
	0x85: {name: "Client Identifier not valid", code: gobridge.CodeInvalidConfig, class: gobridge.ClassPermanent, hint: "change client_id"},
	0x86: {name: "Bad User Name or Password", code: gobridge.CodeNotAuthorized, class: gobridge.ClassPermanent, hint: "check username and password"},
	0x87: {name: "Not authorized", code: gobridge.CodeNotAuthorized, class: gobridge.ClassPermanent, hint: "check the broker's access rules for this client"},
	0x88: {name: "Server unavailable", code: gobridge.CodeUnavailable, outage: true},
	0x89: {name: "Server busy", code: gobridge.CodeBrokerBusy, outage: true},
	0x8A: {name: "Banned", code: gobridge.CodeForbidden, class: gobridge.ClassPermanent, hint: "the broker's administrator has banned this client"},
	0x8B: {name: "Server shutting down", code: gobridge.CodeConnectionLost, outage: true},
	0x8C: {name: "Bad authentication method", code: gobridge.CodeNotAuthorized, class: gobridge.ClassPermanent, hint: "the broker wants another kind of login"},
	0x8D: {name: "Keep Alive timeout", code: gobridge.CodeConnectionLost, outage: true, hint: "the broker heard nothing for 1.5 keep-alives; check the network"},
	0x8E: {name: "Session taken over", code: gobridge.CodeConnectionLost, outage: true, hint: "another client uses this client_id; every instance needs its own"},
	0x8F: {name: "Topic Filter invalid", code: gobridge.CodeSubscriptionFault, class: gobridge.ClassPermanent, hint: "the broker does not accept this filter"},
	0x90: {name: "Topic Name invalid", code: gobridge.CodeInvalidTopic, class: gobridge.ClassRejected, hint: "the broker does not accept this topic"},
	0x91: {name: "Packet Identifier in use", code: gobridge.CodeUnavailable, hint: "broker and bridge disagree on the session state"},
	0x92: {name: "Packet Identifier not found", code: gobridge.CodeUnavailable, hint: "broker and bridge disagree on the session state"},
	0x93: {name: "Receive Maximum exceeded", code: gobridge.CodeProtocolError, class: gobridge.ClassPermanent},
	0x94: {name: "Topic Alias invalid", code: gobridge.CodeProtocolError, class: gobridge.ClassPermanent},
	0x95: {name: "Packet too large", code: gobridge.CodePayloadTooLarge, class: gobridge.ClassRejected, hint: "raise the broker's size limit or send less"},
	0x96: {name: "Message rate too high", code: gobridge.CodeThrottled, hint: "set rate_limit on the route"},
	0x97: {name: "Quota exceeded", code: gobridge.CodeThrottled, outage: true},
	0x98: {name: "Administrative action", code: gobridge.CodeConnectionLost, outage: true, hint: "the broker's administrator closed the connection"},
	0x99: {name: "Payload format invalid", code: gobridge.CodeInvalidPayload, class: gobridge.ClassRejected},
	0x9A: {name: "Retain not supported", code: gobridge.CodeNotSupported, class: gobridge.ClassPermanent, hint: "set retain: false"},
	0x9B: {name: "QoS not supported", code: gobridge.CodeQoSNotSupported, class: gobridge.ClassPermanent, hint: "lower qos"},
	0x9C: {name: "Use another server", code: gobridge.CodeUnavailable, hint: "change broker_url"},
	0x9D: {name: "Server moved", code: gobridge.CodeUnavailable, hint: "change broker_url"},
	0x9E: {name: "Shared Subscriptions not supported", code: gobridge.CodeNotSupported, class: gobridge.ClassPermanent, hint: "use a filter without $share"},
	0x9F: {name: "Connection rate exceeded", code: gobridge.CodeThrottled, hint: "raise reconnect_delay"},
	0xA0: {name: "Maximum connect time", code: gobridge.CodeConnectionLost, outage: true},
	0xA1: {name: "Subscription Identifiers not supported", code: gobridge.CodeNotSupported, class: gobridge.ClassPermanent},
	0xA2: {name: "Wildcard Subscriptions not supported", code: gobridge.CodeNotSupported, class: gobridge.ClassPermanent, hint: "use filters without + and #"},
}

// reasonError is a reason code as the server sent it, with its reason string.
type reasonError struct {
	Reason byte
	Text   string // of the server; may be empty
}

func (e *reasonError) Error() string {
	name := reasons[e.Reason].name
	if name == "" {
		name = "unknown reason"
	}
	if e.Text == "" {
		return fmt.Sprintf("the broker answered 0x%02X %s", e.Reason, name)
	}
	return fmt.Sprintf("the broker answered 0x%02X %s: %.200q", e.Reason, name, e.Text)
}

// reasonFault classifies a failure reason, 0x80 or above. op says what was tried.
// A code that the standard does not know is transient and no outage.
func reasonFault(op string, code byte, text string) *gobridge.Error {
	e := &gobridge.Error{Code: gobridge.CodeUnavailable, Op: op, Err: &reasonError{Reason: code, Text: text}}
	if r := reasons[code]; r.code != "" {
		e.Code, e.Class, e.Outage, e.Hint = r.code, r.class, r.outage, r.hint
	}
	return e
}

// publishRefused is the failure of a PUBACK, PUBREC or PUBCOMP. throttle is the wait
// before the next send after the server said that it has no room.
func publishRefused(code byte, text string, throttle time.Duration) error {
	e := reasonFault("publish", code, text)
	if e.Outage {
		e.RetryAfter = throttle
	}
	return e
}

// disconnectFault is the failure behind a DISCONNECT of the server. One without a
// failure reason is a lost connection as well.
func disconnectFault(code byte, text string) *gobridge.Error {
	if code >= 0x80 {
		return reasonFault("disconnected by the broker", code, text)
	}
	return connectionLost(&reasonError{Reason: code, Text: text})
}

// dialError marks a failure to open a connection, as against one on a live
// connection: the destination as a whole is unavailable (B2).
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// MapError classifies an error of the MQTT library, of the connection or of the
// codec by its type, never by its text. An *[gobridge.Error] in the chain is
// returned as it is, and nil for nil.
func MapError(err error) *gobridge.Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*gobridge.Error](err); ok {
		return e
	}
	_, dialled := errors.AsType[*dialError](err)
	if refused, ok := errors.AsType[*autopaho.ConnackError](err); ok {
		if refused.ReasonCode >= 0x80 {
			return reasonFault("connect", refused.ReasonCode, refused.Reason)
		}
		err = refused.Err // accepted, and failed in the library afterwards
	}
	if fault := tlsFault(err); fault != nil {
		return fault
	}
	_, malformed := errors.AsType[*wire.MalformedError](err)
	_, oversize := errors.AsType[*oversizeError](err)
	switch {
	case malformed, oversize, errors.Is(err, paho.ErrInvalidArguments), errors.Is(err, errTextFrame):
		return &gobridge.Error{Code: gobridge.CodeProtocolError, Class: gobridge.ClassPermanent, Err: err}
	case errors.Is(err, autopaho.ConnectionDownError), errors.Is(err, paho.ErrConnectionLost), errors.Is(err, paho.ErrNetworkErrorAfterStored):
		return connectionLost(err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed):
		return connectionLost(err)
	}
	if _, ok := errors.AsType[*autopaho.DisconnectError](err); ok {
		return connectionLost(err)
	}
	if _, ok := errors.AsType[*websocket.CloseError](err); ok {
		return connectionLost(err)
	}
	if limit, ok := errors.AsType[*wire.LimitError](err); ok {
		return &gobridge.Error{Code: gobridge.CodePayloadTooLarge, Class: gobridge.ClassRejected, Err: limit}
	}
	if network, ok := errors.AsType[net.Error](err); ok {
		if network.Timeout() {
			// On a socket it is the connection that is slow; elsewhere it is one answer.
			_, socket := errors.AsType[*net.OpError](err)
			return &gobridge.Error{Code: gobridge.CodeTimeout, Outage: dialled || socket, Err: err}
		}
		return connectionLost(err)
	}
	return &gobridge.Error{Code: gobridge.CodeUnavailable, Outage: dialled, Err: err}
}

func connectionLost(err error) *gobridge.Error {
	return &gobridge.Error{Code: gobridge.CodeConnectionLost, Outage: true, Op: "connection lost", Err: err}
}
