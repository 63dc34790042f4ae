package wire

import "encoding/binary"

// Ack is a PUBACK, PUBREC, PUBREL or PUBCOMP.
type Ack struct {
	Type   byte // PUBACK, PUBREC, PUBREL or PUBCOMP
	Reason byte // 0x80 and above is a failure
	ID     uint16
	// ReasonString is the peer's explanation, a view into the frame; nil when
	// there is none.
	ReasonString []byte
}

// ParseAck parses the body of a PUBACK, PUBREC, PUBREL or PUBCOMP whose first
// byte is header. Every error is a *MalformedError; a is then undefined. User
// properties are checked and skipped.
func ParseAck(header byte, body []byte, a *Ack) error {
	*a = Ack{Type: header >> 4}
	want := byte(0)
	switch a.Type {
	case PUBREL:
		want = 0x02 // [MQTT-3.6.1-1]
	case PUBACK, PUBREC, PUBCOMP:
	default:
		return badAck(a.Type, "not an acknowledgement", ReasonMalformed)
	}
	if header&0x0f != want {
		return badAck(a.Type, "reserved flags", ReasonMalformed)
	}
	if len(body) < 2 {
		return badAck(a.Type, "no packet identifier", ReasonMalformed)
	}
	if a.ID = binary.BigEndian.Uint16(body); a.ID == 0 {
		return badAck(a.Type, "packet identifier 0", ReasonProtocolError)
	}
	if len(body) == 2 {
		return nil // reason 0 left out
	}
	a.Reason = body[2]
	if len(body) == 3 {
		return nil // no properties
	}
	size, n := varint(body[3:])
	if n <= 0 {
		return badAck(a.Type, "property length", ReasonMalformed)
	}
	b := body[3+n:]
	if size != len(b) {
		return badAck(a.Type, "properties do not fill the packet", ReasonMalformed)
	}
	return a.parseProperties(b)
}

func (a *Ack) parseProperties(b []byte) error {
	for len(b) > 0 {
		id, rest, ok := b[0], b[1:], true
		var first, second []byte
		switch id {
		case propReasonString:
			if a.ReasonString != nil {
				return badAck(a.Type, "reason string twice", ReasonProtocolError)
			}
			first, rest, ok = field(rest)
			a.ReasonString = first
		case propUser:
			if first, rest, ok = field(rest); ok {
				second, rest, ok = field(rest)
			}
		default:
			return badAck(a.Type, "unknown property", ReasonMalformed)
		}
		if !ok {
			return badAck(a.Type, "property runs over its region", ReasonMalformed)
		}
		if !ValidString(first) || !ValidString(second) {
			return badAck(a.Type, "property is not valid UTF-8", ReasonMalformed)
		}
		b = rest
	}
	return nil
}

func badAck(typ byte, what string, reason byte) error {
	return &MalformedError{Packet: TypeName(typ), What: what, Reason: reason}
}

// AppendAck appends an acknowledgement without properties, in the short form
// when the reason is 0.
func AppendAck(dst []byte, typ byte, id uint16, reason byte) []byte {
	header := typ << 4
	if typ == PUBREL {
		header |= 0x02
	}
	if reason == ReasonSuccess {
		return append(dst, header, 2, byte(id>>8), byte(id))
	}
	return append(dst, header, 3, byte(id>>8), byte(id), reason)
}
