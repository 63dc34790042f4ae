package mqtt

import (
	"fmt"
	"slices"
	"time"

	"github.com/gobridge/gobridge"
)

// The fixed limits of the adapter and the defaults that other parts of it need.
const (
	// DefaultReceiveMaximum is the receive window of a session, in packets, unless
	// the memory budget asks for less.
	DefaultReceiveMaximum = 192
	// DefaultMaxPayloadBytes bounds the body of an inbound message.
	DefaultMaxPayloadBytes = 256 << 10
	// DefaultIngressMemoryBudgetBytes bounds what the messages of one session may
	// hold in memory.
	DefaultIngressMemoryBudgetBytes = 256 << 20
	// MetadataAllowance is the part of a packet beside its body: topic, properties,
	// header.
	MetadataAllowance = 128 << 10
	// PendingBytesLimit bounds the QoS 0 payload that waits for a receiver.
	PendingBytesLimit = 64 << 20
	// MaxUserProperties is how many user properties a message may carry.
	MaxUserProperties = 128
	// DefaultSessionExpiry is the session expiry of a persistent session, in seconds.
	DefaultSessionExpiry gobridge.Seconds = 86400
	// NeverExpires is the session expiry of a session that the broker keeps for ever
	// (MQTT v5, 3.1.2.11.2).
	NeverExpires gobridge.Seconds = 0xFFFFFFFF
)

// The rules for a granted QoS below the wanted one.
const (
	DowngradeFail   = "fail"
	DowngradeAccept = "accept"
)

// SessionOptions are the options of an MQTT session. A zero field means its
// default; the transport's Check replaces it by the effective value, in place.
type SessionOptions struct {
	Session SessionSettings `yaml:"session" doc:"the connection to the broker"`
}

// SessionSettings describe the connection of a session. After Check, client_id (with
// its suffix), clean_start, session_expiry_interval, receive_maximum, max_payload_bytes,
// ingress_memory_budget_bytes and no_local hold what the session really uses.
type SessionSettings struct {
	BrokerURL                 string            `yaml:"broker_url" doc:"the broker: tcp, mqtt, ws (plain), ssl, tls, mqtts, wss (TLS)"`
	BrokerURLs                []string          `yaml:"broker_urls" doc:"several addresses of one broker, tried in turn; instead of broker_url"`
	ClientID                  string            `yaml:"client_id" doc:"the session's name at the broker" default:"<bridge.id>-<session id>" derived:"true"`
	ClientIDSuffix            string            `yaml:"client_id_suffix" doc:"appended to client_id with -, so that instances of one config are different clients: hostname, or nonce (new with each start)" enum:"hostname,nonce"`
	KeepAlive                 *gobridge.Seconds `yaml:"keep_alive" doc:"the longest silence towards the broker, 0 to 65535 seconds; 0 turns it off" default:"30" max:"65535"`
	ConnectTimeout            time.Duration     `yaml:"connect_timeout" doc:"bound of one attempt to connect, up to the broker's answer" default:"30s"`
	ReconnectTimeout          time.Duration     `yaml:"reconnect_timeout" doc:"the same after the first connection" default:"30s"`
	ReconcileTimeout          time.Duration     `yaml:"reconcile_timeout" doc:"bound of subscribing to what is missing" default:"30s"`
	ReconnectDelay            time.Duration     `yaml:"reconnect_delay" doc:"base of the jittered exponential backoff between connects" default:"1s"`
	ReconnectMaxDelay         time.Duration     `yaml:"reconnect_max_delay" doc:"the longest wait between connects" default:"2m"`
	CleanStart                *bool             `yaml:"clean_start" doc:"forget what the broker kept; follows session_mode" default:"true for ephemeral sessions, else false" derived:"true"`
	SessionExpiryInterval     gobridge.Seconds  `yaml:"session_expiry_interval" doc:"how long the broker keeps a persistent session, in seconds; 0 is 86400" default:"0" max:"4294967295"`
	ReceiveMaximum            int               `yaml:"receive_maximum" doc:"QoS 1 and 2 messages that may await their settlement; 0 is 192, or what the memory budget allows" default:"0" max:"65535"`
	MaxPayloadBytes           int64             `yaml:"max_payload_bytes" doc:"the largest body accepted; 0 is 262144" default:"0" max:"268304383"`
	IngressMemoryBudgetBytes  int64             `yaml:"ingress_memory_budget_bytes" doc:"memory for messages of this session; 0 is 268435456" default:"0"`
	UnmatchedGrace            *time.Duration    `yaml:"unmatched_grace" doc:"how long a message that no receiver matches is kept" default:"30s"`
	NoLocal                   *bool             `yaml:"no_local" doc:"do not receive what this session sent" default:"true when the session also sends" derived:"true"`
	OnQoSDowngrade            string            `yaml:"on_qos_downgrade" doc:"when the broker grants less than the wanted QoS" default:"fail" enum:"fail,accept"`
	Username                  string            `yaml:"username" doc:"user name"`
	Password                  gobridge.Secret   `yaml:"password" doc:"password; never shown"`
	AllowPlaintextCredentials bool              `yaml:"allow_plaintext_credentials" doc:"permit credentials on a connection without TLS" default:"false"`
	Will                      WillSettings      `yaml:"will" doc:"what the broker publishes when the connection breaks; none without a topic"`
	TLS                       TLSSettings       `yaml:"tls" doc:"TLS of the connection"`
}

// WillSettings describe the will message. An empty topic is no will.
type WillSettings struct {
	Topic   string `yaml:"topic" doc:"topic of the will"`
	Payload string `yaml:"payload" doc:"body of the will"`
	QoS     int    `yaml:"qos" doc:"QoS of the will" default:"0" enum:"0,1,2"`
	Retain  bool   `yaml:"retain" doc:"retain flag of the will" default:"false"`
}

// TLSSettings describe TLS on the client's side. File names are read when the
// session is opened.
type TLSSettings struct {
	CACertFile         string   `yaml:"ca_cert_file" doc:"PEM file of the authorities to trust" default:"those of the system" derived:"true"`
	CertFile           string   `yaml:"cert_file" doc:"PEM file of the client certificate; with key_file"`
	KeyFile            string   `yaml:"key_file" doc:"PEM file of the client key; with cert_file"`
	ServerName         string   `yaml:"server_name" doc:"name to verify" default:"the host of the broker URL" derived:"true"`
	ALPN               []string `yaml:"alpn" doc:"application protocols to offer"`
	MinVersion         string   `yaml:"min_version" doc:"lowest TLS version" default:"1.2" enum:"1.2,1.3"`
	InsecureSkipVerify bool     `yaml:"insecure_skip_verify" doc:"accept any certificate: no protection against a man in the middle" default:"false"`
}

// ReceiverOptions are the options of an MQTT receiver: there are none.
type ReceiverOptions struct{}

// SenderOptions are the options of an MQTT sender. A zero field means its
// default.
type SenderOptions struct {
	Sender SenderSettings `yaml:"sender" doc:"how messages are published"`
}

// SenderSettings describe how a sender publishes.
type SenderSettings struct {
	DefaultTopic       string         `yaml:"default_topic" doc:"address template of bindings without an address of their own"`
	QoS                QoSRule        `yaml:"qos" doc:"QoS to publish with, or preserve that of the message" default:"1" enum:"0,1,2,preserve"`
	Retain             RetainRule     `yaml:"retain" doc:"retain flag to publish with, or preserve that of the message" default:"preserve" enum:"true,false,preserve"`
	Timeout            time.Duration  `yaml:"timeout" doc:"bound of one publish where it is shorter than the route's send_timeout; 0s is the route's" default:"0s"`
	ThrottleRetryAfter *time.Duration `yaml:"throttle_retry_after" doc:"wait after the broker answered that its quota is exceeded" default:"500ms"`
}

// Preserve, as QoS or retain rule, keeps what the message came with.
const Preserve = "preserve"

// QoSRule is the QoS of a sender: 0, 1, 2 or preserve.
type QoSRule string

// UnmarshalText implements encoding.TextUnmarshaler.
func (r *QoSRule) UnmarshalText(text []byte) error {
	return unmarshalRule((*string)(r), text, "0", "1", "2", Preserve)
}

// Of returns the QoS to publish a message with that came with the given one.
func (r QoSRule) Of(message uint8) uint8 {
	switch r {
	case Preserve:
		return message
	case "0":
		return 0
	case "2":
		return 2
	}
	return 1
}

// RetainRule is the retain flag of a sender: true, false or preserve.
type RetainRule string

// UnmarshalText implements encoding.TextUnmarshaler.
func (r *RetainRule) UnmarshalText(text []byte) error {
	return unmarshalRule((*string)(r), text, "true", "false", Preserve)
}

// Of returns the flag to publish a message with that came with the given one.
func (r RetainRule) Of(message bool) bool {
	switch r {
	case "true":
		return true
	case "false":
		return false
	}
	return message
}

func unmarshalRule(r *string, text []byte, allowed ...string) error {
	if !slices.Contains(allowed, string(text)) {
		return fmt.Errorf("%q is none of %v", text, allowed)
	}
	*r = string(text)
	return nil
}

// MaxPacketBytes is the Maximum Packet Size that the session announces: the
// largest body and its metadata.
func (s *SessionSettings) MaxPacketBytes() int64 { return s.MaxPayloadBytes + MetadataAllowance }

// RunningBudgetBytes bounds the bytes that inbound messages may hold while the
// session runs, QoS 0 that waits for a receiver not included.
func (s *SessionSettings) RunningBudgetBytes() int64 {
	return s.IngressMemoryBudgetBytes - PendingBytesLimit
}

// NewSessionOptions, NewReceiverOptions and NewSenderOptions return options with
// the defaults of their tags.
func NewSessionOptions() *SessionOptions { return gobridge.SetDefaults(new(SessionOptions)) }

// NewReceiverOptions returns the options of a receiver.
func NewReceiverOptions() *ReceiverOptions { return new(ReceiverOptions) }

// NewSenderOptions returns the options of a sender with the defaults of their tags.
func NewSenderOptions() *SenderOptions { return gobridge.SetDefaults(new(SenderOptions)) }
