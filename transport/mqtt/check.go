package mqtt

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/gobridge/gobridge"
)

// scheme is what a broker URL's scheme means.
type scheme struct {
	secure, websocket bool
	port              string
}

var schemes = map[string]scheme{
	"tcp":   {port: "1883"},
	"mqtt":  {port: "1883"},
	"ssl":   {port: "8883", secure: true},
	"tls":   {port: "8883", secure: true},
	"mqtts": {port: "8883", secure: true},
	"ws":    {port: "80", websocket: true},
	"wss":   {port: "443", websocket: true, secure: true},
}

// Brokers returns the URLs of the session's broker, each with a known scheme and a
// port, in the order in which they are tried. The error names no part of a URL
// that may be secret.
func (s *SessionSettings) Brokers() ([]*url.URL, error) {
	var urls []*url.URL
	for _, raw := range s.brokerURLs() {
		u, err := parseBroker(raw)
		if err != nil {
			return nil, err
		}
		urls = append(urls, u)
	}
	return urls, nil
}

func (s *SessionSettings) brokerURLs() []string {
	if s.BrokerURL != "" {
		return []string{s.BrokerURL}
	}
	return s.BrokerURLs
}

var (
	errNotURL   = errors.New("is not a URL; write scheme://host:port, such as tls://broker.example.com:8883")
	errUserInfo = errors.New("holds a user name or password; write them as username and password, where they stay secret")
	errNoHost   = errors.New("has no host; write scheme://host:port")
	errPort     = errors.New("has a port that is not from 1 to 65535")
	errPath     = errors.New("has a path or query, which only ws and wss take")
)

// parseBroker reads a broker URL. Its errors never quote the URL: what looks like
// a malformed one may hold a password.
func parseBroker(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	switch {
	case strings.Contains(raw, "@") && (err != nil || u.User != nil):
		return nil, errUserInfo
	case err != nil || !strings.Contains(raw, "://"):
		return nil, errNotURL
	}
	sc, ok := schemes[u.Scheme]
	switch {
	case !ok:
		return nil, fmt.Errorf("has the scheme %q; write tcp, mqtt, ssl, tls, mqtts, ws or wss", u.Scheme)
	case u.Hostname() == "":
		return nil, errNoHost
	case !sc.websocket && (u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != ""):
		return nil, errPath
	}
	port := u.Port()
	if port == "" {
		port = sc.port
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return nil, errPort
	}
	u.Host = net.JoinHostPort(u.Hostname(), port)
	return u, nil
}

// endpoints names the brokers of a session as host:port; the loopback addresses
// are one host.
func endpoints(s *gobridge.SessionSpec) []string {
	var all []string
	for _, raw := range sessionSettings(s).brokerURLs() {
		u, err := parseBroker(raw)
		if err != nil {
			continue
		}
		host := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
		if host == "127.0.0.1" || host == "::1" {
			host = "localhost"
		}
		all = append(all, net.JoinHostPort(host, u.Port()))
	}
	return all
}

func sessionSettings(s *gobridge.SessionSpec) *SessionSettings {
	return &s.Options.(*SessionOptions).Session
}

func senderSettings(s *gobridge.SenderSpec) *SenderSettings {
	return &s.Options.(*SenderOptions).Sender
}

func clientID(s *gobridge.SessionSpec) string { return sessionSettings(s).ClientID }

func ownClientID(s *gobridge.SessionSpec) bool { return sessionSettings(s).ClientIDSuffix != "" }

func noLocal(s *gobridge.SessionSpec) bool {
	p := sessionSettings(s).NoLocal
	return p != nil && *p
}

// sessionNeverExpires is the Session Expiry Interval of a session without an end
// (MQTT v5, 3.1.2.11.2).
const sessionNeverExpires gobridge.Seconds = 0xffffffff

// sourceTraits is the Source of the transport.
func sourceTraits(s *gobridge.SessionSpec) gobridge.SourceTraits {
	set := sessionSettings(s)
	t := gobridge.SourceTraits{
		Keeps:          set.SessionExpiryInterval.Duration(),
		KeepsField:     "options.session.session_expiry_interval",
		MayDowngrade:   set.OnQoSDowngrade == DowngradeAccept,
		DowngradeField: "options.session.on_qos_downgrade",
	}
	if set.SessionExpiryInterval == sessionNeverExpires {
		t.Keeps = math.MaxInt64
	}
	return t
}

// confirms is the Confirms of the transport: nobody answers a QoS 0 publish.
func confirms(s *gobridge.SenderSpec, qos uint8) bool { return senderSettings(s).QoS.Of(qos) > 0 }

func defaultAddress(s *gobridge.SenderSpec) string { return senderSettings(s).DefaultTopic }

// useCheck completes the options of one session and reports their faults.
type useCheck struct {
	*gobridge.SessionUse
	s      *SessionSettings
	report gobridge.Report
}

// check is the Check of the transport.
func check(use *gobridge.SessionUse, report gobridge.Report) {
	c := &useCheck{SessionUse: use, s: sessionSettings(use.Session), report: report}
	c.broker()
	c.clientID()
	c.credentials()
	c.tls()
	c.timing()
	c.will()
	c.topics()
	c.noLocal()
	c.durability()
	c.memory()
	c.senders()
}

// fault reports a fault of a session setting.
func (c *useCheck) fault(key, what, hint string) { c.report("options.session."+key, what, hint) }

func (c *useCheck) broker() {
	switch {
	case c.s.BrokerURL != "" && len(c.s.BrokerURLs) > 0:
		c.fault("broker_url", "the session has a broker_url and broker_urls", "keep one of the two")
	case c.s.BrokerURL == "" && len(c.s.BrokerURLs) == 0:
		c.fault("broker_url", "the session has no broker", "write broker_url: tcp://host:1883 or tls://host:8883")
	}
	check := func(key, raw string) {
		if _, err := parseBroker(raw); err != nil {
			c.fault(key, "the broker URL "+err.Error(), "")
		}
	}
	if c.s.BrokerURL != "" {
		check("broker_url", c.s.BrokerURL)
	}
	for i, raw := range c.s.BrokerURLs {
		check("broker_urls["+strconv.Itoa(i)+"]", raw)
	}
}

// plainURL is the first broker URL without TLS, empty when there is none.
func (c *useCheck) plainURL() string {
	for _, raw := range c.s.brokerURLs() {
		if u, err := parseBroker(raw); err == nil && !schemes[u.Scheme].secure {
			return u.Scheme + "://" + u.Host
		}
	}
	return ""
}

func (c *useCheck) credentials() {
	plain := c.plainURL()
	if plain == "" || c.s.AllowPlaintextCredentials {
		return
	}
	path := "credentials_uri"
	switch {
	case c.s.Password.IsSet():
		path = "options.session.password"
	case c.s.Username != "":
		path = "options.session.username"
	case c.Session.CredentialsURI == "":
		return
	}
	c.report(path, "the credentials would travel in clear text to "+plain,
		"use tls:// or wss://, or permit it with allow_plaintext_credentials: true")
}

func (c *useCheck) tls() {
	t := &c.s.TLS
	if (t.CertFile == "") != (t.KeyFile == "") {
		have, miss := "cert_file", "key_file"
		if t.CertFile == "" {
			have, miss = miss, have
		}
		c.fault("tls."+have, have+" is set without "+miss, "write both, or neither")
	}
	plain := c.plainURL()
	if plain == "" {
		return
	}
	for _, f := range []struct {
		key string
		set bool
	}{
		{"ca_cert_file", t.CACertFile != ""},
		{"cert_file", t.CertFile != ""},
		{"key_file", t.KeyFile != ""},
		{"server_name", t.ServerName != ""},
		{"alpn", len(t.ALPN) > 0},
		{"min_version", t.MinVersion != "" && t.MinVersion != "1.2"},
		{"insecure_skip_verify", t.InsecureSkipVerify},
	} {
		if f.set {
			c.fault("tls."+f.key, "tls."+f.key+" is set, but "+plain+" does not use TLS", "write tls:// or wss:// in the broker URL, or remove the tls block")
		}
	}
}

func (c *useCheck) timing() {
	if c.s.ReconnectMaxDelay < c.s.ReconnectDelay && c.s.ReconnectMaxDelay >= 0 {
		c.fault("reconnect_max_delay", fmt.Sprintf("reconnect_max_delay %v is shorter than reconnect_delay %v", c.s.ReconnectMaxDelay, c.s.ReconnectDelay),
			fmt.Sprintf("write at least %v", c.s.ReconnectDelay))
	}
}

func (c *useCheck) will() {
	w := &c.s.Will
	if w.Topic == "" {
		if w.Payload != "" || w.QoS != 0 || w.Retain {
			c.fault("will.topic", "the will has no topic", "write will.topic, or remove the will")
		}
		return
	}
	if err := gobridge.ValidateTopic(w.Topic); err != nil {
		c.fault("will.topic", fmt.Sprintf("the will cannot be published to %q: %v", w.Topic, err), "write a plain topic name")
	}
}

// topics checks the filters of the receiver: each by itself, then against each
// other, since a broker may deliver a message once for every filter that matches, and
// does for a shared filter beside another one (MQTT v5, 4.8.2).
func (c *useCheck) topics() {
	if c.Receiver == nil {
		return
	}
	if len(c.Receiver.Topics) == 0 {
		c.report("receiver.topics", "the receiver has no topics", `write topics: [ { topic: "sensors/#" } ]`)
	}
	var valid []string
	for i, t := range c.Receiver.Topics {
		path := "receiver.topics[" + strconv.Itoa(i) + "].topic"
		if err := gobridge.ValidateFilter(t.Topic); err != nil {
			c.report(path, fmt.Sprintf("%q is not a topic filter: %v", t.Topic, err), `write a filter such as "sensors/#" or "+/state"`)
			continue
		}
		_, filter, _ := gobridge.SplitShare(t.Topic)
		for _, other := range valid {
			_, otherFilter, _ := gobridge.SplitShare(other)
			if gobridge.FiltersOverlap(filter, otherFilter) {
				c.report(path, fmt.Sprintf("filter %q overlaps with %q: a message that matches both could arrive twice", t.Topic, other),
					"keep the wider one, or put them on receivers with sessions of their own")
				break
			}
		}
		valid = append(valid, t.Topic)
	}
}

// noLocal completes no_local: a session that also sends must not receive what it
// sent (E3). A shared subscription cannot have it (MQTT v5, 3.8.3.1).
func (c *useCheck) noLocal() {
	shared := shares(c.Receiver)
	switch {
	case c.s.NoLocal == nil:
		c.s.NoLocal = new(c.Receiver != nil && len(c.Senders) > 0 && !shared)
	case *c.s.NoLocal && shared:
		c.fault("no_local", "no_local cannot be used with a $share filter: brokers close the connection over it", "remove no_local, or the $share/<group>/ of the filters")
	}
}

// durability completes clean_start and session_expiry_interval and refuses what
// contradicts the mode, or leaves a QoS 1 or 2 source without redelivery (G03).
func (c *useCheck) durability() {
	mode := c.Session.Mode
	durable := mode == gobridge.ModePersistent || mode == gobridge.ModeExclusive
	protected := c.protectedFilter()
	held := protected != "" && (c.Route == nil || c.Route.DeliveryMode == gobridge.DirectHold)
	lost := fmt.Sprintf("QoS 1 or 2 messages of %q that are not settled when the bridge stops would be lost (G03)", protected)
	switch {
	case mode != gobridge.ModeEphemeral && !durable:
		return // no such mode: reported by its enum
	case durable && c.s.CleanStart != nil && *c.s.CleanStart:
		what := "clean_start: true contradicts session_mode " + mode + ": the broker would forget the session on each connect"
		if held {
			what += "; " + lost
		}
		c.fault("clean_start", what, "remove clean_start, or write session_mode: ephemeral with qos: 0")
	case !durable && c.s.CleanStart != nil && !*c.s.CleanStart:
		c.fault("clean_start", "clean_start: false contradicts session_mode ephemeral, which always starts clean", "write session_mode: persistent, or remove clean_start")
	case !durable && c.s.SessionExpiryInterval != 0:
		c.fault("session_expiry_interval", "session_expiry_interval contradicts session_mode ephemeral, of which the broker keeps nothing", "write session_mode: persistent, or remove it")
	case !durable && held:
		c.report("session_mode", "session_mode is ephemeral: "+lost, "write session_mode: persistent, or qos: 0 for topics that may be lost")
	}
	if c.s.CleanStart == nil {
		c.s.CleanStart = new(!durable)
	}
	// Without an expiry a v5 broker drops the session with the connection.
	if durable && c.s.SessionExpiryInterval == 0 {
		c.s.SessionExpiryInterval = DefaultSessionExpiry
	}
}

// protectedFilter is the first filter of the receiver with QoS 1 or 2.
func (c *useCheck) protectedFilter() string {
	if c.Receiver == nil {
		return ""
	}
	for _, t := range c.Receiver.Topics {
		if t.QoS == nil || *t.QoS > 0 {
			return t.Topic
		}
	}
	return ""
}

// memory completes the sizes and checks the byte model: what the messages of a
// session can hold must fit its budget.
func (c *useCheck) memory() {
	s := c.s
	if s.MaxPayloadBytes == 0 {
		s.MaxPayloadBytes = DefaultMaxPayloadBytes
	}
	if s.IngressMemoryBudgetBytes == 0 {
		s.IngressMemoryBudgetBytes = DefaultIngressMemoryBudgetBytes
	}
	if c.Receiver == nil {
		if s.ReceiveMaximum == 0 {
			s.ReceiveMaximum = DefaultReceiveMaximum
		}
		return
	}
	inFlight := 0
	if c.Route != nil {
		inFlight = c.Route.Policy.MaxInFlight
	}
	if s.MaxPayloadBytes < 0 || s.MaxPayloadBytes > 1<<28 || s.ReceiveMaximum < 0 || s.ReceiveMaximum > 65535 ||
		inFlight < 0 || inFlight > 1_000_000 || s.IngressMemoryBudgetBytes < 0 {
		return // out of range: reported by their tags
	}
	window := s.ReceiveMaximum
	if window == 0 {
		fits := (s.IngressMemoryBudgetBytes - memoryNeed(s.MaxPayloadBytes, 0, inFlight)) / s.MaxPacketBytes()
		window = int(min(max(fits, 1), DefaultReceiveMaximum))
	}
	if need := memoryNeed(s.MaxPayloadBytes, window, inFlight); need > s.IngressMemoryBudgetBytes {
		c.fault("ingress_memory_budget_bytes",
			fmt.Sprintf("messages can take %d bytes, the budget is %d: (max_payload_bytes %d + 131072) x (receive_maximum %d + max_in_flight %d + 2) + 64 MiB + 1 MiB",
				need, s.IngressMemoryBudgetBytes, s.MaxPayloadBytes, window, inFlight),
			fmt.Sprintf("lower %s, or write ingress_memory_budget_bytes: %d", c.lowerable(), need))
		return
	}
	s.ReceiveMaximum = window
}

// lowerable names what can be lowered to fit the budget.
func (c *useCheck) lowerable() string {
	if c.s.ReceiveMaximum == 0 {
		return "max_payload_bytes or the route's policy.max_in_flight"
	}
	return "receive_maximum, max_payload_bytes or the route's policy.max_in_flight"
}

// memoryNeed is the byte model of a session with a receiver: every message of the
// window and of the route, one being read and one being decoded, the QoS 0 messages
// that wait, and bookkeeping.
func memoryNeed(maxPayload int64, window, inFlight int) int64 {
	packet := maxPayload + MetadataAllowance
	return packet*int64(window+inFlight) + PendingBytesLimit + 2*packet + 1<<20
}

func (c *useCheck) senders() {
	for i, p := range c.Senders {
		topic := senderSettings(p).DefaultTopic
		if topic == "" {
			continue
		}
		path := "senders[" + strconv.Itoa(i) + "].options.sender.default_topic"
		t, err := gobridge.ParseTemplate(topic)
		if err != nil {
			c.report(path, fmt.Sprintf("default_topic %q: %v", topic, err), "")
			continue
		}
		if err := gobridge.ValidateTopic(t.Sample()); err != nil {
			c.report(path, fmt.Sprintf("default_topic %q cannot be published to: %v", topic, err), "write a plain topic name")
		}
	}
}

// warn is the Warn of the transport.
func warn(use *gobridge.SessionUse, report gobridge.Report) {
	s := sessionSettings(use.Session)
	if s.TLS.InsecureSkipVerify {
		report("options.session.tls.insecure_skip_verify", "the certificate of the broker is not verified: anyone on the way can read and change messages", "remove it and name the authority in ca_cert_file")
	}
	warnOfSharing(use, report)
	c := &useCheck{SessionUse: use, s: s}
	if r := use.Route; r != nil && r.DeliveryMode == gobridge.SharedOutbox && use.Session.Mode == gobridge.ModeEphemeral {
		if filter := c.protectedFilter(); filter != "" {
			report("session_mode", fmt.Sprintf("session_mode is ephemeral: messages of %q that are not yet in the outbox when the bridge stops are lost (G07)", filter),
				"write session_mode: persistent where every message counts")
		}
	}
	if s.AllowPlaintextCredentials && (s.Username != "" || s.Password.IsSet() || use.Session.CredentialsURI != "") {
		if plain := c.plainURL(); plain != "" {
			report("options.session.allow_plaintext_credentials", "the credentials travel in clear text to "+plain, "use tls:// or wss://")
		}
	}
}
