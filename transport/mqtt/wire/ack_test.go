package wire

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAckRoundTrip(t *testing.T) {
	for _, typ := range []byte{PUBACK, PUBREC, PUBREL, PUBCOMP} {
		for _, reason := range []byte{0, 0x10, 0x92, 0x97} {
			frame := AppendAck(nil, typ, 0x1234, reason)
			if want := 5; reason == 0 && len(frame) != 4 || reason != 0 && len(frame) != want {
				t.Errorf("%s with reason 0x%02x takes %d bytes", TypeName(typ), reason, len(frame))
			}
			got, total, ok, err := Header(frame)
			if got != typ || total != len(frame) || !ok || err != nil {
				t.Errorf("Header = %d, %d, %t, %v", got, total, ok, err)
			}
			var a Ack
			if err := ParseAck(frame[0], Body(frame), &a); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(Ack{Type: typ, ID: 0x1234, Reason: reason}, a); diff != "" {
				t.Errorf("%s (-want +got):\n%s", TypeName(typ), diff)
			}
		}
	}
}

func TestParseAckReadsTheReasonString(t *testing.T) {
	properties := user("k", "v") + "\x1f" + str("over quota") + user("k", "w")
	body := append([]byte("\x00\x01\x97"), appendVarint(nil, len(properties))...)
	var a Ack
	if err := ParseAck(PUBREC<<4, append(body, properties...), &a); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Ack{Type: PUBREC, ID: 1, Reason: 0x97, ReasonString: []byte("over quota")}, a); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParseAckRefuses(t *testing.T) {
	for _, tt := range []struct {
		name   string
		header byte
		body   string
		packet string
		what   string
		reason byte
	}{
		{"another packet", PINGRESP << 4, "\x00\x01", "PINGRESP", "not an acknowledgement", ReasonMalformed},
		{"flags on PUBACK", PUBACK<<4 | 2, "\x00\x01", "PUBACK", "reserved flags", ReasonMalformed},
		{"no flags on PUBREL", PUBREL << 4, "\x00\x01", "PUBREL", "reserved flags", ReasonMalformed},
		{"no body", PUBACK << 4, "", "PUBACK", "no packet identifier", ReasonMalformed},
		{"half an identifier", PUBACK << 4, "\x00", "PUBACK", "no packet identifier", ReasonMalformed},
		{"identifier 0", PUBCOMP << 4, "\x00\x00", "PUBCOMP", "packet identifier 0", ReasonProtocolError},
		{"properties too short", PUBACK << 4, "\x00\x01\x00\x05\x1f\x00", "PUBACK", "properties do not fill the packet", ReasonMalformed},
		{"bytes after the properties", PUBACK << 4, "\x00\x01\x00\x00x", "PUBACK", "properties do not fill the packet", ReasonMalformed},
		{"property length", PUBACK << 4, "\x00\x01\x00\x80", "PUBACK", "property length", ReasonMalformed},
		{"unknown property", PUBACK << 4, "\x00\x01\x00\x02\x01\x01", "PUBACK", "unknown property", ReasonMalformed},
		{"reason string twice", PUBACK << 4, "\x00\x01\x00\x06\x1f\x00\x00\x1f\x00\x00", "PUBACK", "reason string twice", ReasonProtocolError},
		{"reason string cut short", PUBACK << 4, "\x00\x01\x00\x04\x1f\x00\x02x", "PUBACK", "property runs over its region", ReasonMalformed},
		{"reason string not UTF-8", PUBACK << 4, "\x00\x01\x00\x04\x1f\x00\x01\xff", "PUBACK", "property is not valid UTF-8", ReasonMalformed},
		{"user property cut short", PUBACK << 4, "\x00\x01\x00\x04\x26\x00\x01k", "PUBACK", "property runs over its region", ReasonMalformed},
		{"user property with NUL", PUBACK << 4, "\x00\x01\x00\x06\x26\x00\x01\x00\x00\x00", "PUBACK", "property is not valid UTF-8", ReasonMalformed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var a Ack
			var malformed *MalformedError
			if err := ParseAck(tt.header, []byte(tt.body), &a); !errors.As(err, &malformed) {
				t.Fatalf("got %v, want a *MalformedError", err)
			}
			if diff := cmp.Diff(&MalformedError{Packet: tt.packet, What: tt.what, Reason: tt.reason}, malformed); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
