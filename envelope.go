package gobridge

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// IDOrigin tells where the identity of an envelope came from.
type IDOrigin uint8

const (
	// IDGenerated marks an id made up by the bridge. It is new for each receipt,
	// so attempts cannot be counted across redeliveries.
	IDGenerated IDOrigin = iota
	// IDProducer marks an id that the producer (or the source system) supplied
	// and that stays the same when the message is delivered again.
	IDProducer
)

// Property is one user property (MQTT) or header: a name and a value. Order and
// repetition carry meaning, so properties travel in a slice.
type Property struct {
	Name  string
	Value string
}

// Envelope is one message on its way. A receiver builds it in memory that the
// bridge owns; from then on it is read-only, except for processors, which work
// on their own copy ([Envelope.Clone]).
//
// The address of a destination is not part of the envelope: it travels beside it
// in [Outbound].
type Envelope struct {
	// ID identifies the message: valid UTF-8, never empty.
	ID string
	// IDOrigin tells whether ID is stable across redeliveries.
	IDOrigin IDOrigin
	// Subject is the producer's name for what happened; it may be empty.
	Subject string
	// Topic is the address the message was received from: the MQTT topic, the
	// queue name.
	Topic string
	// Payload is the body, byte for byte.
	Payload []byte
	// Headers are the user properties in their original order, repeats included.
	Headers []Property
	// ContentType, ResponseTopic and CorrelationData are the MQTT v5 properties of
	// those names. A nil CorrelationData is an absent one.
	ContentType     string
	ResponseTopic   string
	CorrelationData []byte
	// UTF8Payload is the MQTT payload format indicator.
	UTF8Payload bool
	// QoS and Retain are those of the packet received.
	QoS    uint8
	Retain bool
	// Hops counts the bridges that the message has crossed, this one excluded.
	Hops int
	// CreatedAt is when the source made the message, or when it was received where
	// the source does not say.
	CreatedAt time.Time
	// ExpiresAt is the absolute deadline of the message; zero is none.
	ExpiresAt time.Time
}

// Names of properties that mean something to the bridge.
const (
	// PropertyMessageID carries the producer's identity of a message.
	PropertyMessageID = "mqtt.message-id"
	// PropertySubject carries the subject of a message.
	PropertySubject = "gobridge.subject"
	// PropertyHops carries the number of bridges crossed.
	PropertyHops = "gobridge-hops"
	// ReservedPrefix starts the names of internal properties: stripped from what
	// comes in, never sent.
	ReservedPrefix = "x-bridge."
)

// Header returns the value of the named header: one of the bridge's own facts
// (mqtt.topic, mqtt.qos, mqtt.retained) or the first user property of that name.
func (e *Envelope) Header(name string) (string, bool) {
	switch name {
	case "mqtt.topic":
		return e.Topic, true
	case "mqtt.qos":
		return strconv.Itoa(int(e.QoS)), true
	case "mqtt.retained":
		return strconv.FormatBool(e.Retain), true
	}
	for i := range e.Headers {
		if e.Headers[i].Name == name {
			return e.Headers[i].Value, true
		}
	}
	return "", false
}

// Expired reports whether the deadline of the message has passed at now.
func (e *Envelope) Expired(now time.Time) bool {
	return !e.ExpiresAt.IsZero() && !now.Before(e.ExpiresAt)
}

// Clone returns a copy whose headers may be changed without touching the
// original. Payload and correlation data are shared: replace them, never write
// into them.
func (e *Envelope) Clone() *Envelope {
	c := *e
	c.Headers = slices.Clone(e.Headers)
	return &c
}

// Reserved reports whether a property name belongs to the bridge's internal
// namespace, in any letter case.
func Reserved(name string) bool {
	return len(name) >= len(ReservedPrefix) && strings.EqualFold(name[:len(ReservedPrefix)], ReservedPrefix)
}
