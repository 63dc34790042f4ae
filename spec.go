package gobridge

import "time"

// Spec describes a bridge: what the daemon reads from its file and what an
// embedder writes in Go. [Spec.Check] completes the defaults and reports every
// fault. The yaml tags are the names of the config, the doc tags its reference. A
// zero field is an unset one and takes the value of its default tag; a derived tag
// marks defaults that are computed, and the default tag then describes them. Numbers
// and times are not negative unless a min tag says otherwise; max bounds them.
type Spec struct {
	Bridge    BridgeSpec     `yaml:"bridge" doc:"identity and limits of the whole bridge"`
	Stores    StoresSpec     `yaml:"stores" doc:"where the bridge keeps what must outlive a message"`
	Sessions  []SessionSpec  `yaml:"sessions" doc:"connections to brokers"`
	Receivers []ReceiverSpec `yaml:"receivers" doc:"sources of messages"`
	Senders   []SenderSpec   `yaml:"senders" doc:"destinations of messages"`
	Routes    []RouteSpec    `yaml:"routes" doc:"the ways of messages, from one receiver to one or more bindings"`
}

// The deployment modes.
const (
	DeploymentStandalone = "standalone"
	DeploymentClustered  = "clustered"
)

// BridgeSpec identifies the bridge.
type BridgeSpec struct {
	ID              string        `yaml:"id" doc:"name of the bridge; part of derived client ids" required:"true"`
	InstanceID      string        `yaml:"instance_id" doc:"name of this process" default:"the host name" derived:"true"`
	DataDir         string        `yaml:"data_dir" doc:"directory of the local stores" default:"./gobridge-data"`
	DeploymentMode  string        `yaml:"deployment_mode" doc:"how many instances run this config: one, or several that share what exclusive sessions need" default:"standalone" enum:"standalone,clustered"`
	ShutdownTimeout time.Duration `yaml:"shutdown_timeout" doc:"the whole time between the signal and the exit" default:"30s"`
	DrainTimeout    time.Duration `yaml:"drain_timeout" doc:"the part of shutdown_timeout for messages in flight" default:"20s"`
}

// StoresSpec names the stores.
type StoresSpec struct {
	Outbox               StoreSpec `yaml:"outbox" doc:"messages of shared_outbox routes"`
	DLQ                  StoreSpec `yaml:"dlq" doc:"dead letters; type none: no dead-letter queue"`
	Lease                StoreSpec `yaml:"lease" doc:"ownership of exclusive sessions; with deployment_mode standalone memory is the default, else it must be shared by all instances"`
	ManagedSubscriptions StoreSpec `yaml:"managed_subscriptions" doc:"filters that a durable session has in its broker"`
	ReplayLedger         StoreSpec `yaml:"replay_ledger" doc:"charged attempts of messages whose source does not count"`
}

// The session modes.
const (
	ModeEphemeral  = "ephemeral"
	ModePersistent = "persistent"
	ModeExclusive  = "exclusive"
)

// SessionSpec is one connection to a broker.
type SessionSpec struct {
	ID             string    `yaml:"id" doc:"name of the session" required:"true"`
	Transport      string    `yaml:"transport" doc:"the technology" required:"true"`
	Mode           string    `yaml:"session_mode" doc:"what the broker keeps while the bridge is away: nothing, or the session; exclusive: one instance at a time owns the session, the next one resumes it" default:"persistent with a QoS 1 or 2 receiver, else ephemeral" derived:"true" enum:"ephemeral,persistent,exclusive"`
	CredentialsURI string    `yaml:"credentials_uri" doc:"where the credentials come from: file:///path (watched) or env://PREFIX; what the options say themselves wins"`
	Lease          LeaseSpec `yaml:"lease" doc:"ownership of the session; session_mode exclusive only"`
	Options        any       `yaml:"options" doc:"options of the transport"`
}

// LeaseSpec times the ownership of an exclusive session.
type LeaseSpec struct {
	TTL                time.Duration `yaml:"ttl" doc:"how long a silent owner keeps the session" default:"15s"`
	RenewInterval      time.Duration `yaml:"renew_interval" doc:"how often the owner renews; 0s is a quarter of ttl" default:"0s"`
	MaxRenewFails      int           `yaml:"max_renew_fails" doc:"failed renewals before the owner asks for the truth" default:"3" min:"1"`
	StepDownGrace      time.Duration `yaml:"step_down_grace" doc:"time for messages in flight when ownership ends" default:"5s"`
	BrokerLossStepDown time.Duration `yaml:"broker_loss_step_down" doc:"how long an owner may be cut off from its broker; 0s is twice ttl" default:"0s"`
}

// Effective returns the lease with its times of 0 resolved.
func (l LeaseSpec) Effective() LeaseSpec {
	if l.RenewInterval == 0 {
		l.RenewInterval = l.TTL / 4
	}
	if l.BrokerLossStepDown == 0 {
		l.BrokerLossStepDown = 2 * l.TTL
	}
	return l
}

// TopicSpec is one subscription.
type TopicSpec struct {
	Topic string `yaml:"topic" doc:"topic filter" required:"true"`
	QoS   *int   `yaml:"qos" doc:"QoS to subscribe with" default:"1" enum:"0,1,2"`
}

// The identity rules of a receiver.
const (
	IdentityBoth        = "both"
	IdentityMessageID   = "message_id"
	IdentityCorrelation = "correlation"
)

// ReceiverSpec is one source of messages.
type ReceiverSpec struct {
	ID        string      `yaml:"id" doc:"name of the receiver; defaults to the route's id when written inline"`
	SessionID string      `yaml:"session_id" doc:"the session that it receives on"`
	Transport string      `yaml:"transport" doc:"the technology, for receivers without a session"`
	Topics    []TopicSpec `yaml:"topics" doc:"what to subscribe to"`
	Identity  string      `yaml:"identity" doc:"which property names a message: mqtt.message-id, correlation data, or the first present of both" default:"both" enum:"message_id,correlation,both"`
	Options   any         `yaml:"options" doc:"options of the transport"`
}

// SenderSpec is one destination of messages.
type SenderSpec struct {
	ID        string `yaml:"id" doc:"name of the sender; defaults to the binding's id when written inline"`
	SessionID string `yaml:"session_id" doc:"the session that it sends on"`
	Transport string `yaml:"transport" doc:"the technology, for senders without a session"`
	Options   any    `yaml:"options" doc:"options of the transport"`
}

// The delivery and dispatch modes, and the actions of a policy.
const (
	DirectHold   = "direct_hold"
	SharedOutbox = "shared_outbox"

	DispatchSingle = "single"
	DispatchFanOut = "fan_out"

	ActionDLQ  = "dlq"
	ActionDrop = "drop"

	UnavailableHold = "hold"
	UnavailableFail = "fail"
)

// RouteSpec is the way from one receiver to one or more bindings.
type RouteSpec struct {
	ID           string        `yaml:"id" doc:"name of the route" required:"true"`
	ReceiverID   string        `yaml:"receiver_id" doc:"the source; or write it inline as receiver"`
	Receiver     *ReceiverSpec `yaml:"receiver" doc:"the source, written in place"`
	DeliveryMode string        `yaml:"delivery_mode" doc:"what must hold a message before its source is told: the destination, or the durable outbox" default:"direct_hold" enum:"direct_hold,shared_outbox"`
	DispatchMode string        `yaml:"dispatch_mode" doc:"one binding, or a copy to each" default:"single" enum:"single,fan_out"`
	Bindings     []BindingSpec `yaml:"bindings" doc:"the destinations"`
	Processors   []string      `yaml:"processors" doc:"processors to run, in order; not available in this version"`
	Policy       PolicySpec    `yaml:"policy" doc:"limits and decisions"`
}

// BindingSpec is one destination of a route.
type BindingSpec struct {
	ID       string      `yaml:"id" doc:"name of the binding, unique in the config" default:"<route>/<index>" derived:"true"`
	SenderID string      `yaml:"sender_id" doc:"the sender; or write it inline as sender"`
	Sender   *SenderSpec `yaml:"sender" doc:"the sender, written in place"`
	Address  string      `yaml:"address" doc:"template of the destination address" default:"the sender's default_topic" derived:"true"`
}

// PolicySpec holds the limits and decisions of a route.
type PolicySpec struct {
	MaxInFlight        int            `yaml:"max_in_flight" doc:"deliveries worked on at once" default:"192" min:"1" max:"1000000"`
	SendTimeout        time.Duration  `yaml:"send_timeout" doc:"bound of one physical send" default:"30s"`
	SendRetryBudget    *time.Duration `yaml:"send_retry_budget" doc:"how long a failing send is tried again before it counts as one attempt; 0s counts each failure" default:"60s"`
	OnUnavailable      string         `yaml:"on_unavailable" doc:"while the destination cannot be reached: hold the message uncharged, or treat it as a failed send" default:"hold" enum:"hold,fail"`
	MaxReplayAttempts  int            `yaml:"max_replay_attempts" doc:"attempts before a message is given up" default:"5"`
	ReplayBudget       time.Duration  `yaml:"replay_budget" doc:"shared_outbox: time since the first attempt that must also have passed" default:"15m"`
	MaxOutboxDepth     int            `yaml:"max_outbox_depth" doc:"shared_outbox: records waiting before the source is held" default:"10000"`
	OnPermanentFailure string         `yaml:"on_permanent_failure" doc:"what becomes of a message that cannot be delivered" default:"dlq" enum:"dlq,drop"`
	OnExpired          string         `yaml:"on_expired" doc:"what becomes of an expired message" default:"dlq" enum:"dlq,drop"`
	OnFiltered         string         `yaml:"on_filtered" doc:"what becomes of a message that a processor filtered (no processors in this version)" default:"drop" enum:"dlq,drop"`
	AllowRetryDrop     bool           `yaml:"allow_retry_drop" doc:"permit the loss of a failing message that its source cannot deliver again and that no dead-letter queue keeps" default:"false"`
	ProcessorTimeout   time.Duration  `yaml:"processor_timeout" doc:"bound of one processor (no processors in this version)" default:"5s"`
	RateLimit          float64        `yaml:"rate_limit" doc:"messages a second; 0 is no limit" default:"0"`
	MaxAge             time.Duration  `yaml:"max_age" doc:"older messages are expired; 0s is no limit" default:"0s"`
	MaxHops            int            `yaml:"max_hops" doc:"bridges that a message may have crossed" default:"8" min:"1"`
	AllowCycle         bool           `yaml:"allow_cycle" doc:"permit routes that lead back to where they began" default:"false"`
	Backoff            BackoffSpec    `yaml:"backoff" doc:"waits between tries of one message"`
}

// BackoffSpec describes exponentially growing waits.
type BackoffSpec struct {
	InitialInterval time.Duration `yaml:"initial_interval" doc:"the first wait" default:"1s"`
	MaxInterval     time.Duration `yaml:"max_interval" doc:"the longest wait" default:"30s"`
	Multiplier      float64       `yaml:"multiplier" doc:"growth from wait to wait" default:"2" min:"1"`
	Jitter          *float64      `yaml:"jitter" doc:"part of each wait that is random, 0 to 1" default:"0.2" max:"1"`
}

// Report collects faults of a spec. path is relative to whatever is checked
// (options.session.broker_url); what says what is wrong, hint what to write
// instead.
type Report func(path, what, hint string)

// Problem is one fault of a spec.
type Problem struct {
	// Path names the field from the root of the spec: routes[0].policy.send_timeout.
	Path string
	What string
	Hint string
	// Warning marks what is allowed but should be known.
	Warning bool
}

func (p Problem) String() string {
	s := p.Path + ": " + p.What
	if p.Hint != "" {
		s += " (" + p.Hint + ")"
	}
	return s
}

// UsesOutbox reports whether a route of the spec needs an outbox.
func (s *Spec) UsesOutbox() bool {
	for i := range s.Routes {
		if s.Routes[i].DeliveryMode == SharedOutbox {
			return true
		}
	}
	return false
}
