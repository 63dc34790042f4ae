package gobridge

import "slices"

// The service levels of a whole bridge, in [BridgeHealth].
const (
	BridgeFull     = "full"
	BridgeDegraded = "degraded"
	BridgeNone     = "none"
)

// The roles of a bridge with exclusive sessions: it owns one of them, or none.
const (
	RoleActive  = "active"
	RoleStandby = "standby"
)

// Reason says in one short sentence why something is not at the service level
// that was asked for. It names a session or a route, or neither when it is about
// the bridge as a whole, and holds no secret.
type Reason struct {
	SessionID string `json:"session_id,omitempty"`
	RouteID   string `json:"route_id,omitempty"`
	Reason    string `json:"reason"`
}

// BridgeHealth is what a bridge knows of itself. The JSON names are part of the
// HTTP contract (deephealth).
type BridgeHealth struct {
	BridgeID   string `json:"bridge_id"`
	InstanceID string `json:"instance_id"`
	// Ready tells whether the bridge is at LevelFull.
	Ready bool `json:"ready"`
	// ServiceLevel is BridgeFull, BridgeDegraded or BridgeNone.
	ServiceLevel string `json:"service_level"`
	// Role is RoleActive or RoleStandby in a bridge with exclusive sessions, else empty.
	Role     string          `json:"role,omitempty"`
	Sessions []SessionStatus `json:"sessions"`
	Routes   []RouteHealth   `json:"routes"`
}

// SessionStatus is the [SessionHealth] of one session in its outside form.
type SessionStatus struct {
	ID                       string       `json:"id"`
	State                    string       `json:"state"`
	Connected                bool         `json:"connected"`
	SessionPresent           bool         `json:"session_present"`
	HasLease                 bool         `json:"has_lease"`
	SubscriptionsWanted      int          `json:"subscriptions_wanted"`
	SubscriptionsActive      int          `json:"subscriptions_active"`
	ServiceLevel             ServiceLevel `json:"service_level"`
	UnsettledCount           int          `json:"unsettled_count"`
	OldestUnsettledAgeMS     int64        `json:"oldest_unsettled_age_ms"`
	ReceiveWindowUtilization float64      `json:"receive_window_utilization"`
	RecoveryRecycleCount     int          `json:"recovery_recycle_count"`
	LastError                string       `json:"last_error"`
	Reasons                  []string     `json:"reasons,omitempty"`
}

// Status names the session that h describes.
func (h *SessionHealth) Status(id string) SessionStatus {
	return SessionStatus{
		ID:                       id,
		State:                    h.State,
		Connected:                h.Connected,
		SessionPresent:           h.SessionPresent,
		HasLease:                 h.HasLease,
		SubscriptionsWanted:      h.SubscriptionsWanted,
		SubscriptionsActive:      h.SubscriptionsActive,
		ServiceLevel:             h.ServiceLevel,
		UnsettledCount:           h.UnsettledCount,
		OldestUnsettledAgeMS:     h.OldestUnsettledAge.Milliseconds(),
		ReceiveWindowUtilization: h.ReceiveWindowUtilization,
		RecoveryRecycleCount:     h.RecoveryRecycleCount,
		LastError:                h.LastError,
		Reasons:                  slices.Clone(h.Reasons),
	}
}

// RouteHealth is what a route knows of itself.
type RouteHealth struct {
	ID           string `json:"id"`
	DeliveryMode string `json:"delivery_mode"`
	// Ready tells whether the route can accept and forward.
	Ready bool `json:"ready"`
	// InFlight counts the deliveries admitted and not settled.
	InFlight int `json:"in_flight"`
	// OutboxDepth counts the records of the route that wait in the outbox; 0 for
	// direct_hold.
	OutboxDepth int `json:"outbox_depth"`
	// OldestUnsettledAgeMS is the age of the oldest delivery in flight, in milliseconds;
	// what waits in the outbox is settled at its source.
	OldestUnsettledAgeMS int64 `json:"oldest_unsettled_age_ms"`
	// LastError is the latest failure of the route that is still true.
	LastError string `json:"last_error"`
	// Reasons says, one short sentence each, why the route is not ready.
	Reasons []string `json:"reasons,omitempty"`
}

// Topology is the graph of a bridge: sessions carry receivers and senders, a
// route leads from one receiver over its bindings to senders. Nodes name each
// other by id, in the order of the spec. It holds no credentials.
type Topology struct {
	BridgeID   string             `json:"bridge_id"`
	InstanceID string             `json:"instance_id"`
	Sessions   []TopologySession  `json:"sessions"`
	Receivers  []TopologyReceiver `json:"receivers"`
	Routes     []TopologyRoute    `json:"routes"`
	Bindings   []TopologyBinding  `json:"bindings"`
	Senders    []TopologySender   `json:"senders"`
}

// TopologySession is a session. Endpoints are "host:port"; ClientID is its name at its
// broker, with the suffix.
type TopologySession struct {
	ID          string   `json:"id"`
	ClientID    string   `json:"client_id,omitempty"`
	Transport   string   `json:"transport"`
	SessionMode string   `json:"session_mode"`
	Endpoints   []string `json:"endpoints"`
}

// TopologyReceiver is a receiver; one without a session names its transport.
type TopologyReceiver struct {
	ID        string          `json:"id"`
	SessionID string          `json:"session_id,omitempty"`
	Transport string          `json:"transport,omitempty"`
	Topics    []TopologyTopic `json:"topics"`
}

// TopologyTopic is one subscription.
type TopologyTopic struct {
	Topic string `json:"topic"`
	QoS   int    `json:"qos"`
}

// TopologyRoute is a route.
type TopologyRoute struct {
	ID           string   `json:"id"`
	ReceiverID   string   `json:"receiver_id"`
	DeliveryMode string   `json:"delivery_mode"`
	DispatchMode string   `json:"dispatch_mode"`
	BindingIDs   []string `json:"binding_ids"`
}

// TopologyBinding is a binding; Address is its template as configured.
type TopologyBinding struct {
	ID       string `json:"id"`
	RouteID  string `json:"route_id"`
	SenderID string `json:"sender_id"`
	Address  string `json:"address"`
}

// TopologySender is a sender; one without a session names its transport.
type TopologySender struct {
	ID        string `json:"id"`
	SessionID string `json:"session_id,omitempty"`
	Transport string `json:"transport,omitempty"`
}

// Topology draws the graph of a spec that [Spec.Check] has completed.
func (s *Spec) Topology(k *Kinds) Topology {
	t := Topology{
		BridgeID:   s.Bridge.ID,
		InstanceID: s.Bridge.InstanceID,
		Sessions:   []TopologySession{},
		Receivers:  []TopologyReceiver{},
		Routes:     []TopologyRoute{},
		Bindings:   []TopologyBinding{},
		Senders:    []TopologySender{},
	}
	for i := range s.Sessions {
		n := &s.Sessions[i]
		session := TopologySession{ID: n.ID, Transport: n.Transport, SessionMode: n.Mode, Endpoints: []string{}}
		if tr := k.Transport(n.Transport); tr != nil && tr.Endpoints != nil {
			session.Endpoints = append(session.Endpoints, tr.Endpoints(n)...)
		}
		if tr := k.Transport(n.Transport); tr != nil && tr.ClientID != nil {
			session.ClientID = tr.ClientID(n)
		}
		t.Sessions = append(t.Sessions, session)
	}
	for i := range s.Receivers {
		n := &s.Receivers[i]
		r := TopologyReceiver{ID: n.ID, SessionID: n.SessionID, Transport: n.Transport, Topics: []TopologyTopic{}}
		for _, topic := range n.Topics {
			r.Topics = append(r.Topics, TopologyTopic{Topic: topic.Topic, QoS: *topic.QoS})
		}
		t.Receivers = append(t.Receivers, r)
	}
	for i := range s.Senders {
		n := &s.Senders[i]
		t.Senders = append(t.Senders, TopologySender{ID: n.ID, SessionID: n.SessionID, Transport: n.Transport})
	}
	for i := range s.Routes {
		n := &s.Routes[i]
		r := TopologyRoute{
			ID: n.ID, ReceiverID: n.ReceiverID, DeliveryMode: n.DeliveryMode, DispatchMode: n.DispatchMode,
			BindingIDs: []string{},
		}
		for j := range n.Bindings {
			b := &n.Bindings[j]
			r.BindingIDs = append(r.BindingIDs, b.ID)
			t.Bindings = append(t.Bindings, TopologyBinding{
				ID: b.ID, RouteID: n.ID, SenderID: b.SenderID, Address: b.Address,
			})
		}
		t.Routes = append(t.Routes, r)
	}
	return t
}
