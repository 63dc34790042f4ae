package gobridge

import (
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// The test transport: brokers by name, as little of its own as possible.
type (
	testSession  struct{ Broker, Client, Fault, Warning string }
	testReceiver struct{ Prefetch int }
	testSender   struct {
		Default string
		Level   int `yaml:"level" default:"3" max:"9"`
	}
)

func testKinds() *Kinds {
	session := func(s *SessionSpec) *testSession { return s.Options.(*testSession) }
	return &Kinds{
		Transports: []*Transport{{
			Name:            "test",
			SessionOptions:  func() any { return new(testSession) },
			ReceiverOptions: func() any { return new(testReceiver) },
			SenderOptions:   func() any { return new(testSender) },
			Check: func(use *SessionUse, report Report) {
				if f := session(use.Session).Fault; f != "" {
					report(f, "is wrong", "write it right")
				}
			},
			Warn: func(use *SessionUse, report Report) {
				if w := session(use.Session).Warning; w != "" {
					report(w, "is odd", "")
				}
			},
			Endpoints: func(s *SessionSpec) []string {
				return strings.FieldsFunc(session(s).Broker, func(r rune) bool { return r == ',' })
			},
			ClientID:       func(s *SessionSpec) string { return session(s).Client },
			NoLocal:        func(s *SessionSpec) bool { return strings.HasPrefix(session(s).Client, "nolocal") },
			DefaultAddress: func(s *SenderSpec) string { return s.Options.(*testSender).Default },
			CheckAddress:   ValidateTopic,
		}, {Name: "bare"}},
		DLQs:    []*DLQKind{{Name: "memory", Options: func() any { return new(testReceiver) }}, {Name: "disk"}},
		Ledgers: []*LedgerKind{{Name: "memory"}},
		Credentials: []*CredentialKind{{Scheme: "test", Check: func(uri string) error {
			if uri == "test://wrong" {
				return errors.New("write test://right")
			}
			return nil
		}}},
	}
}

// pair is a spec of two brokers and one route, without a fault.
func pair() *Spec {
	return &Spec{
		Bridge:    BridgeSpec{ID: "b"},
		Sessions:  []SessionSpec{{ID: "in", Transport: "test", Options: &testSession{Broker: "A"}}, {ID: "out", Transport: "test", Options: &testSession{Broker: "B"}}},
		Receivers: []ReceiverSpec{{ID: "r", SessionID: "in", Topics: []TopicSpec{{Topic: "a/#"}}}},
		Senders:   []SenderSpec{{ID: "s", SessionID: "out"}},
		Routes:    []RouteSpec{{ID: "up", ReceiverID: "r", Bindings: []BindingSpec{{SenderID: "s", Address: "{topic}"}}}},
	}
}

// faults returns the problems that are no warnings, as text.
func faults(problems []Problem) []string {
	var all []string
	for _, p := range problems {
		if !p.Warning {
			all = append(all, p.String())
		}
	}
	return all
}

func warnings(problems []Problem) []string {
	var all []string
	for _, p := range problems {
		if p.Warning {
			all = append(all, p.String())
		}
	}
	return all
}

const (
	memoryDLQ    = "stores.dlq: dead letters are kept in memory and are lost when the process ends (there is no durable store here)"
	memoryLedger = "stores.replay_ledger: the counts of failed attempts are kept in memory and are lost when the process ends (there is no durable store here)"
)

// Covers: S1-409, S1-502
func TestCheckCompletesAShortSpec(t *testing.T) {
	inline := &Spec{
		Bridge:   BridgeSpec{ID: "b"},
		Sessions: pair().Sessions,
		Routes: []RouteSpec{{
			ID:       "up",
			Receiver: &ReceiverSpec{SessionID: "in", Topics: []TopicSpec{{Topic: "a/#"}}},
			Bindings: []BindingSpec{{Sender: &SenderSpec{SessionID: "out", Options: &testSender{Default: "x/{topic}"}}}},
		}},
	}
	problems := inline.Check(testKinds())
	if diff := cmp.Diff([]string{memoryDLQ, memoryLedger}, warnings(problems)); diff != "" || len(problems) != 2 {
		t.Errorf("problems %v", problems)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Skip("the machine has no host name")
	}
	lease := LeaseSpec{TTL: 15 * time.Second, MaxRenewFails: 3, StepDownGrace: 5 * time.Second}
	want := &Spec{
		Bridge: BridgeSpec{
			ID: "b", InstanceID: host, DataDir: "./gobridge-data", DeploymentMode: "standalone",
			ShutdownTimeout: 30 * time.Second, DrainTimeout: 20 * time.Second,
		},
		Stores: StoresSpec{
			DLQ:          StoreSpec{Type: "memory", Options: &testReceiver{}},
			ReplayLedger: StoreSpec{Type: "memory"},
		},
		Sessions: []SessionSpec{
			{ID: "in", Transport: "test", Mode: "persistent", Lease: lease, Options: &testSession{Broker: "A"}},
			{ID: "out", Transport: "test", Mode: "ephemeral", Lease: lease, Options: &testSession{Broker: "B"}},
		},
		Receivers: []ReceiverSpec{{ID: "up", SessionID: "in", Topics: []TopicSpec{{Topic: "a/#", QoS: new(1)}}, Identity: "both", Options: &testReceiver{}}},
		Senders:   []SenderSpec{{ID: "up/0", SessionID: "out", Options: &testSender{Default: "x/{topic}", Level: 3}}},
		Routes: []RouteSpec{{
			ID: "up", ReceiverID: "up", DeliveryMode: "direct_hold", DispatchMode: "single",
			Bindings: []BindingSpec{{ID: "up/0", SenderID: "up/0", Address: "x/{topic}"}},
			Policy: PolicySpec{
				MaxInFlight: 192, SendTimeout: 30 * time.Second, SendRetryBudget: new(time.Minute), OnUnavailable: "hold",
				MaxReplayAttempts: 5, ReplayBudget: 15 * time.Minute, MaxOutboxDepth: 10000,
				OnPermanentFailure: "dlq", OnExpired: "dlq", OnFiltered: "drop", ProcessorTimeout: 5 * time.Second, MaxHops: 8,
				Backoff: BackoffSpec{InitialInterval: time.Second, MaxInterval: 30 * time.Second, Multiplier: 2, Jitter: new(0.2)},
			},
		}},
	}
	if diff := cmp.Diff(want, inline); diff != "" {
		t.Errorf("completed spec (-want +got):\n%s", diff)
	}
	again := inline.Check(testKinds())
	if diff := cmp.Diff(want, inline); diff != "" || len(again) != 2 {
		t.Errorf("a second Check changed the spec or found %v:\n%s", again, diff)
	}
}

func TestCheckKeepsWhatIsWritten(t *testing.T) {
	s := pair()
	s.Receivers[0].Topics[0].QoS = new(0)
	s.Routes[0].Policy.SendRetryBudget = new(time.Duration(0))
	s.Routes[0].Policy.Backoff.Jitter = new(0.0)
	s.Sessions[0].Mode = ModePersistent
	if got := faults(s.Check(testKinds())); got != nil {
		t.Fatal(got)
	}
	p := s.Routes[0].Policy
	if *s.Receivers[0].Topics[0].QoS != 0 || *p.SendRetryBudget != 0 || *p.Backoff.Jitter != 0 || s.Sessions[0].Mode != ModePersistent {
		t.Errorf("a written zero was replaced: %+v", p)
	}
}

func TestCheckRefuses(t *testing.T) {
	route := func(f func(r *RouteSpec)) func(*Spec) { return func(s *Spec) { f(&s.Routes[0]) } }
	policy := func(f func(p *PolicySpec)) func(*Spec) { return func(s *Spec) { f(&s.Routes[0].Policy) } }
	for _, tc := range []struct {
		name string
		edit func(s *Spec)
		want []string
	}{
		{"nothing to do", func(s *Spec) { *s = Spec{Bridge: s.Bridge} }, []string{
			"routes: there are no routes, so nothing would be moved (write a route with a receiver and a binding)",
		}},
		{"no bridge id", func(s *Spec) { s.Bridge.ID = "" }, []string{
			"bridge.id: the bridge has no id (write id: and a name that no other bridge has)",
		}},
		{"drain longer than shutdown", func(s *Spec) { s.Bridge.DrainTimeout = time.Minute }, []string{
			"bridge.drain_timeout: drain_timeout 1m0s is longer than shutdown_timeout 30s, of which it is a part (write at most 30s, or a longer shutdown_timeout)",
		}},
		{"negative duration", func(s *Spec) { s.Bridge.ShutdownTimeout = -time.Second }, []string{
			"bridge.shutdown_timeout: must not be negative, but is -1s (write a duration such as 30s)",
		}},

		{"ids missing", func(s *Spec) {
			s.Sessions = append(s.Sessions, SessionSpec{Transport: "test"})
			s.Receivers = append(s.Receivers, ReceiverSpec{})
			s.Senders = append(s.Senders, SenderSpec{SessionID: "out"})
			s.Routes[0].ID = ""
		}, []string{
			"sessions[2].id: the session has no id (write id: and a name that no other session has)",
			"receivers[1].id: the receiver has no id (write id: and a name that no other receiver has)",
			"senders[1].id: the sender has no id (write id: and a name that no other sender has)",
			"routes[0].id: the route has no id (write id: and a name that no other route has)",
			"receivers[1].session_id: the receiver has no session (write session_id: and the id of a session)",
		}},
		{"ids repeated", func(s *Spec) {
			s.Sessions = append(s.Sessions, SessionSpec{ID: "in", Transport: "test", Options: &testSession{Broker: "C"}})
			s.Senders = append(s.Senders, SenderSpec{ID: "s", SessionID: "out"})
			s.Routes = append(s.Routes, RouteSpec{
				ID: "up", Receiver: &ReceiverSpec{ID: "r", SessionID: "out", Topics: []TopicSpec{{Topic: "b"}}},
				Bindings: []BindingSpec{{ID: "up/0", SenderID: "s", Address: "c"}},
			})
		}, []string{
			`sessions[2].id: the id "in" belongs to another session, sessions[0] (give each session an id of its own)`,
			`routes[1].receiver.id: the id "r" belongs to another receiver, receivers[0] (give each receiver an id of its own)`,
			`senders[1].id: the id "s" belongs to another sender, senders[0] (give each sender an id of its own)`,
			`routes[1].id: the id "up" belongs to another route, routes[0] (give each route an id of its own)`,
			`routes[1].bindings[0].id: the id "up/0" belongs to another binding, routes[0].bindings[0] (give each binding an id of its own)`,
			`routes[1].receiver_id: receiver "r" already feeds route "up" (a receiver feeds one route: add a binding to that route, or another session and receiver)`,
		}},
		{"ids dangling", func(s *Spec) {
			s.Receivers[0].SessionID = "inn"
			s.Senders[0].SessionID = "ou"
			s.Routes = append(s.Routes, RouteSpec{ID: "x", ReceiverID: "q", Bindings: []BindingSpec{{SenderID: "p"}}})
		}, []string{
			`receivers[0].session_id: there is no session "inn" (write one of in, out)`,
			`senders[0].session_id: there is no session "ou" (write one of in, out)`,
			`routes[1].receiver_id: there is no receiver "q" (write one of r)`,
			`routes[1].bindings[0].sender_id: there is no sender "p" (write one of s)`,
		}},
		{"nothing to name", func(s *Spec) { s.Receivers, s.Senders, s.Sessions = nil, nil, nil }, []string{
			`routes[0].receiver_id: there is no receiver "r" (there are no receivers yet; write one)`,
			`routes[0].bindings[0].sender_id: there is no sender "s" (there are no senders yet; write one)`,
		}},

		// Covers: S1-517
		{"two receivers on a session", func(s *Spec) {
			s.Routes = append(s.Routes, RouteSpec{
				ID: "two", Receiver: &ReceiverSpec{SessionID: "in", Topics: []TopicSpec{{Topic: "b"}}},
				Bindings: []BindingSpec{{SenderID: "s", Address: "b"}},
			})
		}, []string{
			`routes[1].receiver.session_id: session "in" already has a receiver, receivers[0] (give each receiver a session of its own; one receiver may have many topics)`,
		}},
		// Covers: S1-517
		{"receiver of two routes", func(s *Spec) {
			s.Routes = append(s.Routes, RouteSpec{ID: "two", ReceiverID: "r", Bindings: []BindingSpec{{SenderID: "s", Address: "b"}}})
		}, []string{
			`routes[1].receiver_id: receiver "r" already feeds route "up" (a receiver feeds one route: add a binding to that route, or another session and receiver)`,
		}},
		{"receiver of no route", func(s *Spec) {
			s.Receivers = append(s.Receivers, ReceiverSpec{ID: "idle", SessionID: "out", Topics: []TopicSpec{{Topic: "b"}}})
		}, []string{`receivers[1]: no route uses receiver "idle" (name it in a route, or remove it)`}},
		{"sender on another transport", func(s *Spec) { s.Senders[0].Transport = "bare" }, []string{
			`senders[0].transport: the sender is of transport "bare", its session "out" of "test" (remove transport: a sender with a session takes that of the session)`,
		}},
		{"sender on another transport, without an address", func(s *Spec) {
			s.Senders[0].Transport, s.Routes[0].Bindings[0].Address = "bare", ""
		}, []string{
			`senders[0].transport: the sender is of transport "bare", its session "out" of "test" (remove transport: a sender with a session takes that of the session)`,
		}},
		{"receiver of a later transport", func(s *Spec) { s.Receivers[0].SessionID, s.Receivers[0].Transport = "", "sqs" }, []string{
			"receivers[0].transport: transport sqs is not available in this version (write transport: mqtt)",
		}},
		{"session of a later transport", func(s *Spec) { s.Sessions[0].Transport = "amqp" }, []string{
			"sessions[0].transport: transport amqp is not available in this version (write transport: mqtt)",
		}},
		{"session of an unknown transport", func(s *Spec) { s.Sessions[0].Transport = "tset" }, []string{
			`sessions[0].transport: there is no transport "tset" here (write one of bare, test)`,
		}},
		{"session without transport", func(s *Spec) { s.Sessions[0].Transport = "" }, []string{
			"sessions[0].transport: the session has no transport (write transport: mqtt)",
		}},
		{"unknown mode", func(s *Spec) { s.Sessions[0].Mode = "durable" }, []string{
			`sessions[0].session_mode: "durable" is not allowed (write one of ephemeral, persistent, exclusive)`,
		}},
		{"credentials and lease", func(s *Spec) {
			s.Sessions[0].CredentialsURI = "test://right"
			s.Sessions[0].Lease.TTL = time.Minute
		}, []string{
			"sessions[0].lease: lease is for session_mode exclusive; this session is persistent (remove the block, or write session_mode: exclusive)",
		}},
		{"credentials of no source", func(s *Spec) {
			s.Sessions[0].CredentialsURI = "hunter2"
			s.Sessions[1].CredentialsURI = "test://wrong"
		}, []string{
			"sessions[0].credentials_uri: this names no source of credentials (begin with one of test://)",
			"sessions[1].credentials_uri: this is no test:// URI of a credential (write test://right)",
		}},
		{"one client twice", func(s *Spec) {
			s.Sessions[0].Options = &testSession{Broker: "A,B", Client: "me"}
			s.Sessions[1].Options = &testSession{Broker: "B", Client: "me"}
			s.Routes[0].Bindings[0].Address = "out"
		}, []string{
			`sessions[1]: session "out" is the same client "me" at B as session "in"; each would disconnect the other (give each session a client id of its own, or use one session for both)`,
		}},
		{"options of another type", func(s *Spec) {
			s.Sessions[0].Options, s.Receivers[0].Options, s.Senders[0].Options = &testSender{}, 7, testSender{}
			s.Stores.DLQ.Options = &testSender{}
		}, []string{
			"stores.dlq.options: the options are a *gobridge.testSender (use a *gobridge.testReceiver)",
			"receivers[0].options: the options are a int (use a *gobridge.testReceiver)",
			"senders[0].options: the options are a gobridge.testSender (use a *gobridge.testSender)",
			"sessions[0].options: the options are a *gobridge.testSender (use a *gobridge.testSession)",
		}},
		{"option out of range", func(s *Spec) { s.Senders[0].Options = &testSender{Level: 10} }, []string{
			"senders[0].options.level: 10 is out of range (write a value from 0 to 9)",
		}},
		{"faults of the transport", func(s *Spec) {
			s.Sessions[0].Options = &testSession{Broker: "A", Fault: "receiver.topics[0].topic"}
			s.Sessions[1].Options = &testSession{Broker: "B", Fault: "senders[0].options.x"}
			s.Sessions = append(s.Sessions, SessionSpec{ID: "third", Transport: "test", Options: &testSession{Fault: "options.y"}})
		}, []string{
			"receivers[0].topics[0].topic: is wrong (write it right)",
			"senders[0].options.x: is wrong (write it right)",
			"sessions[2].options.y: is wrong (write it right)",
		}},

		{"later stores", func(s *Spec) {
			s.Stores = StoresSpec{
				Outbox: StoreSpec{Type: "dynamodb"}, DLQ: StoreSpec{Type: "postgres"}, Lease: StoreSpec{Options: &testSender{}},
				ManagedSubscriptions: StoreSpec{Type: "memory"}, ReplayLedger: StoreSpec{Type: "postgres"},
			}
		}, []string{
			"stores.dlq.type: store type postgres is not available in this version (write type: sqlite)",
			"stores.replay_ledger.type: store type postgres is not available in this version (write type: sqlite)",
			"stores.outbox.type: store type dynamodb is not available in this version (write type: sqlite)",
			`stores.managed_subscriptions.type: there is no store type "memory" here (no kind of this store is built in)`,
			`stores.lease.type: there is no store type "memory" here (no kind of this store is built in)`,
		}},
		{"unknown store", func(s *Spec) { s.Stores.DLQ.Type, s.Stores.ReplayLedger.Type = "dsik", "none" }, []string{
			`stores.dlq.type: there is no store type "dsik" here (write one of disk, memory, none)`,
			`stores.replay_ledger.type: there is no store type "none" here (write one of memory)`,
		}},

		{"route without parts", func(s *Spec) { s.Routes[0].ReceiverID, s.Routes[0].Bindings, s.Receivers = "", nil, nil }, []string{
			"routes[0].receiver_id: the route has no receiver (write receiver_id: and the id of a receiver, or the receiver inline)",
			"routes[0].bindings: the route has no binding (write at least one binding with a sender)",
		}},
		{"binding without sender", route(func(r *RouteSpec) { r.Bindings[0].SenderID = "" }), []string{
			"routes[0].bindings[0].sender_id: the binding has no sender (write sender_id: and the id of a sender, or the sender inline)",
		}},
		{"part named and inline", func(s *Spec) {
			s.Receivers = nil
			s.Routes[0].Receiver = &ReceiverSpec{SessionID: "in"}
			s.Routes[0].Bindings[0].Sender = &SenderSpec{SessionID: "out"}
		}, []string{
			"routes[0].receiver_id: the route has a receiver_id and a receiver written inline (keep one of the two)",
			"routes[0].bindings[0].sender_id: the binding has a sender_id and a sender written inline (keep one of the two)",
		}},
		{"single with two bindings", route(func(r *RouteSpec) { r.Bindings = append(r.Bindings, BindingSpec{SenderID: "s", Address: "b"}) }), []string{
			"routes[0].dispatch_mode: dispatch_mode single has 2 bindings (write dispatch_mode: fan_out for a copy to each binding, or keep one binding)",
		}},
		{"later modes", route(func(r *RouteSpec) { r.DeliveryMode, r.Processors = SharedOutbox, []string{"f"} }), []string{
			`stores.outbox.type: there is no store type "memory" here (no kind of this store is built in)`,
			"routes[0].processors: processors is not available in this version (remove them from the route)",
		}},
		{"no address", route(func(r *RouteSpec) { r.Bindings[0].Address = "" }), []string{
			`routes[0].bindings[0].address: the binding has no address and its sender "s" no default (write an address such as "{topic}", or the sender's default_topic)`,
		}},
		{"address that is no template", route(func(r *RouteSpec) { r.Bindings[0].Address = "{topic" }), []string{
			`routes[0].bindings[0].address: address "{topic": {topic has no closing }; a literal { is written {{`,
		}},
		{"address that cannot be sent to", route(func(r *RouteSpec) { r.Bindings[0].Address = "a/{topic}/#" }), []string{
			`routes[0].bindings[0].address: address "a/{topic}/#" cannot be sent to: topic name: holds a wildcard (+ or #) (write an address that its transport accepts)`,
		}},
		{"address with a level that no topic has", func(s *Spec) {
			s.Receivers[0].Topics = []TopicSpec{{Topic: "a/+"}, {Topic: "b/#"}}
			s.Routes[0].Bindings[0].Address = "{topic[2]}"
		}, []string{
			`routes[0].bindings[0].address: address "{topic[2]}" asks for a level that no topic of the filter "a/+" has (use a lower level; levels count from 0)`,
		}},

		// Covers: S1-414
		{"wrong words", func(s *Spec) {
			s.Routes[0].DeliveryMode, s.Routes[0].DispatchMode, s.Routes[0].Policy.OnExpired = "fast", "both", "keep"
			s.Receivers[0].Identity = "name"
			s.Receivers[0].Topics[0].QoS = new(3)
			s.Bridge.DeploymentMode = "solo"
		}, []string{
			`bridge.deployment_mode: "solo" is not allowed (write one of standalone, clustered)`,
			"receivers[0].topics[0].qos: 3 is not allowed (write one of 0, 1, 2)",
			`receivers[0].identity: "name" is not allowed (write one of message_id, correlation, both)`,
			`routes[0].delivery_mode: "fast" is not allowed (write one of direct_hold, shared_outbox)`,
			`routes[0].dispatch_mode: "both" is not allowed (write one of single, fan_out)`,
			`routes[0].policy.on_expired: "keep" is not allowed (write one of dlq, drop)`,
		}},
		{"numbers out of range", policy(func(p *PolicySpec) {
			p.MaxInFlight, p.MaxReplayAttempts, p.RateLimit, p.MaxHops = -1, -2, -0.5, -3
			p.Backoff.Multiplier, p.Backoff.Jitter = 0.5, new(1.5)
			p.MaxAge = -time.Hour
		}), []string{
			"routes[0].policy.max_in_flight: -1 is out of range (write a value from 1 to 1000000)",
			"routes[0].policy.max_replay_attempts: -2 is out of range (write a value at least 0)",
			"routes[0].policy.rate_limit: -0.5 is out of range (write a value at least 0)",
			"routes[0].policy.max_age: must not be negative, but is -1h0m0s (write a duration such as 30s)",
			"routes[0].policy.max_hops: -3 is out of range (write a value at least 1)",
			"routes[0].policy.backoff.multiplier: 0.5 is out of range (write a value at least 1)",
			"routes[0].policy.backoff.jitter: 1.5 is out of range (write a value from 0 to 1)",
		}},
		{"inline parts keep their place", func(s *Spec) {
			s.Receivers = nil
			s.Routes[0].ReceiverID = ""
			s.Routes[0].Receiver = &ReceiverSpec{SessionID: "in", Topics: []TopicSpec{{Topic: "a"}, {Topic: "b", QoS: new(9)}}}
		}, []string{"routes[0].receiver.topics[1].qos: 9 is not allowed (write one of 0, 1, 2)"}},
		{"budget below one send", policy(func(p *PolicySpec) { p.SendRetryBudget = new(10 * time.Second) }), []string{
			"routes[0].policy.send_retry_budget: send_retry_budget 10s is shorter than send_timeout 30s, so that one send could spend it (write 0s, or at least 30s)",
		}},
		{"backoff upside down", policy(func(p *PolicySpec) { p.Backoff.InitialInterval = time.Minute }), []string{
			"routes[0].policy.backoff.max_interval: max_interval 30s is shorter than initial_interval 1m0s (write at least 1m0s)",
		}},
		// Covers: S1-335
		{"dead letters without a queue", func(s *Spec) {
			s.Stores.DLQ.Type = StoreNone
			s.Routes[0].Policy.OnFiltered = ActionDLQ
		}, []string{
			"routes[0].policy.on_permanent_failure: on_permanent_failure is dlq, but stores.dlq.type is none (write on_permanent_failure: drop, or remove type: none)",
			"routes[0].policy.on_expired: on_expired is dlq, but stores.dlq.type is none (write on_expired: drop, or remove type: none)",
			"routes[0].policy.on_filtered: on_filtered is dlq, but stores.dlq.type is none (write on_filtered: drop, or remove type: none)",
		}},
		// Covers: S1-335
		{"QoS 0 without a dead-letter queue", func(s *Spec) {
			s.Stores.DLQ.Type = StoreNone
			s.Routes[0].Policy.OnPermanentFailure, s.Routes[0].Policy.OnExpired = ActionDrop, ActionDrop
			s.Receivers[0].Topics = []TopicSpec{{Topic: "a"}, {Topic: "b", QoS: new(0)}}
		}, []string{
			`routes[0].policy.allow_retry_drop: QoS 0 messages ("b") cannot be delivered again by their source, and there is no dead-letter queue for those that fail (write allow_retry_drop: true to permit their loss, or remove stores.dlq.type: none)`,
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := pair()
			tc.edit(s)
			if diff := cmp.Diff(tc.want, faults(s.Check(testKinds()))); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCheckWarns(t *testing.T) {
	for _, tc := range []struct {
		name string
		edit func(s *Spec)
		want []string
	}{
		{"volatile stores asked for by name", func(s *Spec) { s.Stores.DLQ.Type, s.Stores.ReplayLedger.Type = "memory", "memory" }, []string{memoryDLQ, memoryLedger}},
		// Covers: S1-305
		{"QoS 0 filters by name", func(s *Spec) {
			s.Receivers[0].Topics = []TopicSpec{{Topic: "a"}, {Topic: "b", QoS: new(0)}, {Topic: "c/#", QoS: new(0)}}
		}, []string{
			memoryDLQ, memoryLedger,
			`receivers[0].topics: QoS 0 is best effort: messages of "b", "c/#" can be lost (G04) (subscribe with qos: 1 where every message counts)`,
		}},
		// Covers: S1-335
		{"QoS 0 without a dead-letter queue, permitted", func(s *Spec) {
			s.Stores.DLQ.Type = StoreNone
			s.Routes[0].Policy = PolicySpec{OnPermanentFailure: ActionDrop, OnExpired: ActionDrop, AllowRetryDrop: true}
			s.Receivers[0].Topics[0].QoS = new(0)
		}, []string{
			memoryLedger,
			`receivers[0].topics: QoS 0 is best effort: messages of "a/#" can be lost (G04) (subscribe with qos: 1 where every message counts)`,
		}},
		{"idle parts", func(s *Spec) {
			s.Senders = append(s.Senders, SenderSpec{ID: "idle", SessionID: "out"})
			s.Sessions = append(s.Sessions, SessionSpec{ID: "lone", Transport: "test"})
		}, []string{
			memoryDLQ, memoryLedger,
			`senders[1]: no binding uses sender "idle" (name it in a binding, or remove it)`,
			`sessions[2]: no receiver or sender uses session "lone" (remove it)`,
		}},
		{"what the transport says", func(s *Spec) { s.Sessions[1].Options = &testSession{Broker: "B", Warning: "options.z"} }, []string{
			memoryDLQ, memoryLedger, "sessions[1].options.z: is odd",
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := pair()
			tc.edit(s)
			problems := s.Check(testKinds())
			if diff := cmp.Diff(tc.want, warnings(problems)); diff != "" || faults(problems) != nil {
				t.Errorf("warnings (-want +got):\n%s\nfaults %v", diff, faults(problems))
			}
		})
	}
}

// Both modes wait for the destination or the durable outbox, so that nothing is
// advised; a mode that would not wait is.
func TestAModeThatAcknowledgesEarlyIsAdvisedAgainst(t *testing.T) {
	advice := func(mode string, modes map[string]deliveryMode) []Problem {
		c := &checker{spec: &Spec{Routes: []RouteSpec{
			{ID: "up", DeliveryMode: mode, Bindings: []BindingSpec{{ID: "up/0"}, {ID: "archive"}}},
		}}}
		c.adviseDurability(0, modes)
		return c.problems
	}
	for _, mode := range []string{DirectHold, SharedOutbox, "misspelt"} {
		if got := advice(mode, deliveryModes); len(got) != 0 {
			t.Errorf("%s: advised %v, want nothing", mode, got)
		}
	}
	got := advice("fire_and_forget", map[string]deliveryMode{DirectHold: {}, "fire_and_forget": {acksEarly: true}})
	want := []Problem{{
		Path:    "routes[0].delivery_mode",
		What:    `delivery_mode fire_and_forget acknowledges a message before its destination confirmed it or a durable store holds it: what is on its way over "up/0", "archive" when the bridge ends is lost`,
		Hint:    "write delivery_mode: direct_hold or shared_outbox where every message counts",
		Warning: true,
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Every mode that the config takes is one that the advisory knows.
func TestEveryDeliveryModeIsKnownToTheAdvisory(t *testing.T) {
	field, _ := reflect.TypeFor[RouteSpec]().FieldByName("DeliveryMode")
	for mode := range strings.SplitSeq(field.Tag.Get("enum"), ",") {
		if _, ok := deliveryModes[mode]; !ok {
			t.Errorf("%s is missing in deliveryModes: say whether it acknowledges early", mode)
		}
	}
}

func TestCheckWithoutKinds(t *testing.T) {
	want := []string{
		`stores.dlq.type: there is no store type "memory" here (write one of none)`,
		`stores.replay_ledger.type: there is no store type "memory" here (no kind of this store is built in)`,
		`sessions[0].transport: there is no transport "test" here (write one of )`,
		`sessions[1].transport: there is no transport "test" here (write one of )`,
	}
	if diff := cmp.Diff(want, faults(pair().Check(nil))); diff != "" {
		t.Error(diff)
	}
}

func TestFullStoreKindIsTakenByName(t *testing.T) {
	s, kinds := pair(), testKinds()
	kinds.DLQs = append(kinds.DLQs, &DLQKind{Name: "sqlite"})
	s.Stores.DLQ.Type = "sqlite"
	if got := faults(s.Check(kinds)); got != nil {
		t.Errorf("a registered kind is refused: %v", got)
	}
}

// TestCheckNeverPanics throws random specs at Check: few names, so that references
// often resolve, and odd values everywhere.
func TestCheckNeverPanics(t *testing.T) {
	id := rapid.SampledFrom([]string{"", "a", "b", "in", "out"})
	word := rapid.SampledFrom([]string{"", "test", "bare", "sqs", "none", "memory", "sqlite", "persistent", "exclusive", "single", "fan_out", "dlq", "drop", "direct_hold", "shared_outbox", "?"})
	filter := rapid.SampledFrom([]string{"", "#", "a/#", "+/b", "$share/g/a", "a/#/b", "x", "\xff"})
	address := rapid.SampledFrom([]string{"", "{topic}", "{topic[3]}", "x/{topic}", "{", "{payload:a}", "#", "{topic[1:]}"})
	duration := rapid.Custom(func(t *rapid.T) time.Duration {
		return time.Duration(rapid.SampledFrom([]int64{0, 0, 1, -1, int64(time.Minute), 1<<63 - 1, -1 << 63}).Draw(t, "ns"))
	})
	options := rapid.SampledFrom([]func() any{
		func() any { return nil }, func() any { return &testSession{Broker: "A", Client: "c"} }, func() any { return &testSession{Fault: "senders[9].x"} },
		func() any { return &testReceiver{} }, func() any { return &testSender{Default: "{topic}"} }, func() any { return (*testSession)(nil) }, func() any { return "text" },
	})
	receiver := rapid.Custom(func(t *rapid.T) ReceiverSpec {
		return ReceiverSpec{
			ID: id.Draw(t, "id"), SessionID: id.Draw(t, "session"), Transport: word.Draw(t, "transport"), Options: options.Draw(t, "options")(),
			Topics: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) TopicSpec {
				return TopicSpec{Topic: filter.Draw(t, "filter"), QoS: rapid.SampledFrom([]*int{nil, new(0), new(2), new(-7)}).Draw(t, "qos")}
			}), 0, 3).Draw(t, "topics"),
		}
	})
	sender := rapid.Custom(func(t *rapid.T) SenderSpec {
		return SenderSpec{ID: id.Draw(t, "id"), SessionID: id.Draw(t, "session"), Transport: word.Draw(t, "transport"), Options: options.Draw(t, "options")()}
	})
	session := rapid.Custom(func(t *rapid.T) SessionSpec {
		return SessionSpec{ID: id.Draw(t, "id"), Transport: word.Draw(t, "transport"), Mode: word.Draw(t, "mode"), Options: options.Draw(t, "options")()}
	})
	store := rapid.Custom(func(t *rapid.T) StoreSpec {
		return StoreSpec{Type: word.Draw(t, "type"), Options: options.Draw(t, "options")()}
	})
	binding := rapid.Custom(func(t *rapid.T) BindingSpec {
		b := BindingSpec{ID: id.Draw(t, "id"), SenderID: id.Draw(t, "sender"), Address: address.Draw(t, "address")}
		if rapid.Bool().Draw(t, "inline") {
			b.Sender = new(sender.Draw(t, "inline"))
		}
		return b
	})
	route := rapid.Custom(func(t *rapid.T) RouteSpec {
		r := RouteSpec{
			ID: id.Draw(t, "id"), ReceiverID: id.Draw(t, "receiver"), DeliveryMode: word.Draw(t, "delivery"), DispatchMode: word.Draw(t, "dispatch"),
			Bindings: rapid.SliceOfN(binding, 0, 3).Draw(t, "bindings"),
			Policy: PolicySpec{
				SendTimeout: duration.Draw(t, "send"), SendRetryBudget: new(duration.Draw(t, "budget")), OnExpired: word.Draw(t, "expired"),
				MaxInFlight: rapid.Int().Draw(t, "in flight"), RateLimit: rapid.Float64().Draw(t, "rate"), AllowCycle: rapid.Bool().Draw(t, "cycle"),
				Backoff: BackoffSpec{MaxInterval: duration.Draw(t, "max"), Jitter: new(rapid.Float64().Draw(t, "jitter"))},
			},
		}
		if rapid.Bool().Draw(t, "inline") {
			r.Receiver = new(receiver.Draw(t, "inline"))
		}
		return r
	})
	rapid.Check(t, func(t *rapid.T) {
		s := &Spec{
			Bridge:    BridgeSpec{ID: id.Draw(t, "bridge"), DrainTimeout: duration.Draw(t, "drain"), ShutdownTimeout: duration.Draw(t, "shutdown")},
			Stores:    StoresSpec{DLQ: store.Draw(t, "dlq"), Outbox: store.Draw(t, "outbox"), ReplayLedger: store.Draw(t, "ledger")},
			Sessions:  rapid.SliceOfN(session, 0, 3).Draw(t, "sessions"),
			Receivers: rapid.SliceOfN(receiver, 0, 3).Draw(t, "receivers"),
			Senders:   rapid.SliceOfN(sender, 0, 3).Draw(t, "senders"),
			Routes:    rapid.SliceOfN(route, 0, 3).Draw(t, "routes"),
		}
		for _, p := range s.Check(testKinds()) {
			if p.Path == "" || p.What == "" || strings.Contains(p.String(), "%!") {
				t.Fatalf("problem without place or text: %+v", p)
			}
		}
		s.Check(testKinds())
	})
}

func TestDefaultsThatDoNotFitPanic(t *testing.T) {
	defer func() {
		if r := recover(); r == nil {
			t.Error("a default that does not fit its field went unnoticed")
		}
	}()
	SetDefaults(&struct {
		N int `default:"many"`
	}{})
}

func TestProblemReadsAsOneLine(t *testing.T) {
	p := Problem{Path: "routes[0].id", What: "is missing", Hint: "write one"}
	if got, want := errors.New(p.String()).Error(), "routes[0].id: is missing (write one)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestUseIsWhatTheTransportChecks(t *testing.T) {
	k := testKinds()
	checked := map[string]*SessionUse{}
	k.Transports[0].Check = func(use *SessionUse, _ Report) { checked[use.Session.ID] = use }
	s := pair()
	s.Check(k)
	for _, id := range []string{"in", "out"} {
		if diff := cmp.Diff(checked[id], s.Use(id)); diff != "" || checked[id] == nil {
			t.Errorf("session %s (-checked +use):\n%s", id, diff)
		}
	}
	if s.Use("absent") != nil {
		t.Error("a use of a session that is not there")
	}
}
