package mqtt

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/autopaho"
	"github.com/eclipse/paho.golang/paho"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/gorilla/websocket"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/transport/mqtt/wire"
)

// verdict is what the decision table of the engine reads.
type verdict struct {
	Code   gobridge.Code
	Class  gobridge.Class
	Outage bool
}

func verdictOf(e *gobridge.Error) verdict { return verdict{e.Code, e.Class, e.Outage} }

// failures is table 2-6 of the standard from 0x80 on, with the packets that may
// carry each code and the verdict.
var failures = []struct {
	code    byte
	packets string
	want    verdict
}{
	{0x80, "CONNACK PUBACK PUBREC SUBACK UNSUBACK DISCONNECT", verdict{"UNAVAILABLE", gobridge.ClassTransient, false}},
	{0x81, "CONNACK DISCONNECT", verdict{"PROTOCOL_ERROR", gobridge.ClassPermanent, false}},
	{0x82, "CONNACK DISCONNECT", verdict{"PROTOCOL_ERROR", gobridge.ClassPermanent, false}},
	{0x83, "CONNACK PUBACK PUBREC SUBACK UNSUBACK DISCONNECT", verdict{"UNAVAILABLE", gobridge.ClassTransient, false}},
	{0x84, "CONNACK", verdict{"VERSION_MISMATCH", gobridge.ClassPermanent, false}},
	{0x85, "CONNACK", verdict{"INVALID_CONFIG", gobridge.ClassPermanent, false}},
	{0x86, "CONNACK", verdict{"NOT_AUTHORIZED", gobridge.ClassPermanent, false}},
	{0x87, "CONNACK PUBACK PUBREC SUBACK UNSUBACK DISCONNECT", verdict{"NOT_AUTHORIZED", gobridge.ClassPermanent, false}},
	{0x88, "CONNACK", verdict{"UNAVAILABLE", gobridge.ClassTransient, true}},
	{0x89, "CONNACK DISCONNECT", verdict{"BROKER_BUSY", gobridge.ClassTransient, true}},
	{0x8A, "CONNACK", verdict{"FORBIDDEN", gobridge.ClassPermanent, false}},
	{0x8B, "DISCONNECT", verdict{"CONNECTION_LOST", gobridge.ClassTransient, true}},
	{0x8C, "CONNACK DISCONNECT", verdict{"NOT_AUTHORIZED", gobridge.ClassPermanent, false}},
	{0x8D, "DISCONNECT", verdict{"CONNECTION_LOST", gobridge.ClassTransient, true}},
	{0x8E, "DISCONNECT", verdict{"CONNECTION_LOST", gobridge.ClassTransient, true}},
	{0x8F, "SUBACK UNSUBACK DISCONNECT", verdict{"SUBSCRIPTION_REFUSED", gobridge.ClassPermanent, false}},
	{0x90, "CONNACK PUBACK PUBREC DISCONNECT", verdict{"INVALID_TOPIC", gobridge.ClassRejected, false}},
	{0x91, "PUBACK PUBREC SUBACK UNSUBACK", verdict{"UNAVAILABLE", gobridge.ClassTransient, false}},
	{0x92, "PUBREL PUBCOMP", verdict{"UNAVAILABLE", gobridge.ClassTransient, false}},
	{0x93, "DISCONNECT", verdict{"PROTOCOL_ERROR", gobridge.ClassPermanent, false}},
	{0x94, "DISCONNECT", verdict{"PROTOCOL_ERROR", gobridge.ClassPermanent, false}},
	{0x95, "CONNACK DISCONNECT", verdict{"PAYLOAD_TOO_LARGE", gobridge.ClassRejected, false}},
	{0x96, "DISCONNECT", verdict{"THROTTLED", gobridge.ClassTransient, false}},
	{0x97, "CONNACK PUBACK PUBREC SUBACK DISCONNECT", verdict{"THROTTLED", gobridge.ClassTransient, true}},
	{0x98, "DISCONNECT", verdict{"CONNECTION_LOST", gobridge.ClassTransient, true}},
	{0x99, "CONNACK PUBACK PUBREC DISCONNECT", verdict{"INVALID_PAYLOAD", gobridge.ClassRejected, false}},
	{0x9A, "CONNACK DISCONNECT", verdict{"NOT_SUPPORTED", gobridge.ClassPermanent, false}},
	{0x9B, "CONNACK DISCONNECT", verdict{"QOS_NOT_SUPPORTED", gobridge.ClassPermanent, false}},
	{0x9C, "CONNACK DISCONNECT", verdict{"UNAVAILABLE", gobridge.ClassTransient, false}},
	{0x9D, "CONNACK DISCONNECT", verdict{"UNAVAILABLE", gobridge.ClassTransient, false}},
	{0x9E, "SUBACK DISCONNECT", verdict{"NOT_SUPPORTED", gobridge.ClassPermanent, false}},
	{0x9F, "CONNACK DISCONNECT", verdict{"THROTTLED", gobridge.ClassTransient, false}},
	{0xA0, "DISCONNECT", verdict{"CONNECTION_LOST", gobridge.ClassTransient, true}},
	{0xA1, "SUBACK DISCONNECT", verdict{"NOT_SUPPORTED", gobridge.ClassPermanent, false}},
	{0xA2, "SUBACK DISCONNECT", verdict{"NOT_SUPPORTED", gobridge.ClassPermanent, false}},
}

// Covers: S1-507, S1-508, S1-509, S1-510
func TestEveryReasonCodeHasItsVerdict(t *testing.T) {
	known := map[byte]verdict{}
	for _, f := range failures {
		known[f.code] = f.want
		if reasons[f.code].name == "" {
			t.Errorf("0x%02X has no name", f.code)
		}
		for packet := range strings.FieldsSeq(f.packets) {
			var got *gobridge.Error
			switch packet {
			case "CONNACK":
				got = MapError(fmt.Errorf("connect: %w", &autopaho.ConnackError{ReasonCode: f.code, Reason: "why"}))
			case "DISCONNECT":
				got = disconnectFault(f.code, "why")
			case "PUBACK", "PUBREC", "PUBCOMP":
				got = MapError(publishRefused(f.code, "why", time.Second))
				if want := map[bool]time.Duration{true: time.Second}[f.want.Outage]; got.RetryAfter != want {
					t.Errorf("%s 0x%02X: retry after %v, want %v", packet, f.code, got.RetryAfter, want)
				}
			default:
				got = reasonFault("subscribe", f.code, "why")
			}
			if diff := cmp.Diff(f.want, verdictOf(got)); diff != "" {
				t.Errorf("%s 0x%02X (-want +got):\n%s", packet, f.code, diff)
			}
			if text := got.Error(); !strings.Contains(text, fmt.Sprintf("0x%02X %s", f.code, reasons[f.code].name)) || !strings.Contains(text, `"why"`) {
				t.Errorf("%s 0x%02X reads %q: it must name code, reason and what the server said", packet, f.code, text)
			}
			if !errors.Is(got, &gobridge.Error{Code: f.want.Code}) {
				t.Errorf("%s 0x%02X: errors.Is does not find %s", packet, f.code, f.want.Code)
			}
		}
	}
	for i := range 256 {
		code := byte(i)
		if _, ok := known[code]; ok || code < 0x80 {
			if r := reasons[code]; code < 0x80 && r.code != "" {
				t.Errorf("0x%02X is a success and has the code %s", code, r.code)
			}
			continue
		}
		if _, ok := reasons[code]; ok {
			t.Errorf("0x%02X is in the table and not in the standard", code)
		}
		got := verdictOf(reasonFault("publish", code, ""))
		if diff := cmp.Diff(verdict{gobridge.CodeUnavailable, gobridge.ClassTransient, false}, got); diff != "" {
			t.Errorf("unknown 0x%02X (-want +got):\n%s", code, diff)
		}
	}
}

// Covers: S1-506, S1-511, S1-512, S1-513, S1-514, S1-515
func TestMapErrorClassifiesByType(t *testing.T) {
	transient := func(code gobridge.Code, outage bool) verdict { return verdict{code, gobridge.ClassTransient, outage} }
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	slow := &net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded}
	own := &gobridge.Error{Code: gobridge.CodeHopLimit, Class: gobridge.ClassRejected}
	for _, tt := range []struct {
		name string
		err  error
		want verdict
	}{
		{"link down", fmt.Errorf("publish: %w", autopaho.ConnectionDownError), transient("CONNECTION_LOST", true)},
		{"connection lost", paho.ErrConnectionLost, transient("CONNECTION_LOST", true)},
		{"connection lost after storing", fmt.Errorf("%w: x", paho.ErrNetworkErrorAfterStored), transient("CONNECTION_LOST", true)},
		{"server disconnect", &autopaho.DisconnectError{}, transient("CONNECTION_LOST", true)},
		{"invalid arguments", errors.Join(paho.ErrInvalidArguments, io.EOF), verdict{"PROTOCOL_ERROR", gobridge.ClassPermanent, false}},
		{"refused", refused, transient("CONNECTION_LOST", true)},
		{"refused while dialling", &dialError{refused}, transient("CONNECTION_LOST", true)},
		{"no route", &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.EHOSTUNREACH)}, transient("CONNECTION_LOST", true)},
		{"no such host", &dialError{&net.OpError{Op: "dial", Err: &net.DNSError{IsNotFound: true}}}, transient("CONNECTION_LOST", true)},
		{"socket timeout", slow, transient("TIMEOUT", true)},
		{"dial timeout", &dialError{fmt.Errorf("tls handshake: %w", context.DeadlineExceeded)}, transient("TIMEOUT", true)},
		{"no answer on a live connection", fmt.Errorf("subscribe: %w", context.DeadlineExceeded), transient("TIMEOUT", false)},
		{"end of stream", io.EOF, transient("CONNECTION_LOST", true)},
		{"end inside a packet", io.ErrUnexpectedEOF, transient("CONNECTION_LOST", true)},
		{"closed", net.ErrClosed, transient("CONNECTION_LOST", true)},
		{"websocket closed", &websocket.CloseError{Code: 1006}, transient("CONNECTION_LOST", true)},
		{"certificate", &dialError{&tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}}, transient("UNAVAILABLE", true)},
		{"malformed", &wire.MalformedError{Reason: wire.ReasonMalformed}, verdict{"PROTOCOL_ERROR", gobridge.ClassPermanent, false}},
		{"oversize", &oversizeError{}, verdict{"PROTOCOL_ERROR", gobridge.ClassPermanent, false}},
		{"text frame", errTextFrame, verdict{"PROTOCOL_ERROR", gobridge.ClassPermanent, false}},
		{"over the protocol's limit", &wire.LimitError{Field: "topic"}, verdict{"PAYLOAD_TOO_LARGE", gobridge.ClassRejected, false}},
		{"already typed", fmt.Errorf("send: %w", own), verdict{"HOP_LIMIT", gobridge.ClassRejected, false}},
		{"accepted and failed afterwards", &autopaho.ConnackError{Err: io.EOF}, transient("CONNECTION_LOST", true)},
		{"accepted and nothing else known", &autopaho.ConnackError{}, transient("UNAVAILABLE", false)},
		{"unrecognised", errors.New("connection refused"), transient("UNAVAILABLE", false)},
		{"unrecognised while dialling", &dialError{errors.New("x")}, transient("UNAVAILABLE", true)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := MapError(tt.err)
			if diff := cmp.Diff(tt.want, verdictOf(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	if got := MapError(nil); got != nil {
		t.Errorf("nil became %v", got)
	}
	if got := MapError(fmt.Errorf("send: %w", own)); got != own {
		t.Errorf("a typed error was replaced by %v", got)
	}
}

func TestDisconnectWithoutAFailureIsALostConnection(t *testing.T) {
	for _, code := range []byte{0x00, 0x04} {
		if diff := cmp.Diff(gobridge.ErrConnectionLost, disconnectFault(code, ""), cmpopts.IgnoreFields(gobridge.Error{}, "Err")); diff != "" {
			t.Errorf("0x%02X (-want +got):\n%s", code, diff)
		}
	}
}

func TestServerTextIsQuotedAndCut(t *testing.T) {
	text := reasonFault("publish", 0x87, "line\n\x1b[2J"+strings.Repeat("x", 10_000)).Error()
	if strings.ContainsAny(text, "\n\x1b") || len(text) > 400 {
		t.Errorf("%d bytes: %.100q", len(text), text)
	}
}
