package wire

import (
	"bytes"
	"encoding/binary"
)

// MaxUserKept is how many user properties of an inbound PUBLISH are kept: one
// more than a message may have, so that a violation stays visible while the cost
// of a packet full of five-byte properties stays bounded.
const MaxUserKept = 129

// The properties that a PUBLISH may carry (MQTT v5, 3.3.2.3).
const (
	propPayloadFormat  = 0x01
	propExpiry         = 0x02
	propContentType    = 0x03
	propResponseTopic  = 0x08
	propCorrelation    = 0x09
	propSubscriptionID = 0x0b
	propSessionExpiry  = 0x11
	propReasonString   = 0x1f
	propTopicAlias     = 0x23
	propUser           = 0x26
)

// Publish is one PUBLISH. After ParsePublish every slice is a view into the
// frame, valid only as long as the frame is. A nil ContentType, ResponseTopic or
// Correlation is an absent property; an empty one is present and empty.
type Publish struct {
	Dup, Retain bool
	QoS         byte
	PacketID    uint16 // 0 at QoS 0
	Topic       []byte
	Payload     []byte

	HasPayloadFormat bool
	PayloadFormat    byte
	HasExpiry        bool
	Expiry           uint32 // seconds
	ContentType      []byte
	ResponseTopic    []byte
	Correlation      []byte

	// UserCount is the number of user properties that were sent; the first
	// UserKept of them, at most MaxUserKept, are yielded by UserProps.
	UserCount, UserKept int
	// MetadataBytes is the size of the topic and of all properties as sent.
	MetadataBytes int

	user []byte // the property region from the first user property on
}

// UserProperty is one user property to be sent.
type UserProperty struct{ Name, Value string }

// UserProps yields the kept user properties of a parsed PUBLISH in the order in
// which they were sent, repeats included. The views live as long as the frame.
func (p *Publish) UserProps(yield func(name, value []byte) bool) {
	b := p.user
	for range p.UserKept {
		for b[0] != propUser {
			b = b[propertySize(b):]
		}
		name, rest, _ := field(b[1:])
		value, rest, _ := field(rest)
		if !yield(name, value) {
			return
		}
		b = rest
	}
}

// propertySize returns the size of the property at the start of b, which has
// been parsed before and is not a user property.
func propertySize(b []byte) int {
	switch b[0] {
	case propPayloadFormat:
		return 2
	case propExpiry:
		return 5
	case propSubscriptionID:
		_, n := varint(b[1:])
		return 1 + n
	default:
		return 3 + int(binary.BigEndian.Uint16(b[1:]))
	}
}

// ParsePublish parses the body (all that follows the fixed header) of a PUBLISH
// whose first byte is header into p. Every error is a *MalformedError; p is
// then undefined.
//
// A topic alias is a protocol error: this client announces none. A response
// topic with wildcards or of no length is let through although [MQTT-3.3.2-14]
// forbids it: brokers forward what publishers put there, and refusing the packet
// would let any publisher end the session.
func ParsePublish(header byte, body []byte, p *Publish) error {
	*p = Publish{Dup: header&0x08 != 0, Retain: header&0x01 != 0, QoS: header >> 1 & 0x03}
	if p.QoS == 3 {
		return badPublish("QoS 3", ReasonMalformed) // [MQTT-3.3.1-4]
	}
	if p.Dup && p.QoS == 0 {
		return badPublish("DUP at QoS 0", ReasonMalformed) // [MQTT-3.3.1-2]
	}
	topic, rest, ok := field(body)
	if !ok {
		return badPublish("topic runs over the packet", ReasonMalformed)
	}
	if !ValidString(topic) {
		return badPublish("topic is not valid UTF-8", ReasonMalformed)
	}
	p.Topic = topic
	if p.QoS > 0 {
		if len(rest) < 2 {
			return badPublish("no packet identifier", ReasonMalformed)
		}
		p.PacketID = binary.BigEndian.Uint16(rest)
		rest = rest[2:]
		if p.PacketID == 0 {
			return badPublish("packet identifier 0", ReasonProtocolError) // [MQTT-2.2.1-3]
		}
	}
	size, n := varint(rest)
	if n <= 0 {
		return badPublish("property length", ReasonMalformed)
	}
	rest = rest[n:]
	if size > len(rest) {
		return badPublish("properties run over the packet", ReasonMalformed)
	}
	p.Payload = rest[size:len(rest):len(rest)]
	p.MetadataBytes = len(topic) + size
	if err := p.parseProperties(rest[:size:size]); err != nil {
		return err
	}
	if len(topic) == 0 {
		return badPublish("empty topic", ReasonProtocolError) // no alias stands in for it
	}
	if bytes.IndexByte(topic, '+') >= 0 || bytes.IndexByte(topic, '#') >= 0 {
		return badPublish("wildcard in the topic", ReasonProtocolError) // [MQTT-3.3.2-2]
	}
	return nil
}

func (p *Publish) parseProperties(b []byte) error {
	for len(b) > 0 {
		id, rest, ok := b[0], b[1:], true
		switch id {
		case propUser:
			var name, value []byte
			if name, rest, ok = field(rest); ok {
				value, rest, ok = field(rest)
			}
			if !ok {
				break
			}
			if !ValidString(name) || !ValidString(value) {
				return badPublish("user property is not valid UTF-8", ReasonMalformed)
			}
			if p.UserCount == 0 {
				p.user = b
			}
			p.UserCount++
			p.UserKept = min(p.UserCount, MaxUserKept)
		case propPayloadFormat:
			if p.HasPayloadFormat {
				return badPublish("payload format twice", ReasonProtocolError)
			}
			if ok = len(rest) >= 1; ok {
				p.HasPayloadFormat, p.PayloadFormat, rest = true, rest[0], rest[1:]
			}
		case propExpiry:
			if p.HasExpiry {
				return badPublish("message expiry twice", ReasonProtocolError)
			}
			if ok = len(rest) >= 4; ok {
				p.HasExpiry, p.Expiry, rest = true, binary.BigEndian.Uint32(rest), rest[4:]
			}
		case propContentType:
			if p.ContentType != nil {
				return badPublish("content type twice", ReasonProtocolError)
			}
			p.ContentType, rest, ok = field(rest)
			if ok && !ValidString(p.ContentType) {
				return badPublish("content type is not valid UTF-8", ReasonMalformed)
			}
		case propResponseTopic:
			if p.ResponseTopic != nil {
				return badPublish("response topic twice", ReasonProtocolError)
			}
			p.ResponseTopic, rest, ok = field(rest)
			if ok && !ValidString(p.ResponseTopic) {
				return badPublish("response topic is not valid UTF-8", ReasonMalformed)
			}
		case propCorrelation:
			if p.Correlation != nil {
				return badPublish("correlation data twice", ReasonProtocolError)
			}
			p.Correlation, rest, ok = field(rest)
		case propSubscriptionID: // may repeat: one for each matching subscription
			v, n := varint(rest)
			if ok = n > 0; ok {
				rest = rest[n:]
				if v == 0 {
					return badPublish("subscription identifier 0", ReasonProtocolError)
				}
			}
		case propTopicAlias:
			return badPublish("topic alias, and none was allowed", ReasonProtocolError) // [MQTT-3.1.2-27]
		default:
			return badPublish("unknown property", ReasonMalformed)
		}
		if !ok {
			return badPublish("property runs over its region", ReasonMalformed)
		}
		b = rest
	}
	return nil
}

func badPublish(what string, reason byte) error {
	return &MalformedError{Packet: "PUBLISH", What: what, Reason: reason}
}

// PublishSize returns the size in bytes of the whole packet that AppendPublish
// would append, without encoding it: to be held against the Maximum Packet Size
// of the server. What the protocol cannot express is a *LimitError.
func PublishSize(p *Publish, user []UserProperty) (int, error) {
	remaining, _, err := publishSizes(p, user)
	if err != nil {
		return 0, err
	}
	return 1 + varintSize(remaining) + remaining, nil
}

// AppendPublish appends the packet to dst. The user properties are those of
// user alone: the ones a parsed p carries are not copied. Nothing is validated
// but lengths; a *LimitError leaves dst as it was.
func AppendPublish(dst []byte, p *Publish, user []UserProperty) ([]byte, error) {
	remaining, properties, err := publishSizes(p, user)
	if err != nil {
		return dst, err
	}
	header := PUBLISH<<4 | p.QoS<<1
	if p.Dup {
		header |= 0x08
	}
	if p.Retain {
		header |= 0x01
	}
	dst = appendVarint(append(dst, header), remaining)
	dst = appendField(dst, p.Topic)
	if p.QoS > 0 {
		dst = appendUint16(dst, p.PacketID)
	}
	dst = appendVarint(dst, properties)
	if p.HasPayloadFormat {
		dst = append(dst, propPayloadFormat, p.PayloadFormat)
	}
	if p.HasExpiry {
		dst = binary.BigEndian.AppendUint32(append(dst, propExpiry), p.Expiry)
	}
	if p.ContentType != nil {
		dst = appendField(append(dst, propContentType), p.ContentType)
	}
	if p.ResponseTopic != nil {
		dst = appendField(append(dst, propResponseTopic), p.ResponseTopic)
	}
	if p.Correlation != nil {
		dst = appendField(append(dst, propCorrelation), p.Correlation)
	}
	for i := range user {
		dst = appendField(append(dst, propUser), user[i].Name)
		dst = appendField(dst, user[i].Value)
	}
	return append(dst, p.Payload...), nil
}

// publishSizes returns the remaining length and the length of the properties.
func publishSizes(p *Publish, user []UserProperty) (remaining, properties int, err error) {
	if len(p.Topic) > MaxString {
		return 0, 0, &LimitError{Field: "topic", Size: len(p.Topic), Max: MaxString}
	}
	if p.HasPayloadFormat {
		properties += 2
	}
	if p.HasExpiry {
		properties += 5
	}
	for _, f := range [...]struct {
		name  string
		value []byte
	}{
		{"content type", p.ContentType},
		{"response topic", p.ResponseTopic},
		{"correlation data", p.Correlation},
	} {
		if f.value == nil {
			continue
		}
		if len(f.value) > MaxString {
			return 0, 0, &LimitError{Field: f.name, Size: len(f.value), Max: MaxString}
		}
		properties += 3 + len(f.value)
	}
	for i := range user {
		if n := max(len(user[i].Name), len(user[i].Value)); n > MaxString {
			return 0, 0, &LimitError{Field: "user property", Size: n, Max: MaxString}
		}
		properties += 5 + len(user[i].Name) + len(user[i].Value)
		if properties > MaxRemaining {
			return 0, 0, &LimitError{Field: "packet", Size: properties, Max: MaxRemaining}
		}
	}
	remaining = 2 + len(p.Topic) + varintSize(properties) + properties + len(p.Payload)
	if p.QoS > 0 {
		remaining += 2
	}
	if remaining > MaxRemaining {
		return 0, 0, &LimitError{Field: "packet", Size: remaining, Max: MaxRemaining}
	}
	return remaining, properties, nil
}

// SetDup sets the DUP flag of an encoded PUBLISH, for a retransmission
// [MQTT-3.3.1-1]. Only for QoS 1 and 2.
func SetDup(frame []byte) { frame[0] |= 0x08 }
