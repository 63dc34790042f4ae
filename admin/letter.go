package admin

import (
	"time"
	"unicode/utf8"

	"github.com/gobridge/gobridge"
)

// DeadLetter is a dead letter in a list.
type DeadLetter struct {
	ID        string            `json:"id"`
	RouteID   string            `json:"route_id"`
	BindingID string            `json:"binding_id"`
	SourceID  string            `json:"source_id"`
	Category  gobridge.Category `json:"category"`
	Code      gobridge.Code     `json:"code"`
	LastError string            `json:"last_error"`
	// Attempts counts physical sends, Replays redrives.
	Attempts int       `json:"attempts"`
	Replays  int       `json:"replays"`
	FirstAt  time.Time `json:"first_at"`
	LastAt   time.Time `json:"last_at"`
	// MessageID is the id of the message, Topic where it was received, Address where
	// it was bound for.
	MessageID    string `json:"message_id"`
	Topic        string `json:"topic"`
	Address      string `json:"address"`
	PayloadBytes int    `json:"payload_bytes"`
	// Message is there when it was asked for.
	Message *Message `json:"message,omitempty"`
}

// Message is the original message of a dead letter, complete.
type Message struct {
	// IDOrigin is producer or generated.
	IDOrigin    string `json:"id_origin"`
	Subject     string `json:"subject"`
	QoS         uint8  `json:"qos"`
	Retain      bool   `json:"retain"`
	Hops        int    `json:"hops"`
	ContentType string `json:"content_type"`
	// UTF8Payload is the payload format indicator.
	UTF8Payload   bool   `json:"utf8_payload"`
	ResponseTopic string `json:"response_topic"`
	// CorrelationData is null when there was none.
	CorrelationData []byte `json:"correlation_data_base64"`
	// Headers are the user properties in their order, repeats included.
	Headers   []Header   `json:"headers"`
	CreatedAt time.Time  `json:"created_at"`
	ExpiresAt *time.Time `json:"expires_at"`
	Payload   []byte     `json:"payload_base64"`
	// PayloadText is the payload once more when it is UTF-8.
	PayloadText *string `json:"payload_text,omitempty"`
}

// Header is one user property.
type Header struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// deadLetter is the outside form of d.
func deadLetter(d *gobridge.DeadLetter, whole bool) DeadLetter {
	e := &d.Envelope
	out := DeadLetter{
		ID: d.ID, RouteID: d.RouteID, BindingID: d.BindingID, SourceID: d.SourceID,
		Category: d.Category, Code: d.Code, LastError: d.LastError, Attempts: d.Attempts, Replays: d.Replays,
		FirstAt: d.FirstAt.UTC(), LastAt: d.LastAt.UTC(),
		MessageID: e.ID, Topic: e.Topic, Address: d.Address, PayloadBytes: len(e.Payload),
	}
	if !whole {
		return out
	}
	m := &Message{
		IDOrigin: "generated", Subject: e.Subject, QoS: e.QoS, Retain: e.Retain, Hops: e.Hops,
		ContentType: e.ContentType, UTF8Payload: e.UTF8Payload, ResponseTopic: e.ResponseTopic,
		CorrelationData: e.CorrelationData, Headers: make([]Header, len(e.Headers)), CreatedAt: e.CreatedAt.UTC(), ExpiresAt: optional(e.ExpiresAt),
		Payload: append([]byte{}, e.Payload...), // empty, not null
	}
	if e.IDOrigin == gobridge.IDProducer {
		m.IDOrigin = "producer"
	}
	for i, h := range e.Headers {
		m.Headers[i] = Header(h)
	}
	if utf8.Valid(e.Payload) {
		text := string(e.Payload)
		m.PayloadText = &text
	}
	out.Message = m
	return out
}
