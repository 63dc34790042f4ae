// Package wire is a bounded codec for the five MQTT v5 packets that carry
// messages: PUBLISH, PUBACK, PUBREC, PUBREL and PUBCOMP.
//
// Parsing yields views into the caller's frame and appending grows the caller's
// buffer, so neither allocates. Everything is checked against the length that
// the frame really has before it is touched, and what the standard forbids is
// an error that carries the reason code of the DISCONNECT it deserves.
// Every other packet is left to the MQTT library.
package wire

import (
	"bytes"
	"fmt"
	"unicode/utf8"
)

// The packet types, as the high four bits of the first byte (MQTT v5, 2.1.2).
const (
	CONNECT     byte = 1
	CONNACK     byte = 2
	PUBLISH     byte = 3
	PUBACK      byte = 4
	PUBREC      byte = 5
	PUBREL      byte = 6
	PUBCOMP     byte = 7
	SUBSCRIBE   byte = 8
	SUBACK      byte = 9
	UNSUBSCRIBE byte = 10
	UNSUBACK    byte = 11
	PINGREQ     byte = 12
	PINGRESP    byte = 13
	DISCONNECT  byte = 14
	AUTH        byte = 15
)

// Reason codes that the codec and its callers write themselves (MQTT v5, 2.4).
const (
	ReasonSuccess          byte = 0x00
	ReasonMalformed        byte = 0x81
	ReasonProtocolError    byte = 0x82
	ReasonPacketIDNotFound byte = 0x92
	ReasonPacketTooLarge   byte = 0x95
)

const (
	// MaxRemaining is the largest remaining length a fixed header can state
	// (MQTT v5, 1.5.5).
	MaxRemaining = 268_435_455
	// MaxString is the largest UTF-8 string or binary field, in bytes (1.5.4).
	MaxString = 65_535
)

var typeNames = [16]string{
	"reserved packet", "CONNECT", "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP",
	"SUBSCRIBE", "SUBACK", "UNSUBSCRIBE", "UNSUBACK", "PINGREQ", "PINGRESP", "DISCONNECT", "AUTH",
}

// TypeName returns the standard's name of a packet type.
func TypeName(typ byte) string { return typeNames[typ&0x0f] }

// MalformedError says that a peer sent a packet that the standard forbids. The
// connection must be closed with Reason (MQTT v5, 4.13.1).
type MalformedError struct {
	Packet string // the packet's name, for example "PUBLISH"
	What   string // what is wrong with it
	Reason byte   // ReasonMalformed or ReasonProtocolError
	Dump   string // the first bytes of the frame in hex, when the caller has added them
}

func (e *MalformedError) Error() string {
	kind := "malformed"
	if e.Reason == ReasonProtocolError {
		kind = "protocol error in"
	}
	if e.Dump == "" {
		return fmt.Sprintf("mqtt: %s %s: %s (reason 0x%02X)", kind, e.Packet, e.What, e.Reason)
	}
	return fmt.Sprintf("mqtt: %s %s: %s (reason 0x%02X, bytes %s)", kind, e.Packet, e.What, e.Reason, e.Dump)
}

// LimitError says that a field, or the whole packet, is larger than the
// standard can express. Nothing was encoded.
type LimitError struct {
	Field string // "topic", "user property", "packet", ...
	Size  int    // bytes
	Max   int    // bytes
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("mqtt: %s of %d bytes is over the protocol's limit of %d", e.Field, e.Size, e.Max)
}

// Header reads a fixed header from the start of buf: the packet type and the
// length of the whole packet, fixed header included. ok is false while buf does
// not hold the whole fixed header yet. A length of more than four bytes, or not
// in its shortest form, is a *MalformedError [MQTT-1.5.5-1].
func Header(buf []byte) (typ byte, total int, ok bool, err error) {
	if len(buf) == 0 {
		return 0, 0, false, nil
	}
	typ = buf[0] >> 4
	v, n := varint(buf[1:])
	if n > 0 {
		return typ, 1 + n + v, true, nil
	}
	if n < 0 {
		return typ, 0, false, &MalformedError{Packet: TypeName(typ), What: "remaining length", Reason: ReasonMalformed}
	}
	return typ, 0, false, nil
}

// Body returns what follows the fixed header of a whole frame, that is, of
// exactly the bytes that [Header] measured.
func Body(frame []byte) []byte {
	i := 1
	for frame[i]&0x80 != 0 {
		i++
	}
	return frame[i+1:]
}

// AppendDisconnect appends a DISCONNECT with the reason.
func AppendDisconnect(dst []byte, reason byte) []byte {
	if reason == ReasonSuccess {
		return append(dst, DISCONNECT<<4, 0)
	}
	return append(dst, DISCONNECT<<4, 1, reason)
}

// AppendDisconnectEnding appends a DISCONNECT with which the server removes the
// session: its Session Expiry Interval is 0 (MQTT v5, 3.14.2.2.2).
func AppendDisconnectEnding(dst []byte) []byte {
	return append(dst, DISCONNECT<<4, 7, ReasonSuccess, 5, propSessionExpiry, 0, 0, 0, 0)
}

// ValidString reports whether b may stand in a UTF-8 encoded string: well-formed
// UTF-8 without U+0000 [MQTT-1.5.4-1, MQTT-1.5.4-2].
func ValidString(b []byte) bool {
	return utf8.Valid(b) && bytes.IndexByte(b, 0) < 0
}

// varint decodes a variable byte integer. n is its length, 0 when b ends inside
// it, and negative when it is longer than four bytes or not minimal.
func varint(b []byte) (v, n int) {
	for i := range min(len(b), 4) {
		v |= int(b[i]&0x7f) << (7 * i)
		if b[i]&0x80 == 0 {
			if i > 0 && b[i] == 0 {
				return 0, -1
			}
			return v, i + 1
		}
	}
	if len(b) >= 4 {
		return 0, -1
	}
	return 0, 0
}

// appendVarint appends v, which must be in 0..MaxRemaining.
func appendVarint(dst []byte, v int) []byte {
	for v >= 0x80 {
		dst = append(dst, byte(v)|0x80)
		v >>= 7
	}
	return append(dst, byte(v))
}

func varintSize(v int) int {
	switch {
	case v < 1<<7:
		return 1
	case v < 1<<14:
		return 2
	case v < 1<<21:
		return 3
	default:
		return 4
	}
}

func appendUint16(dst []byte, v uint16) []byte { return append(dst, byte(v>>8), byte(v)) }

func appendField[T string | []byte](dst []byte, s T) []byte {
	return append(appendUint16(dst, uint16(len(s))), s...)
}

// field takes one length-prefixed string or binary field from the front of b.
func field(b []byte) (f, rest []byte, ok bool) {
	if len(b) < 2 {
		return nil, nil, false
	}
	n := int(b[0])<<8 | int(b[1])
	if len(b)-2 < n {
		return nil, nil, false
	}
	return b[2 : 2+n : 2+n], b[2+n:], true
}
