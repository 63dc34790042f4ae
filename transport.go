package gobridge

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/gobridge/gobridge/metric"
)

// Emit offers deliveries to a route, in receive order, and returns how many the
// route took. The receiver keeps the rest and offers them again, first, after
// [Receiver.Resume]. Emit does not block on the network or on a store.
//
// An error is a refusal of the delivery at index n: the route cannot work on it
// at all. The receiver then applies its transport's recovery.
type Emit func(batch []*Delivery) (n int, err error)

// Receiver takes messages from a source for one route.
type Receiver interface {
	// Run offers deliveries to emit until ctx ends; then it returns nil and emit is
	// not called any more. Deliveries already taken can still be settled. Calls of
	// emit never overlap. Run is called at most once at a time and may be called
	// again after it returned.
	Run(ctx context.Context, emit Emit) error
	// Resume tells the receiver that the route has room again. It may offer
	// deliveries on the calling goroutine. Safe from any goroutine, also when Run is
	// not running.
	Resume()
	// Flush pushes out the acknowledgements buffered since the last call. It does
	// not wait for the network.
	Flush()
}

// Outbound is one message on its way to one destination. The engine owns it; a
// sender may keep it only until it has called Done on its Completion.
type Outbound struct {
	Envelope *Envelope
	// Address is the rendered destination: an MQTT topic, a queue URL.
	Address string
	// Timeout bounds one physical send. It runs only while the destination is
	// available. Zero means the safety net of 60 s.
	Timeout time.Duration
	// Completion is told the outcome.
	Completion Completion
	// Ref is the engine's own mark.
	Ref uint32
	// Slot is the sender's own mark while it holds the message.
	Slot uint32
}

// Completion receives the outcomes of sends. Senders call it from their own
// goroutines, never from inside [Sender.Send], without holding locks.
type Completion interface {
	// Done reports the outcome of one send: nil after the destination confirmed it,
	// else an error that wraps an *[Error]. Called exactly once for each message
	// that Send took.
	Done(m *Outbound, err error)
	// Flush ends a burst of Done calls: the settlements that they caused go out.
	Flush()
}

// Sender hands messages to a destination. Safe for concurrent use.
type Sender interface {
	// Send takes one message, in order, and returns at once: nil means that the
	// message was taken and that m.Completion will hear of it; an error, wrapping an
	// *[Error], means that it was not taken. An error with Outage set says that
	// nothing can be sent at the moment; Notify tells when that has changed. Order
	// of Send is the order of first transmission.
	Send(m *Outbound) error
	// Flush pushes out what Send buffered, without waiting for the network.
	Flush()
	// Available returns nil while messages can be handed over, else the typed reason.
	Available() error
	// Notify registers f to be called, without locks held, each time the sender has
	// become available. Called before the session runs.
	Notify(f func())
}

// Session is one connection to a broker with everything that uses it. An
// instance is single-use: after Run returned it is dead and the engine opens
// another one.
type Session interface {
	// Run connects and keeps the session connected until ctx ends; then it
	// disconnects in good order (what was acknowledged is written first) and returns
	// nil. It returns an error only when this instance cannot go on; the error wraps
	// ErrSessionUnrecoverable. Before it returns, every message that Send took has
	// been completed.
	Run(ctx context.Context) error
	// Receiver returns the receiver of the session, nil when it has none.
	Receiver() Receiver
	// Sender returns the sender with the given id, nil when there is none.
	Sender(id string) Sender
	// Health is a snapshot. Cheap enough for a probe every second.
	Health() SessionHealth
}

// ServiceLevel says how much of its job a session or a bridge can do.
type ServiceLevel string

// The service levels, from best to worst.
const (
	LevelFull       ServiceLevel = "full"
	LevelSubscribed ServiceLevel = "subscribed"
	LevelConnected  ServiceLevel = "connected"
	LevelNone       ServiceLevel = "none"
)

// SessionHealth is what a session knows of itself.
type SessionHealth struct {
	// State is one word for people: connecting, connected, subscribing, ready,
	// paused, recovering, drained, ended, closed, failed.
	State          string
	Connected      bool
	SessionPresent bool
	HasLease       bool
	// SubscriptionsWanted and SubscriptionsActive count filters.
	SubscriptionsWanted int
	SubscriptionsActive int
	ServiceLevel        ServiceLevel
	// UnsettledCount counts QoS 1 and 2 packets of this connection that await their
	// settlement; OldestUnsettledAge is the age of the oldest.
	UnsettledCount     int
	OldestUnsettledAge time.Duration
	// ReceiveWindowUtilization is UnsettledCount / receive_maximum; over 1 when the
	// broker ignores the window.
	ReceiveWindowUtilization float64
	RecoveryRecycleCount     int
	// LastError is the latest fault that is still true or not yet superseded by a
	// converged reconcile; it holds no secret.
	LastError string
	// Reasons says, one short sentence each, why the session is not at LevelFull.
	Reasons []string
}

// Transport describes one technology: what its options look like, how they are
// checked, how a session is opened. A value of it is one line in package kinds.
type Transport struct {
	// Name is the word in the config: mqtt.
	Name string
	// SessionOptions, ReceiverOptions and SenderOptions return a pointer to a new
	// options struct that holds the defaults. Its yaml and doc tags are the source
	// of the config reference and of the JSON Schema. Nil: the config has no options
	// there, and the specs' Options are what the embedder puts into them.
	SessionOptions  func() any
	ReceiverOptions func() any
	SenderOptions   func() any
	// Check completes the derived defaults of a session's options in place and
	// reports every fault in them. Paths are relative to the session spec
	// (options.session.broker_url); those that begin with receiver. are relative to
	// the receiver spec (receiver.topics[0].topic), those that begin with senders[i].
	// to the i-th sender spec of the use. The options have the types that the
	// functions above return. Check never panics, whatever they hold. Nil: nothing is
	// checked.
	Check func(use *SessionUse, report Report)
	// Warn reports what is allowed and should be known, with the paths of Check. It
	// is called after Check found no fault. Nil: there are no warnings.
	Warn func(use *SessionUse, report Report)
	// Endpoints names the brokers of a session in a normal form ("host:port"), so
	// that two sessions on one broker are recognised. Nil, or an empty result: they are
	// not, so that neither client ids nor cycles across sessions are compared.
	Endpoints func(s *SessionSpec) []string
	// ClientID is the name of a session at its broker, which no two sessions there
	// may share. Nil: sessions have none.
	ClientID func(s *SessionSpec) string
	// OwnClientID reports that the session has another client id in each process that
	// runs the config. Nil: it has the same in all.
	OwnClientID func(s *SessionSpec) bool
	// NoLocal reports that the broker does not return to the session what the
	// session sent: it cuts a cycle. Nil: it does return it.
	NoLocal func(s *SessionSpec) bool
	// Source tells what the source of a session does with what the session has not
	// settled; package guarantee explains it. Nil: it keeps everything.
	Source func(s *SessionSpec) SourceTraits
	// Confirms reports whether destinations answer for what a sender sends of a message
	// that came with the given QoS. Nil: they do.
	Confirms func(s *SenderSpec, qos uint8) bool
	// DefaultAddress is the address template of a sender's bindings that have none of
	// their own, empty for none. Nil: senders have none.
	DefaultAddress func(s *SenderSpec) string
	// CheckAddress reports why a rendered address cannot be sent to; a template is
	// checked with every placeholder replaced by a plain word. Nil: all are right.
	CheckAddress func(address string) error
	// Carry makes what must outlive the instances of one session: the waits between
	// reconnects and recoveries, what was counted once. Nil: nothing does.
	Carry func() any
	// Subscriptions tells what the managed subscription history knows of a session;
	// known is false without a baseline. Nil: sessions have no history.
	Subscriptions func(ctx context.Context, h History, use *SessionUse) (all []SubscriptionState, known bool, err error)
	// Seed gives a session a baseline by hand (D4): the broker is taken to hold the
	// filters of the config and the further ones. With discard the next connect
	// throws the session in the broker away instead, with whatever is queued there.
	// Nil: sessions take no baseline.
	Seed func(ctx context.Context, h History, use *SessionUse, discard bool, further ...string) error
	// Probe connects to each endpoint of a session as the session would and reports
	// every step. A running session of the same config goes on undisturbed, and nothing
	// is left at the brokers. It returns early when ctx ends. Nil: the transport cannot.
	Probe func(ctx context.Context, use *SessionUse, env Env) []ProbeStep
	// Open builds a session instance. It does not connect. Never nil.
	Open func(use *SessionUse, env Env) (Session, error)
}

// SourceTraits is what the options of a session settle about its source.
type SourceTraits struct {
	// Keeps is how long the source of a durable session keeps messages while the bridge
	// is away, math.MaxInt64 for ever.
	Keeps time.Duration
	// KeepsField is the field of the session spec that says so
	// (options.session.session_expiry_interval).
	KeepsField string
	// MayDowngrade tells that the broker may serve subscriptions and publishes of the
	// session with a lower QoS than they ask for; DowngradeField permits it.
	MayDowngrade   bool
	DowngradeField string
}

// SessionUse is a session with everything in the spec that uses it.
type SessionUse struct {
	Bridge   *BridgeSpec
	Session  *SessionSpec
	Receiver *ReceiverSpec
	Senders  []*SenderSpec
	// Route is the route that the receiver feeds, nil without a receiver.
	Route *RouteSpec
}

// Use returns a session with everything that uses it, nil when there is no session of
// that id. The spec has been completed by [Spec.Check].
func (s *Spec) Use(sessionID string) *SessionUse {
	i := slices.IndexFunc(s.Sessions, func(n SessionSpec) bool { return n.ID == sessionID })
	if i < 0 {
		return nil
	}
	use := &SessionUse{Bridge: &s.Bridge, Session: &s.Sessions[i]}
	for i := range s.Senders {
		if s.Senders[i].SessionID == sessionID {
			use.Senders = append(use.Senders, &s.Senders[i])
		}
	}
	for i := range s.Receivers {
		if s.Receivers[i].SessionID == sessionID {
			use.Receiver = &s.Receivers[i]
		}
	}
	for i := range s.Routes {
		if use.Receiver != nil && s.Routes[i].ReceiverID == use.Receiver.ID {
			use.Route = &s.Routes[i]
		}
	}
	return use
}

// Env is what the engine gives to whatever it opens.
type Env struct {
	Logger  *slog.Logger
	Metrics *metric.Registry
	// History is for the sessions. Nil: they have none, and know nothing of what an
	// earlier process subscribed to.
	History History
	// Quiesce empties the route that the session's receiver feeds: what only waits
	// there is given back by Delivery.Retry, uncharged, and what is physically under
	// way is awaited (B1). It returns nil once the route holds nothing of this receiver,
	// else the cause of ctx. The receiver offers nothing meanwhile; afterwards the
	// route takes deliveries as before. Nil without a receiver. It is called without
	// locks held: it calls Resume and Flush of the receiver and Retry of deliveries.
	Quiesce func(ctx context.Context) error
	// DeadLetters: there is a dead-letter queue for deliveries that the receiver marks as
	// Unwanted. Without one such messages have no way out: that the policy of a route
	// drops what fails, as it then has to, permits nobody to lose a queue.
	DeadLetters bool
	// Carried is what [Transport.Carry] made for this session: it outlives instances.
	Carried any
	// Credentials are those of credentials_uri. Nil: the options hold them.
	Credentials Credentials
	// Fence limits what the session may send, and connects it may begin, while another
	// process may own it. Nil: it always may.
	Fence *Fence
	// Doubt tells that the connection was lost: another process may have become the
	// owner of the session, and taken its place at the broker. Nil: there is no owner.
	Doubt func()
}

// SessionControl is implemented by sessions that keep state in their broker and wait
// for a person when it is not as they need it. Safe for concurrent use.
type SessionControl interface {
	// Retry ends the wait after a permanent cause and looks anew at everything that
	// may have changed: the history, the credential, the broker's limits.
	Retry()
	// Drain removes every subscription from the broker and returns when nothing that
	// had been queued there is left unsettled, as far as the broker shows it. The
	// session stays connected, without subscriptions, until Retry.
	Drain(ctx context.Context) error
	// End removes the session from the broker, with whatever is queued there. It stays
	// closed until Retry.
	End(ctx context.Context) error
}

// SubscriptionState is one filter of a durable session as the managed subscription
// history knows it.
type SubscriptionState struct {
	Filter string `json:"filter"`
	// Wanted: the config has it. Granted: the broker is known to serve it on the terms
	// of the config. Removed: it has left the config and the broker; messages that it
	// left in the broker's queue are dead-lettered.
	Wanted  bool `json:"wanted"`
	Granted bool `json:"granted"`
	Removed bool `json:"removed"`
}

// SessionSubscriptions is what the managed subscription history knows of one session.
type SessionSubscriptions struct {
	SessionID string `json:"session_id"`
	// ClientID is the session's name at its broker, empty where it has none.
	ClientID string `json:"client_id"`
	// Known is false without a baseline: nobody has seen what the broker holds.
	Known   bool                `json:"known"`
	Filters []SubscriptionState `json:"filters"`
}

// Kinds is the list of everything that a spec can name. Package kinds builds the
// complete one; an embedder may build a smaller one.
type Kinds struct {
	Transports []*Transport
	Outboxes   []*OutboxKind
	DLQs       []*DLQKind
	Ledgers    []*LedgerKind
	Histories  []*HistoryKind
	Leases     []*LeaseKind
	// Credentials lists the schemes that credentials_uri may have.
	Credentials []*CredentialKind
}

// Transport returns the transport of that name, nil when there is none.
func (k *Kinds) Transport(name string) *Transport {
	for _, t := range k.Transports {
		if t.Name == name {
			return t
		}
	}
	return nil
}

// Credential returns the kind of that scheme of credentials_uri, nil when there is none.
func (k *Kinds) Credential(scheme string) *CredentialKind {
	for _, c := range k.Credentials {
		if c.Scheme == scheme {
			return c
		}
	}
	return nil
}

// StoreKind is the name and the options of one kind of store.
type StoreKind struct {
	Name    string
	Options func() any
}

// Stores lists the kinds for one role, a key of the config's stores block.
func (k *Kinds) Stores(role string) []StoreKind {
	var all []StoreKind
	switch role {
	case "outbox":
		for _, s := range k.Outboxes {
			all = append(all, StoreKind{s.Name, s.Options})
		}
	case "dlq":
		for _, s := range k.DLQs {
			all = append(all, StoreKind{s.Name, s.Options})
		}
	case "replay_ledger":
		for _, s := range k.Ledgers {
			all = append(all, StoreKind{s.Name, s.Options})
		}
	case "managed_subscriptions":
		for _, s := range k.Histories {
			all = append(all, StoreKind{s.Name, s.Options})
		}
	case "lease":
		for _, s := range k.Leases {
			all = append(all, StoreKind{s.Name, s.Options})
		}
	}
	return all
}

// DefaultStore is the kind of a role whose type is not written: the durable one where
// there is one.
func (k *Kinds) DefaultStore(role string) string {
	for _, s := range k.Stores(role) {
		if s.Name == StoreSQLite {
			return StoreSQLite
		}
	}
	return StoreMemory
}
