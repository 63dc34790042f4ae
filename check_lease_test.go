package gobridge

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// testStore has the path that all instances use, empty for one of this instance alone.
type testStore struct{ Path string }

// leaseKinds are testKinds with stores that can be shared.
func leaseKinds() *Kinds {
	k := testKinds()
	options := func() any { return new(testStore) }
	shared := func(_ *BridgeSpec, options any) (string, error) {
		if p := options.(*testStore).Path; p != "" {
			return p, nil
		}
		return "", errors.New("it has no path")
	}
	k.Leases = []*LeaseKind{{Name: StoreMemory}, {Name: StoreSQLite, Options: options, Shared: shared}}
	k.Histories = []*HistoryKind{{Name: StoreMemory}, {Name: StoreSQLite, Options: options, Shared: shared}}
	k.Outboxes = []*OutboxKind{{Name: StoreSQLite}}
	k.Transports[0].OwnClientID = func(s *SessionSpec) bool { return s.Options.(*testSession).Client == "of-this-host" }
	return k
}

// cluster is a spec of an exclusive source and its destination, without a fault or a
// warning that is about leases.
func cluster() *Spec {
	s := pair()
	s.Bridge.InstanceID, s.Bridge.DeploymentMode = "gw-1", DeploymentClustered
	s.Stores.Lease.Options = &testStore{"/shared/leases.db"}
	s.Stores.ManagedSubscriptions.Options = &testStore{"/shared/subscriptions.db"}
	s.Sessions[0].Mode = ModeExclusive
	s.Sessions[0].Options.(*testSession).Client = "in"
	s.Sessions[1].Options.(*testSession).Client = "out"
	return s
}

// other adds a route from a session of its own, of that mode, to a session.
func other(s *Spec, mode, to string) {
	s.Sessions = append(s.Sessions, SessionSpec{ID: "other", Transport: "test", Mode: mode, Options: &testSession{Broker: "C", Client: "other"}})
	s.Receivers = append(s.Receivers, ReceiverSpec{ID: "r2", SessionID: "other", Topics: []TopicSpec{{Topic: "x/#"}}})
	s.Senders = append(s.Senders, SenderSpec{ID: "s2", SessionID: to})
	s.Routes = append(s.Routes, RouteSpec{ID: "more", ReceiverID: "r2", Bindings: []BindingSpec{{SenderID: "s2", Address: "y/{topic}"}}})
}

func TestCheckOfLeases(t *testing.T) {
	const place = " with a path outside of each data_dir)"
	for _, tc := range []struct {
		name  string
		edit  func(s *Spec)
		want  []string // faults
		warns []string
	}{
		{"in order", func(*Spec) {}, nil, nil},
		{"renewed often", func(s *Spec) {
			s.Sessions[0].Lease = LeaseSpec{TTL: 2 * time.Second, RenewInterval: 900 * time.Millisecond}
		}, nil, nil},
		{"one process", func(s *Spec) { s.Bridge.DeploymentMode, s.Stores = "", StoresSpec{} }, nil, []string{
			"bridge.deployment_mode: session_mode exclusive with deployment_mode standalone: no other instance takes over (write deployment_mode: clustered, or session_mode: persistent)",
		}},
		{"standalone instances that share", func(s *Spec) { s.Bridge.DeploymentMode = "" }, nil, nil},
		{"standalone instances that share leases alone", func(s *Spec) {
			s.Bridge.DeploymentMode, s.Stores.ManagedSubscriptions.Options = "", nil
		}, []string{
			"stores.managed_subscriptions: the history of subscriptions, which the next owner goes by, must be in a store that all instances share: it has no path " +
				"(write stores.managed_subscriptions: { type: sqlite, options: { path: /srv/gobridge/subscriptions.db } }" + place,
		}, nil},
		{"nothing shared", func(s *Spec) { s.Stores = StoresSpec{} }, []string{
			"stores.lease: the leases of exclusive sessions must be in a store that all instances share: it has no path " +
				"(write stores.lease: { type: sqlite, options: { path: /srv/gobridge/leases.db } }" + place,
			"stores.managed_subscriptions: the history of subscriptions, which the next owner goes by, must be in a store that all instances share: it has no path " +
				"(write stores.managed_subscriptions: { type: sqlite, options: { path: /srv/gobridge/subscriptions.db } }" + place,
		}, nil},
		{"leases in memory", func(s *Spec) { s.Stores.Lease = StoreSpec{Type: StoreMemory} }, []string{
			"stores.lease: the leases of exclusive sessions must be in a store that all instances share: type memory is for one process alone " +
				"(write stores.lease: { type: sqlite, options: { path: /srv/gobridge/leases.db } }" + place,
		}, nil},
		{"leases of an unknown type", func(s *Spec) { s.Stores.Lease = StoreSpec{Type: "dynamodb"} }, []string{
			"stores.lease.type: store type dynamodb is not available in this version (write type: sqlite)",
		}, nil},
		{"one path for both", func(s *Spec) { s.Stores.ManagedSubscriptions.Options = s.Stores.Lease.Options }, []string{
			"stores.lease: the leases and the history of subscriptions have one path: leases need a file of their own (write another path for one of the two)",
		}, nil},
		{"ttl too short", func(s *Spec) { s.Sessions[0].Lease.TTL = 900 * time.Millisecond }, []string{
			"sessions[0].lease.ttl: ttl 900ms is too short to be renewed in time (write at least 1s; 15s is the default)",
		}, nil},
		{"renewed too seldom", func(s *Spec) { s.Sessions[0].Lease = LeaseSpec{TTL: 10 * time.Second, RenewInterval: 5 * time.Second} }, []string{
			"sessions[0].lease.renew_interval: renew_interval 5s is not less than half of ttl 10s: one failed renewal would end the lease (write less than 5s, or 0s for 2.5s)",
		}, nil},
		{"renewed all the time", func(s *Spec) { s.Sessions[0].Lease.RenewInterval = time.Millisecond }, []string{
			"sessions[0].lease.renew_interval: renew_interval 1ms is less than a hundredth of ttl 15s (write 0s for 3.75s)",
		}, nil},
		{"grace past the exit", func(s *Spec) { s.Sessions[0].Lease.StepDownGrace = time.Minute }, []string{
			"sessions[0].lease.step_down_grace: step_down_grace 1m0s is longer than bridge.shutdown_timeout 30s (write at most 30s)",
		}, nil},
		{"lease of another mode", func(s *Spec) { s.Sessions[1].Lease.MaxRenewFails = 7 }, []string{
			"sessions[1].lease: lease is for session_mode exclusive; this session is ephemeral (remove the block, or write session_mode: exclusive)",
		}, nil},
		{"to an exclusive session", func(s *Spec) { s.Sessions[1].Mode = ModeExclusive }, []string{
			`senders[0]: route "up" leads from session "in" to the exclusive session "out", which another instance may own: its messages would wait ` +
				"(send through a session of its own, without session_mode: it follows the lease of an exclusive source)",
		}, nil},
		{"to the session it came from", func(s *Spec) {
			s.Senders[0].SessionID, s.Routes[0].Bindings[0].Address = "in", "out"
			s.Sessions = s.Sessions[:1]
		}, nil, nil},
		{"outbox of one instance", func(s *Spec) { s.Routes[0].DeliveryMode = SharedOutbox }, nil, []string{
			`routes[0].delivery_mode: messages in the outbox wait for the instance that stored them: those of an owner that is gone are sent when it owns session "in" again ` +
				"(write delivery_mode: direct_hold, where the next owner receives what was not sent)",
		}},
		{"destination with other sources", func(s *Spec) { other(s, ModeExclusive, "out") }, []string{
			`sessions[1]: every instance runs session "out", and all of them would be client "out" at its broker and disconnect each other: it does not follow the lease of session "other", because it serves other routes too ` +
				`(give the routes of session "other" a session of their own, or give this one a client_id for each instance (client_id_suffix: hostname))`,
		}, nil},
		{"destination with other sources, under its own name", func(s *Spec) {
			other(s, ModeExclusive, "out")
			s.Sessions[1].Options.(*testSession).Client = "of-this-host"
		}, nil, nil},
		{"destination with other sources in one process", func(s *Spec) {
			other(s, ModePersistent, "out")
			s.Bridge.DeploymentMode, s.Stores = "", StoresSpec{}
		}, nil, []string{
			"bridge.deployment_mode: session_mode exclusive with deployment_mode standalone: no other instance takes over (write deployment_mode: clustered, or session_mode: persistent)",
		}},
		{"owner under a name of its own", func(s *Spec) { s.Sessions[0].Options.(*testSession).Client = "in-gw-1" }, nil, []string{
			`sessions[0]: client id "in-gw-1" of the exclusive session "in" holds the name of this instance: the next owner would not find what the broker has queued for it (write a client_id that all instances have)`,
		}},
		{"sessions that every instance runs", func(s *Spec) {
			other(s, ModePersistent, "third")
			s.Sessions = append(s.Sessions, SessionSpec{ID: "third", Transport: "test", Options: &testSession{Broker: "D", Client: "gw-1-third"}})
		}, nil, []string{
			`sessions[2]: every instance runs session "other", and all of them would be client "other" at its broker and disconnect each other, unless its client_id differs from instance to instance ` +
				"(write client_id_suffix: hostname, or session_mode: exclusive)",
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := cluster()
			tc.edit(s)
			problems := s.Check(leaseKinds())
			if diff := cmp.Diff(tc.want, faults(problems)); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
			warns := slices.DeleteFunc(warnings(problems), func(w string) bool { return w == memoryDLQ || w == memoryLedger })
			if diff := cmp.Diff(tc.warns, warns, cmpEmpty); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
		})
	}
}

var cmpEmpty = cmp.Transformer("empty", func(s []string) []string { return append([]string{}, s...) })

func TestOwners(t *testing.T) {
	for _, tc := range []struct {
		name string
		edit func(s *Spec)
		want map[string]string
	}{
		{"destination of an exclusive source", func(*Spec) {}, map[string]string{"in": "in", "out": "in"}},
		{"no exclusive source", func(s *Spec) { s.Sessions[0].Mode = ModePersistent }, map[string]string{}},
		{"destination of two exclusive sources", func(s *Spec) { other(s, ModeExclusive, "out") }, map[string]string{"in": "in", "other": "other"}},
		{"destination of another source as well", func(s *Spec) { other(s, ModePersistent, "out") }, map[string]string{"in": "in"}},
		{"destination that receives as well", func(s *Spec) {
			s.Receivers = append(s.Receivers, ReceiverSpec{ID: "back", SessionID: "out"})
		}, map[string]string{"in": "in"}},
		{"two routes of one source", func(s *Spec) {
			s.Routes[0].Bindings = append(s.Routes[0].Bindings, BindingSpec{SenderID: "s"})
		}, map[string]string{"in": "in", "out": "in"}},
	} {
		s := cluster()
		tc.edit(s)
		if got := s.Owners(); !maps.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

func TestClientIDNamesItsInstance(t *testing.T) {
	for client, want := range map[string]bool{
		"gw-1": true, "in-gw-1": true, "gw-1.in": true, "gw-10-gw-1-x": true,
		"gw-10": false, "xgw-1": false, "in": false, "": false,
	} {
		if got := namesInstance(client, "gw-1"); got != want {
			t.Errorf("%q names gw-1: %t, want %t", client, got, want)
		}
	}
}
