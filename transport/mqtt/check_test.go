package mqtt

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gobridge/gobridge"
)

// checkKinds offers MQTT and stores of which only the names matter.
func checkKinds() *gobridge.Kinds {
	return &gobridge.Kinds{
		Transports: []*gobridge.Transport{Transport()},
		DLQs:       []*gobridge.DLQKind{{Name: "memory"}},
		Ledgers:    []*gobridge.LedgerKind{{Name: "memory"}},
	}
}

// twoBrokers is the shortest useful spec: two brokers and one route.
func twoBrokers() *gobridge.Spec {
	session := func(id, url string) gobridge.SessionSpec {
		return gobridge.SessionSpec{ID: id, Transport: "mqtt", Options: &SessionOptions{SessionSettings{BrokerURL: url}}}
	}
	return &gobridge.Spec{
		Bridge:   gobridge.BridgeSpec{ID: "plant-7"},
		Sessions: []gobridge.SessionSpec{session("edge", "tcp://127.0.0.1:1883"), session("cloud", "tls://broker.example.com")},
		Routes: []gobridge.RouteSpec{{
			ID:       "sensors-up",
			Receiver: &gobridge.ReceiverSpec{SessionID: "edge", Topics: []gobridge.TopicSpec{{Topic: "sensors/#"}}},
			Bindings: []gobridge.BindingSpec{{Sender: &gobridge.SenderSpec{SessionID: "cloud"}, Address: "site-1/{topic}"}},
		}},
	}
}

func problemsOf(s *gobridge.Spec) (faults, warnings []string) {
	for _, p := range s.Check(checkKinds()) {
		switch {
		case !p.Warning:
			faults = append(faults, p.String())
		case !strings.HasPrefix(p.Path, "stores."):
			warnings = append(warnings, p.String())
		}
	}
	return faults, warnings
}

// Covers: S1-603
func TestTwoBrokersAndOneRouteAreCompleted(t *testing.T) {
	s := twoBrokers()
	faults, warnings := problemsOf(s)
	if faults != nil || warnings != nil {
		t.Fatalf("faults %q, warnings %q", faults, warnings)
	}
	settings := func(url, client string, clean bool, expiry gobridge.Seconds) SessionSettings {
		return SessionSettings{
			BrokerURL: url, ClientID: client, KeepAlive: new(gobridge.Seconds(30)),
			ConnectTimeout: 30 * time.Second, ReconnectTimeout: 30 * time.Second, ReconcileTimeout: 30 * time.Second,
			ReconnectDelay: time.Second, ReconnectMaxDelay: 2 * time.Minute,
			CleanStart: new(clean), SessionExpiryInterval: expiry,
			ReceiveMaximum: 192, MaxPayloadBytes: 262144, IngressMemoryBudgetBytes: 268435456,
			UnmatchedGrace: new(30 * time.Second), NoLocal: new(false), OnQoSDowngrade: "fail",
			TLS: TLSSettings{MinVersion: "1.2"},
		}
	}
	want := []SessionSettings{
		settings("tcp://127.0.0.1:1883", "plant-7-edge", false, 86400),
		settings("tls://broker.example.com", "plant-7-cloud", true, 0),
	}
	for i := range want {
		if diff := cmp.Diff(want[i], *sessionSettings(&s.Sessions[i])); diff != "" {
			t.Errorf("session %s (-want +got):\n%s", s.Sessions[i].ID, diff)
		}
	}
	wantSender := SenderSettings{QoS: "1", Retain: "preserve", ThrottleRetryAfter: new(500 * time.Millisecond)}
	if diff := cmp.Diff(wantSender, *senderSettings(&s.Senders[0])); diff != "" {
		t.Errorf("sender (-want +got):\n%s", diff)
	}
	if s.Sessions[0].Mode != gobridge.ModePersistent || s.Sessions[1].Mode != gobridge.ModeEphemeral {
		t.Errorf("modes %s, %s", s.Sessions[0].Mode, s.Sessions[1].Mode)
	}
	set := sessionSettings(&s.Sessions[0])
	if set.MaxPacketBytes() != 393216 || set.RunningBudgetBytes() != 192<<20 {
		t.Errorf("packet %d, running budget %d", set.MaxPacketBytes(), set.RunningBudgetBytes())
	}
}

func TestSessionThatReceivesAndSendsUsesNoLocal(t *testing.T) {
	s := twoBrokers()
	s.Routes[0].Bindings[0].Sender.SessionID = "edge"
	if faults, _ := problemsOf(s); faults != nil {
		t.Fatal(faults)
	}
	if !noLocal(&s.Sessions[0]) || noLocal(&s.Sessions[1]) {
		t.Error("no_local does not follow the use of the session")
	}
}

func TestCheckRefusesByTheFieldWithTheFix(t *testing.T) {
	edge := func(f func(s *SessionSettings)) func(*gobridge.Spec) {
		return func(s *gobridge.Spec) { f(sessionSettings(&s.Sessions[0])) }
	}
	cloud := func(f func(s *SessionSettings)) func(*gobridge.Spec) {
		return func(s *gobridge.Spec) { f(sessionSettings(&s.Sessions[1])) }
	}
	topics := func(topics ...gobridge.TopicSpec) func(*gobridge.Spec) {
		return func(s *gobridge.Spec) {
			s.Routes[0].Receiver.Topics, s.Routes[0].Bindings[0].Address = topics, "out/x"
		}
	}
	const lost = `QoS 1 or 2 messages of "sensors/#" that are not settled when the bridge stops would be lost (G03)`
	for _, tc := range []struct {
		name string
		edit func(s *gobridge.Spec)
		want []string
	}{
		{"no broker", edge(func(s *SessionSettings) { s.BrokerURL = "" }), []string{
			"sessions[0].options.session.broker_url: the session has no broker (write broker_url: tcp://host:1883 or tls://host:8883)",
		}},
		{"no options", func(s *gobridge.Spec) { s.Sessions[0].Options = nil }, []string{
			"sessions[0].options.session.broker_url: the session has no broker (write broker_url: tcp://host:1883 or tls://host:8883)",
		}},
		{"two ways to name the broker", edge(func(s *SessionSettings) { s.BrokerURLs = []string{"tcp://a", "tcp://b"} }), []string{
			"sessions[0].options.session.broker_url: the session has a broker_url and broker_urls (keep one of the two)",
		}},
		{"unsupported scheme", edge(func(s *SessionSettings) { s.BrokerURL = "http://a:1883" }), []string{
			`sessions[0].options.session.broker_url: the broker URL has the scheme "http"; write tcp, mqtt, ssl, tls, mqtts, ws or wss`,
		}},
		{"no URL", edge(func(s *SessionSettings) {
			s.BrokerURL, s.BrokerURLs = "", []string{"tcp://a", "localhost:1883", "tcp://:1883", "tcp://a:0", "tcp://a/x"}
		}), []string{
			"sessions[0].options.session.broker_urls[1]: the broker URL is not a URL; write scheme://host:port, such as tls://broker.example.com:8883",
			"sessions[0].options.session.broker_urls[2]: the broker URL has no host; write scheme://host:port",
			"sessions[0].options.session.broker_urls[3]: the broker URL has a port that is not from 1 to 65535",
			"sessions[0].options.session.broker_urls[4]: the broker URL has a path or query, which only ws and wss take",
		}},
		{"password in the URL", edge(func(s *SessionSettings) { s.BrokerURL = "tcp://ops:S3cr3t!$@a:1883" }), []string{
			"sessions[0].options.session.broker_url: the broker URL holds a user name or password; write them as username and password, where they stay secret",
		}},
		{"password in a URL that cannot be read", edge(func(s *SessionSettings) { s.BrokerURL = "tcp://ops:S3cr3t%zz@a:1883" }), []string{
			"sessions[0].options.session.broker_url: the broker URL holds a user name or password; write them as username and password, where they stay secret",
		}},
		{"numbers out of range", edge(func(s *SessionSettings) {
			s.KeepAlive, s.SessionExpiryInterval, s.ReceiveMaximum = new(gobridge.Seconds(65536)), 1<<32, 65536
			s.ConnectTimeout = -time.Second
			s.OnQoSDowngrade, s.TLS.MinVersion, s.Will.QoS, s.Will.Topic = "ignore", "1.1", 3, "w"
			s.BrokerURL = "tls://a"
		}), []string{
			"sessions[0].options.session.keep_alive: 65536s is out of range (write a value from 0 to 65535)",
			"sessions[0].options.session.connect_timeout: must not be negative, but is -1s (write a duration such as 30s)",
			"sessions[0].options.session.session_expiry_interval: 4294967296s is out of range (write a value from 0 to 4294967295)",
			"sessions[0].options.session.receive_maximum: 65536 is out of range (write a value from 0 to 65535)",
			`sessions[0].options.session.on_qos_downgrade: "ignore" is not allowed (write one of fail, accept)`,
			"sessions[0].options.session.will.qos: 3 is not allowed (write one of 0, 1, 2)",
			`sessions[0].options.session.tls.min_version: "1.1" is not allowed (write one of 1.2, 1.3)`,
		}},
		{"reconnect delays upside down", edge(func(s *SessionSettings) { s.ReconnectDelay = 5 * time.Minute }), []string{
			"sessions[0].options.session.reconnect_max_delay: reconnect_max_delay 2m0s is shorter than reconnect_delay 5m0s (write at least 5m0s)",
		}},
		{"client id that brokers refuse", edge(func(s *SessionSettings) { s.ClientID = "a\x00b" }), []string{
			"sessions[0].options.session.client_id: the client id is not valid UTF-8 or holds a control character (use letters, digits and -)",
		}},
		{"client id too long", edge(func(s *SessionSettings) { s.ClientID = strings.Repeat("x", 65536) }), []string{
			"sessions[0].options.session.client_id: the client id has 65536 bytes, the limit is 65535 (write a shorter one)",
		}},
		{"client id too long with its suffix", func(s *gobridge.Spec) {
			set := sessionSettings(&s.Sessions[1])
			set.ClientID, set.ClientIDSuffix = strings.Repeat("x", 65527), SuffixNonce
		}, []string{
			"sessions[1].options.session.client_id: the client id has 65536 bytes, the limit is 65535 (write a shorter one)",
		}},
		{"unknown client id suffix", edge(func(s *SessionSettings) { s.ClientIDSuffix = "pod" }), []string{
			`sessions[0].options.session.client_id_suffix: "pod" is not allowed (write one of hostname, nonce)`,
		}},
		{"new client id with each start of a persistent session", edge(func(s *SessionSettings) { s.ClientIDSuffix = SuffixNonce }), []string{
			"sessions[0].options.session.client_id_suffix: client_id_suffix: nonce gives a session_mode persistent session a new client id with each start: what the broker queued for the last one would be stranded (write hostname where host names stay the same, or session_mode: ephemeral)",
		}},
		{"one client id at one broker", func(s *gobridge.Spec) {
			sessionSettings(&s.Sessions[0]).ClientID = "me"
			set := sessionSettings(&s.Sessions[1])
			set.ClientID, set.BrokerURL = "me", "mqtt://LOCALHOST"
		}, []string{
			`sessions[1]: session "cloud" is the same client "me" at localhost:1883 as session "edge"; each would disconnect the other (give each session a client id of its own, or use one session for both)`,
		}},

		{"password in clear text", edge(func(s *SessionSettings) { s.Username, s.Password = "ops", gobridge.NewSecret("S3cr3t") }), []string{
			"sessions[0].options.session.password: the credentials would travel in clear text to tcp://127.0.0.1:1883 (use tls:// or wss://, or permit it with allow_plaintext_credentials: true)",
		}},
		{"user name in clear text over websocket", edge(func(s *SessionSettings) { s.BrokerURL, s.Username = "ws://a/mqtt", "ops" }), []string{
			"sessions[0].options.session.username: the credentials would travel in clear text to ws://a:80 (use tls:// or wss://, or permit it with allow_plaintext_credentials: true)",
		}},
		{"half a TLS pair", cloud(func(s *SessionSettings) { s.TLS.CertFile = "c.pem" }), []string{
			"sessions[1].options.session.tls.cert_file: cert_file is set without key_file (write both, or neither)",
		}},
		{"the other half", cloud(func(s *SessionSettings) { s.TLS.KeyFile = "k.pem" }), []string{
			"sessions[1].options.session.tls.key_file: key_file is set without cert_file (write both, or neither)",
		}},
		{"TLS fields on a plain scheme", edge(func(s *SessionSettings) {
			s.TLS = TLSSettings{CACertFile: "a", CertFile: "b", KeyFile: "c", ServerName: "d", ALPN: []string{"e"}, MinVersion: "1.3", InsecureSkipVerify: true}
		}), func() (want []string) {
			for _, key := range []string{"ca_cert_file", "cert_file", "key_file", "server_name", "alpn", "min_version", "insecure_skip_verify"} {
				want = append(want, "sessions[0].options.session.tls."+key+": tls."+key+" is set, but tcp://127.0.0.1:1883 does not use TLS (write tls:// or wss:// in the broker URL, or remove the tls block)")
			}
			return want
		}()},
		{"will without topic", edge(func(s *SessionSettings) { s.Will.Payload = "gone" }), []string{
			"sessions[0].options.session.will.topic: the will has no topic (write will.topic, or remove the will)",
		}},
		{"will to a filter", edge(func(s *SessionSettings) { s.Will.Topic = "a/#" }), []string{
			`sessions[0].options.session.will.topic: the will cannot be published to "a/#": topic name: holds a wildcard (+ or #) (write a plain topic name)`,
		}},

		{"no topics", topics(), []string{
			`routes[0].receiver.topics: the receiver has no topics (write topics: [ { topic: "sensors/#" } ])`,
		}},
		{"invalid filters", topics(gobridge.TopicSpec{}, gobridge.TopicSpec{Topic: "a/#/b"}, gobridge.TopicSpec{Topic: "ok"}), []string{
			`routes[0].receiver.topics[0].topic: "" is not a topic filter: is empty (write a filter such as "sensors/#" or "+/state")`,
			`routes[0].receiver.topics[1].topic: "a/#/b" is not a topic filter: # must be the last level (write a filter such as "sensors/#" or "+/state")`,
		}},
		{"overlapping filters", topics(gobridge.TopicSpec{Topic: "a/#"}, gobridge.TopicSpec{Topic: "b"}, gobridge.TopicSpec{Topic: "+/x"}, gobridge.TopicSpec{Topic: "b"}), []string{
			`routes[0].receiver.topics[2].topic: filter "+/x" overlaps with "a/#": a message that matches both could arrive twice (keep the wider one, or put them on receivers with sessions of their own)`,
			`routes[0].receiver.topics[3].topic: filter "b" overlaps with "b": a message that matches both could arrive twice (keep the wider one, or put them on receivers with sessions of their own)`,
		}},
		{"shared filter, with no_local", func(s *gobridge.Spec) {
			topics(gobridge.TopicSpec{Topic: "$share/g/a"}, gobridge.TopicSpec{Topic: "a"})(s)
			sessionSettings(&s.Sessions[0]).NoLocal = new(true)
		}, []string{
			`routes[0].receiver.topics[1].topic: filter "a" overlaps with "$share/g/a": a message that matches both could arrive twice (keep the wider one, or put them on receivers with sessions of their own)`,
			"sessions[0].options.session.no_local: no_local cannot be used with a $share filter: brokers close the connection over it (remove no_local, or the $share/<group>/ of the filters)",
		}},

		{"overlapping shared filters", topics(gobridge.TopicSpec{Topic: "a/b"}, gobridge.TopicSpec{Topic: "$share/g/c"}, gobridge.TopicSpec{Topic: "$share/g/a/#"}, gobridge.TopicSpec{Topic: "$share/h/+"}), []string{
			`routes[0].receiver.topics[2].topic: filter "$share/g/a/#" overlaps with "a/b": a message that matches both could arrive twice (keep the wider one, or put them on receivers with sessions of their own)`,
			`routes[0].receiver.topics[3].topic: filter "$share/h/+" overlaps with "$share/g/c": a message that matches both could arrive twice (keep the wider one, or put them on receivers with sessions of their own)`,
		}},
		{"shared filters that are none", topics(gobridge.TopicSpec{Topic: "$share/g"}, gobridge.TopicSpec{Topic: "$share//a"}, gobridge.TopicSpec{Topic: "$share/+/a"}, gobridge.TopicSpec{Topic: "$share/g/a/#/b"}, gobridge.TopicSpec{Topic: "$share/g/"}), []string{
			`routes[0].receiver.topics[0].topic: "$share/g" is not a topic filter: a shared filter has the form $share/<group>/<filter> (write a filter such as "sensors/#" or "+/state")`,
			`routes[0].receiver.topics[1].topic: "$share//a" is not a topic filter: the group of a shared filter must not be empty or hold a wildcard (write a filter such as "sensors/#" or "+/state")`,
			`routes[0].receiver.topics[2].topic: "$share/+/a" is not a topic filter: the group of a shared filter must not be empty or hold a wildcard (write a filter such as "sensors/#" or "+/state")`,
			`routes[0].receiver.topics[3].topic: "$share/g/a/#/b" is not a topic filter: # must be the last level (write a filter such as "sensors/#" or "+/state")`,
			`routes[0].receiver.topics[4].topic: "$share/g/" is not a topic filter: a shared filter has the form $share/<group>/<filter> (write a filter such as "sensors/#" or "+/state")`,
		}},

		// Covers: S1-303, S2-111, G03
		{"QoS 1 on an ephemeral session (G03)", func(s *gobridge.Spec) { s.Sessions[0].Mode = gobridge.ModeEphemeral }, []string{
			"sessions[0].session_mode: session_mode is ephemeral: " + lost + " (write session_mode: persistent, or qos: 0 for topics that may be lost)",
		}},
		// Covers: S1-303, S1-304, G03
		{"QoS 1 on a persistent clean start (G03)", edge(func(s *SessionSettings) { s.CleanStart = new(true) }), []string{
			"sessions[0].options.session.clean_start: clean_start: true contradicts session_mode persistent: the broker would forget the session on each connect; " + lost + " (remove clean_start, or write session_mode: ephemeral with qos: 0)",
		}},
		// Covers: S1-304
		{"persistent clean start without a receiver", func(s *gobridge.Spec) {
			s.Sessions[1].Mode = gobridge.ModePersistent
			sessionSettings(&s.Sessions[1]).CleanStart = new(true)
		}, []string{
			"sessions[1].options.session.clean_start: clean_start: true contradicts session_mode persistent: the broker would forget the session on each connect (remove clean_start, or write session_mode: ephemeral with qos: 0)",
		}},
		{"ephemeral that keeps", cloud(func(s *SessionSettings) { s.CleanStart = new(false) }), []string{
			"sessions[1].options.session.clean_start: clean_start: false contradicts session_mode ephemeral, which always starts clean (write session_mode: persistent, or remove clean_start)",
		}},
		{"ephemeral with an expiry", cloud(func(s *SessionSettings) { s.SessionExpiryInterval = 60 }), []string{
			"sessions[1].options.session.session_expiry_interval: session_expiry_interval contradicts session_mode ephemeral, of which the broker keeps nothing (write session_mode: persistent, or remove it)",
		}},

		// Covers: S1-703, S1-704
		{"over the memory budget", edge(func(s *SessionSettings) { s.ReceiveMaximum = 1000 }), []string{
			"sessions[0].options.session.ingress_memory_budget_bytes: messages can take 537657344 bytes, the budget is 268435456: (max_payload_bytes 262144 + 131072) x (receive_maximum 1000 + max_in_flight 192 + 2) + 64 MiB + 1 MiB (lower receive_maximum, max_payload_bytes or the route's policy.max_in_flight, or write ingress_memory_budget_bytes: 537657344)",
		}},
		{"over the memory budget with the smallest window", func(s *gobridge.Spec) { s.Routes[0].Policy.MaxInFlight = 1000 }, []string{
			"sessions[0].options.session.ingress_memory_budget_bytes: messages can take 462553088 bytes, the budget is 268435456: (max_payload_bytes 262144 + 131072) x (receive_maximum 1 + max_in_flight 1000 + 2) + 64 MiB + 1 MiB (lower max_payload_bytes or the route's policy.max_in_flight, or write ingress_memory_budget_bytes: 462553088)",
		}},

		{"default topic", func(s *gobridge.Spec) {
			s.Routes[0].Bindings[0].Sender.Options = &SenderOptions{SenderSettings{DefaultTopic: "{topics}", QoS: "3", Retain: "maybe"}}
		}, []string{
			`routes[0].bindings[0].sender.options.sender.qos: "3" is not allowed (write one of 0, 1, 2, preserve)`,
			`routes[0].bindings[0].sender.options.sender.retain: "maybe" is not allowed (write one of true, false, preserve)`,
			`routes[0].bindings[0].sender.options.sender.default_topic: default_topic "{topics}": {topics} is no placeholder; there are {topic}, {topic[N]}, {topic[N:]}, {subject}, {header:NAME} and {payload:json.path}`,
		}},
		{"default topic that cannot be published to", func(s *gobridge.Spec) {
			s.Routes[0].Bindings[0].Sender.Options = &SenderOptions{SenderSettings{DefaultTopic: "$SYS/{topic}"}}
		}, []string{
			`routes[0].bindings[0].sender.options.sender.default_topic: default_topic "$SYS/{topic}" cannot be published to: topic name: starts with $, which belongs to the broker (write a plain topic name)`,
		}},
		{"two-way bridge on the same tree", func(s *gobridge.Spec) {
			s.Sessions = append(s.Sessions,
				gobridge.SessionSpec{ID: "edge-2", Transport: "mqtt", Options: &SessionOptions{SessionSettings{BrokerURL: "mqtt://localhost"}}},
				gobridge.SessionSpec{ID: "cloud-2", Transport: "mqtt", Options: &SessionOptions{SessionSettings{BrokerURL: "ssl://broker.example.com:8883"}}})
			s.Routes[0].Receiver.Topics[0].Topic, s.Routes[0].Bindings[0].Address = "#", "{topic}"
			s.Routes = append(s.Routes, gobridge.RouteSpec{
				ID:       "down",
				Receiver: &gobridge.ReceiverSpec{SessionID: "cloud-2", Topics: []gobridge.TopicSpec{{Topic: "#"}}},
				Bindings: []gobridge.BindingSpec{{Sender: &gobridge.SenderSpec{SessionID: "edge-2"}, Address: "{topic}"}},
			})
		}, []string{
			`routes[0]: messages would go in a circle: localhost:1883 -> route "sensors-up" (# to {topic}) -> broker.example.com:8883 -> route "down" (# to {topic}) -> localhost:1883 (narrow a filter or an address of it, or write policy.allow_cycle: true in one of its routes)`,
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := twoBrokers()
			tc.edit(s)
			faults, _ := problemsOf(s)
			if diff := cmp.Diff(tc.want, faults); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
			if strings.Contains(strings.Join(faults, ""), "S3cr3t") {
				t.Error("a fault holds a secret")
			}
		})
	}
}

// Covers: S1-305
func TestCheckAccepts(t *testing.T) {
	for name, edit := range map[string]func(s *gobridge.Spec){
		"QoS 0 on an ephemeral session (G04)": func(s *gobridge.Spec) { s.Routes[0].Receiver.Topics[0].QoS = new(0) },
		"two-way bridge on one pair of sessions": func(s *gobridge.Spec) {
			s.Routes[0].Receiver.Topics[0].Topic, s.Routes[0].Bindings[0].Address = "#", "{topic}"
			s.Routes = append(s.Routes, gobridge.RouteSpec{
				ID:       "down",
				Receiver: &gobridge.ReceiverSpec{SessionID: "cloud", Topics: []gobridge.TopicSpec{{Topic: "#"}}},
				Bindings: []gobridge.BindingSpec{{Sender: &gobridge.SenderSpec{SessionID: "edge"}, Address: "{topic}"}},
			})
		},
		"credentials over TLS": func(s *gobridge.Spec) {
			set := sessionSettings(&s.Sessions[1])
			set.Username, set.Password = "ops", gobridge.NewSecret("x")
		},
		"keep-alive off, grace of nothing": func(s *gobridge.Spec) {
			set := sessionSettings(&s.Sessions[0])
			set.KeepAlive, set.UnmatchedGrace = new(gobridge.Seconds(0)), new(time.Duration(0))
		},
		"session that never expires": func(s *gobridge.Spec) { sessionSettings(&s.Sessions[0]).SessionExpiryInterval = NeverExpires },
		"several addresses of one broker": func(s *gobridge.Spec) {
			set := sessionSettings(&s.Sessions[0])
			set.BrokerURL, set.BrokerURLs = "", []string{"tcp://a", "tcp://b:1884"}
		},
		"a will": func(s *gobridge.Spec) {
			sessionSettings(&s.Sessions[0]).Will = WillSettings{Topic: "bridge/state", Payload: "gone", QoS: 1, Retain: true}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := twoBrokers()
			edit(s)
			if faults, _ := problemsOf(s); faults != nil {
				t.Fatal(strings.Join(faults, "\n"))
			}
			before := []SessionSettings{*sessionSettings(&s.Sessions[0]), *sessionSettings(&s.Sessions[1])}
			faults, _ := problemsOf(s)
			after := []SessionSettings{*sessionSettings(&s.Sessions[0]), *sessionSettings(&s.Sessions[1])}
			if diff := cmp.Diff(before, after); diff != "" || faults != nil {
				t.Errorf("a second Check found %q and changed the options:\n%s", faults, diff)
			}
		})
	}
}

func TestCheckWarnsOfWeakProtection(t *testing.T) {
	s := twoBrokers()
	edge, cloud := sessionSettings(&s.Sessions[0]), sessionSettings(&s.Sessions[1])
	edge.Username, edge.AllowPlaintextCredentials = "ops", true
	cloud.TLS.InsecureSkipVerify = true
	faults, warnings := problemsOf(s)
	want := []string{
		"sessions[0].options.session.allow_plaintext_credentials: the credentials travel in clear text to tcp://127.0.0.1:1883 (use tls:// or wss://)",
		"sessions[1].options.session.tls.insecure_skip_verify: the certificate of the broker is not verified: anyone on the way can read and change messages (remove it and name the authority in ca_cert_file)",
	}
	if diff := cmp.Diff(want, warnings); diff != "" || faults != nil {
		t.Errorf("faults %q, warnings (-want +got):\n%s", faults, diff)
	}
}

// Covers: S1-309
func TestCheckWarnsOfAnEphemeralSourceBeforeTheOutbox(t *testing.T) {
	s := twoBrokers()
	s.Sessions[0].Mode = gobridge.ModeEphemeral
	s.Routes[0].DeliveryMode = gobridge.SharedOutbox
	_, warnings := problemsOf(s)
	if !slices.ContainsFunc(warnings, func(w string) bool { return strings.Contains(w, "(G07)") }) {
		t.Errorf("warnings %q, want one of G07", warnings)
	}
	s = twoBrokers()
	s.Routes[0].DeliveryMode = gobridge.SharedOutbox
	if _, warnings := problemsOf(s); slices.ContainsFunc(warnings, func(w string) bool { return strings.Contains(w, "(G07)") }) {
		t.Errorf("warnings %q for a persistent source", warnings)
	}
}

// Covers: S1-703, S1-704, S1-705
func TestReceiveMaximumIsTheLargestThatFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := twoBrokers()
		set := sessionSettings(&s.Sessions[0])
		set.MaxPayloadBytes = rapid.Int64Range(1, 4<<20).Draw(t, "payload")
		set.IngressMemoryBudgetBytes = rapid.Int64Range(64<<20, 2<<30).Draw(t, "budget")
		inFlight := rapid.IntRange(1, 1000).Draw(t, "in flight")
		s.Routes[0].Policy.MaxInFlight = inFlight
		need := func(window int) int64 {
			p := set.MaxPayloadBytes + 128<<10
			return p*int64(window+inFlight) + 64<<20 + 2*p + 1<<20
		}
		faults, _ := problemsOf(s)
		if need(1) > set.IngressMemoryBudgetBytes {
			if len(faults) != 1 {
				t.Fatalf("a window of 1 does not fit, faults %q", faults)
			}
			return
		}
		got := set.ReceiveMaximum
		if faults != nil || got < 1 || got > 192 || need(got) > set.IngressMemoryBudgetBytes || got < 192 && need(got+1) <= set.IngressMemoryBudgetBytes {
			t.Fatalf("receive_maximum %d needs %d of %d; faults %q", got, need(got), set.IngressMemoryBudgetBytes, faults)
		}
	})
}

// Covers: S1-706
func TestDefaultsNeedWhatTheContractSays(t *testing.T) {
	if got, want := memoryNeed(DefaultMaxPayloadBytes, DefaultReceiveMaximum, 192), int64(209.75*(1<<20)); got != want {
		t.Errorf("need %d, want %d", got, want)
	}
}

func TestBrokersHaveTheirPorts(t *testing.T) {
	s := SessionSettings{BrokerURLs: []string{
		"tcp://a", "mqtt://a", "ssl://a", "tls://a", "mqtts://a", "ws://a", "wss://a/mqtt?x=1", "tcp://[::1]", "TCP://A:99/",
	}}
	urls, err := s.Brokers()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, u := range urls {
		got = append(got, u.String())
	}
	want := []string{
		"tcp://a:1883", "mqtt://a:1883", "ssl://a:8883", "tls://a:8883", "mqtts://a:8883", "ws://a:80", "wss://a:443/mqtt?x=1", "tcp://[::1]:1883", "tcp://A:99/",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	spec := gobridge.SessionSpec{Options: &SessionOptions{SessionSettings{BrokerURLs: []string{"tcp://[::1]", "tcp://127.0.0.1", "tcp://LocalHost:1883", "wss://A.example.", "nonsense"}}}}
	if diff := cmp.Diff([]string{"localhost:1883", "localhost:1883", "localhost:1883", "a.example:443"}, endpoints(&spec)); diff != "" {
		t.Error(diff)
	}
	if _, err := (&SessionSettings{BrokerURL: "tcp://u:p@h"}).Brokers(); err == nil {
		t.Error("a URL with a password is accepted")
	}
}

// TestCheckNeverPanicsOnOptions throws odd settings at the check.
func TestCheckNeverPanicsOnOptions(t *testing.T) {
	text := rapid.OneOf(rapid.SampledFrom([]string{"", "tcp://a", "tls://b:1", "ws://a:b@c", "%", "a/#", "{topic}", "\xff"}), rapid.String())
	number := rapid.SampledFrom([]int64{0, 1, -1, 1000, 1 << 28, math.MaxInt64, math.MinInt64})
	rapid.Check(t, func(t *rapid.T) {
		s := twoBrokers()
		for i := range s.Sessions {
			*sessionSettings(&s.Sessions[i]) = SessionSettings{
				BrokerURL: text.Draw(t, "url"), BrokerURLs: rapid.SliceOfN(text, 0, 2).Draw(t, "urls"), ClientID: text.Draw(t, "client"),
				ClientIDSuffix: rapid.SampledFrom([]string{"", SuffixHostname, SuffixNonce, "?"}).Draw(t, "suffix"),
				KeepAlive:      new(gobridge.Seconds(number.Draw(t, "keep alive"))), ConnectTimeout: time.Duration(number.Draw(t, "connect")),
				SessionExpiryInterval: gobridge.Seconds(number.Draw(t, "expiry")), ReceiveMaximum: int(number.Draw(t, "window")),
				MaxPayloadBytes: number.Draw(t, "payload"), IngressMemoryBudgetBytes: number.Draw(t, "budget"),
				Username: text.Draw(t, "user"), Will: WillSettings{Topic: text.Draw(t, "will")}, TLS: TLSSettings{CertFile: text.Draw(t, "cert")},
			}
			s.Sessions[i].Mode = rapid.SampledFrom([]string{"", "persistent", "ephemeral", "exclusive", "?"}).Draw(t, "mode")
		}
		s.Routes[0].Receiver.Topics[0].Topic = text.Draw(t, "filter")
		s.Routes[0].Bindings[0].Address = text.Draw(t, "address")
		s.Routes[0].Policy.MaxInFlight = int(number.Draw(t, "in flight"))
		problemsOf(s)
		problemsOf(s)
	})
}

// What package guarantee hears of the options of a session and a sender.
func TestTraitsOfSourcesAndSenders(t *testing.T) {
	for expiry, want := range map[gobridge.Seconds]time.Duration{600: 10 * time.Minute, 0xfffffffe: 0xfffffffe * time.Second, 0xffffffff: math.MaxInt64} {
		o := NewSessionOptions()
		o.Session.SessionExpiryInterval = expiry
		if got := sourceTraits(&gobridge.SessionSpec{Options: o}); got.Keeps != want || got.MayDowngrade {
			t.Errorf("expiry %s: %+v, want it kept for %s and never downgraded", expiry, got, want)
		}
		o.Session.OnQoSDowngrade = DowngradeAccept
		if !sourceTraits(&gobridge.SessionSpec{Options: o}).MayDowngrade {
			t.Error("on_qos_downgrade: accept may downgrade")
		}
	}
	for rule, want := range map[QoSRule][3]bool{"0": {}, "1": {true, true, true}, "2": {true, true, true}, Preserve: {false, true, true}} {
		o := NewSenderOptions()
		o.Sender.QoS = rule
		for qos := range want {
			if got := confirms(&gobridge.SenderSpec{Options: o}, uint8(qos)); got != want[qos] {
				t.Errorf("sender qos %s, message of QoS %d: confirmed %t", rule, qos, got)
			}
		}
	}
}
