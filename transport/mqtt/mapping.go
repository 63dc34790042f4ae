package mqtt

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/transport/mqtt/wire"
)

// binaryID starts an envelope id that stands for correlation data which is not
// plain text; base64url without padding follows. Text that starts with it is
// encoded too, so that no two values give one id.
const binaryID = "mqtt-bin:"

// maxHops bounds what is believed of a hop count.
const maxHops = 1 << 20

// bridgeOwned reports whether a user property name belongs to the bridge: the
// facts that Envelope.Header answers, and the internal namespace.
func bridgeOwned[T string | []byte](name T) bool {
	switch string(name) {
	case "mqtt.topic", "mqtt.qos", "mqtt.retained":
		return true
	}
	return len(name) >= len(gobridge.ReservedPrefix) && gobridge.Reserved(string(name[:len(gobridge.ReservedPrefix)]))
}

// fillEnvelope copies a PUBLISH into e, in memory that the envelope owns: one block
// for the strings, one for payload and correlation data, one for the headers.
// identity is one of the gobridge.Identity rules.
//
// It returns how many user properties were left out because their names belong to
// the bridge. The hop count moves to Envelope.Hops; mqtt.message-id stays where it
// is, beside being the id, and so does gobridge.subject.
func fillEnvelope(e *gobridge.Envelope, p *wire.Publish, identity string, now time.Time) (dropped int) {
	var (
		kept, size, hops int
		messageID        []byte
		messageIDAt      int // index among the kept
	)
	for name, value := range p.UserProps {
		switch {
		case bridgeOwned(name):
			dropped++
			continue
		case string(name) == gobridge.PropertyHops:
			hops = max(hops, parseHops(value))
			continue
		case messageID == nil && len(value) > 0 && string(name) == gobridge.PropertyMessageID:
			messageID, messageIDAt = value, kept
		}
		kept++
		size += len(name) + len(value)
	}
	if identity == gobridge.IdentityCorrelation {
		messageID = nil
	}
	correlated := messageID == nil && len(p.Correlation) > 0 && identity != gobridge.IdentityMessageID
	var text block
	size += len(p.Topic) + len(p.ContentType) + len(p.ResponseTopic)
	switch {
	case correlated:
		size += correlationIDSize(p.Correlation)
	case messageID == nil:
		size += uuidSize
	}
	text.Grow(size)

	*e = gobridge.Envelope{
		IDOrigin:      gobridge.IDProducer,
		Topic:         text.add(p.Topic),
		ContentType:   text.add(p.ContentType),
		ResponseTopic: text.add(p.ResponseTopic),
		UTF8Payload:   p.HasPayloadFormat && p.PayloadFormat == 1,
		QoS:           p.QoS,
		Retain:        p.Retain,
		Hops:          hops,
		CreatedAt:     now,
	}
	body := make([]byte, len(p.Payload)+len(p.Correlation))
	n := copy(body, p.Payload)
	e.Payload = body[:n:n]
	if p.Correlation != nil {
		copy(body[n:], p.Correlation)
		e.CorrelationData = body[n:]
	}
	if p.HasExpiry {
		e.ExpiresAt = now.Add(time.Duration(p.Expiry) * time.Second)
	}
	if kept > 0 {
		e.Headers = make([]gobridge.Property, 0, kept)
		for name, value := range p.UserProps {
			if !bridgeOwned(name) && string(name) != gobridge.PropertyHops {
				e.Headers = append(e.Headers, gobridge.Property{Name: text.add(name), Value: text.add(value)})
				if string(name) == gobridge.PropertySubject && e.Subject == "" {
					e.Subject = e.Headers[len(e.Headers)-1].Value
				}
			}
		}
	}
	switch {
	case messageID != nil:
		e.ID = e.Headers[messageIDAt].Value
	case correlated:
		e.ID = text.addCorrelationID(p.Correlation)
	default:
		e.ID, e.IDOrigin = text.addUUID(), gobridge.IDGenerated
	}
	return dropped
}

// block collects strings in one allocation: Grow first, by enough.
type block struct{ strings.Builder }

func (b *block) add(p []byte) string {
	start := b.Len()
	b.Write(p)
	return b.String()[start:]
}

func correlationIDSize(data []byte) int {
	if plainText(data) {
		return len(data)
	}
	return len(binaryID) + base64.RawURLEncoding.EncodedLen(len(data))
}

func (b *block) addCorrelationID(data []byte) string {
	if plainText(data) {
		return b.add(data)
	}
	start := b.Len()
	b.WriteString(binaryID)
	b.Write(base64.RawURLEncoding.AppendEncode(nil, data))
	return b.String()[start:]
}

// plainText reports whether correlation data can be an id as it stands, and a user
// property that every broker takes.
func plainText(data []byte) bool {
	if len(data) >= len(binaryID) && string(data[:len(binaryID)]) == binaryID {
		return false
	}
	for i := 0; i < len(data); {
		if c := data[i]; c >= ' ' && c < 0x7f {
			i++
			continue
		}
		r, size := utf8.DecodeRune(data[i:])
		switch {
		case r == utf8.RuneError && size == 1, r < ' ', r >= 0x7f && r <= 0x9f:
			return false
		case r >= 0xfdd0 && r <= 0xfdef, r&0xfffe == 0xfffe: // noncharacters
			return false
		}
		i += size
	}
	return true
}

const uuidSize = 36

// addUUID adds a random (version 4) UUID. It is unique, not secret: the generator
// is seeded by the system and costs no system call.
func (b *block) addUUID() string {
	var raw [16]byte
	hi, lo := rand.Uint64(), rand.Uint64()
	for i := range 8 {
		raw[i], raw[8+i] = byte(hi>>(8*i)), byte(lo>>(8*i))
	}
	raw[6] = raw[6]&0x0f | 0x40
	raw[8] = raw[8]&0x3f | 0x80
	var text [uuidSize]byte
	dst := text[:0]
	for i, group := range [...][]byte{raw[:4], raw[4:6], raw[6:8], raw[8:10], raw[10:]} {
		if i > 0 {
			dst = append(dst, '-')
		}
		dst = hex.AppendEncode(dst, group)
	}
	return b.add(dst)
}

// parseHops reads a hop count; what is not a number counts as none.
func parseHops(value []byte) int {
	n := 0
	for _, c := range value {
		if c < '0' || c > '9' {
			return 0
		}
		n = min(10*n+int(c-'0'), maxHops)
	}
	return n
}

var (
	errNotUTF8       = errors.New("is not UTF-8 without NUL")
	errResponseTopic = errors.New("has a wildcard")
)

// fillPublish prepares p, but for packet identifier, QoS and retain flag, and
// appends its user properties to props. p holds views of e and address: both must
// outlive it unchanged.
//
// Beside what the envelope carries, it adds the id as mqtt.message-id (in place of
// one that is there) and the hop count, each only as long as the message stays
// within 128 user properties and the metadata allowance (E4): a next bridge would
// drop it otherwise. Names that belong to the bridge are not sent.
//
// The error is an *gobridge.Error: rejected for what no broker may be sent, expired
// for a message past its time.
func fillPublish(p *wire.Publish, props []wire.UserProperty, e *gobridge.Envelope, address string, now time.Time) ([]wire.UserProperty, error) {
	*p = wire.Publish{Topic: bytesOf(address), Payload: e.Payload, Correlation: e.CorrelationData}
	metadata := len(address) + len(e.CorrelationData) + len(e.ContentType) + len(e.ResponseTopic) + maxFixedProperties
	if e.UTF8Payload {
		p.HasPayloadFormat, p.PayloadFormat = true, 1
	}
	if !e.ExpiresAt.IsZero() {
		left := e.ExpiresAt.Sub(now)
		if left <= 0 {
			return props, &gobridge.Error{Code: gobridge.CodeMessageExpired, Class: gobridge.ClassExpired, Op: "publish: the message has expired"}
		}
		p.HasExpiry = true
		p.Expiry = uint32(min((left+time.Second-1)/time.Second, math.MaxUint32)) // never 0 while it lives
	}
	if e.ContentType != "" {
		p.ContentType = bytesOf(e.ContentType)
		if !wire.ValidString(p.ContentType) {
			return props, unfit(gobridge.CodeInvalidPayload, "content type", errNotUTF8)
		}
	}
	if e.ResponseTopic != "" {
		p.ResponseTopic = bytesOf(e.ResponseTopic)
		switch {
		case !wire.ValidString(p.ResponseTopic):
			return props, unfit(gobridge.CodeInvalidTopic, "response topic", errNotUTF8)
		case strings.ContainsAny(e.ResponseTopic, "+#"): // [MQTT-3.3.2-14]
			return props, unfit(gobridge.CodeInvalidTopic, "response topic", errResponseTopic)
		}
	}
	first, identified := len(props), false
	for i := range e.Headers {
		h := wire.UserProperty(e.Headers[i])
		switch {
		case bridgeOwned(h.Name), h.Name == gobridge.PropertyHops:
			continue
		case h.Name == gobridge.PropertyMessageID && !identified:
			identified = true
			if len(e.ID) <= wire.MaxString {
				h.Value = e.ID
			}
		}
		if !wire.ValidString(bytesOf(h.Name)) || !wire.ValidString(bytesOf(h.Value)) {
			return props, unfit(gobridge.CodeInvalidPayload, fmt.Sprintf("user property %.100q", h.Name), errNotUTF8)
		}
		props = append(props, h)
		metadata += userPropertyBytes(h)
	}
	// The hop count comes first: without it a loop has no end.
	for _, h := range [...]wire.UserProperty{
		{Name: gobridge.PropertyHops, Value: strconv.Itoa(e.Hops + 1)},
		{Name: gobridge.PropertyMessageID, Value: e.ID},
	} {
		if identified && h.Name == gobridge.PropertyMessageID || len(h.Value) > wire.MaxString || !wire.ValidString(bytesOf(h.Value)) {
			continue
		}
		if n := userPropertyBytes(h); len(props)-first < MaxUserProperties && metadata+n <= MetadataAllowance {
			props = append(props, h)
			metadata += n
		}
	}
	return props, nil
}

// maxFixedProperties is what the properties other than user properties take at most
// beside their text, in bytes.
const maxFixedProperties = 2 + 5 + 3*3

func userPropertyBytes(h wire.UserProperty) int { return 5 + len(h.Name) + len(h.Value) }

func unfit(code gobridge.Code, field string, err error) error {
	return &gobridge.Error{Code: code, Class: gobridge.ClassRejected, Op: "publish", Err: fmt.Errorf("%s %w", field, err)}
}
