package mqtt

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/gobridge/gobridge"
)

const (
	// probeTimeout bounds the probe of one endpoint.
	probeTimeout = 10 * time.Second
	// expirySoon is how long before its end a certificate is warned of.
	expirySoon = 14 * 24 * time.Hour
	// maxConnack bounds the answer to CONNECT, in bytes.
	maxConnack = 64 << 10
)

var errNoConnack = errors.New("the answer to CONNECT was something else than CONNACK")

// probe is the Probe of the transport: each endpoint of the session with its own TLS
// settings and credential, under another client id, so that a running session goes on.
func probe(ctx context.Context, use *gobridge.SessionUse, env gobridge.Env) []gobridge.ProbeStep {
	set := sessionSettings(use.Session)
	brokers, err := set.Brokers()
	var ring *keyring
	if err == nil {
		ring, err = newKeyring(set, brokers, env.Credentials, env.Logger)
	}
	var l *login
	if err == nil {
		l, err = ring.next()
	}
	if err != nil {
		e := MapError(err)
		return []gobridge.ProbeStep{{Step: "credential", State: gobridge.ProbeFailed, Detail: lineOf(e), Hint: e.Hint}}
	}
	steps := []gobridge.ProbeStep{l.describe()}
	for _, u := range brokers {
		p := &prober{use: use, set: set, login: l, url: u}
		p.run(ctx)
		steps = append(steps, p.steps...)
	}
	return steps
}

// describe says what the login consists of.
func (l *login) describe() gobridge.ProbeStep {
	step := gobridge.ProbeStep{Step: "credential", State: gobridge.ProbeOK}
	var parts []string
	if l.username != "" {
		parts = append(parts, fmt.Sprintf("user name %q", l.username))
	}
	if l.password.IsSet() {
		parts = append(parts, "a password")
	}
	if l.tls != nil && len(l.tls.Certificates) > 0 && l.tls.Certificates[0].Leaf != nil {
		leaf := l.tls.Certificates[0].Leaf
		parts = append(parts, fmt.Sprintf("client certificate %s, %s", leaf.Subject, expiry(leaf)))
		if time.Until(leaf.NotAfter) < expirySoon {
			step.State, step.Hint = gobridge.ProbeWarning, "renew the client certificate"
		}
	}
	if step.Detail = strings.Join(parts, ", "); step.Detail == "" {
		step.Detail = "none: the login is anonymous"
	}
	return step
}

// prober probes one endpoint.
type prober struct {
	use   *gobridge.SessionUse
	set   *SessionSettings
	login *login
	url   *url.URL

	began time.Time // of the step under way
	steps []gobridge.ProbeStep
}

func (p *prober) done(step, state, detail, hint string) {
	now := time.Now()
	took := now.Sub(p.began)
	p.began = now
	p.steps = append(p.steps, gobridge.ProbeStep{
		Endpoint: brokerName(p.url), Step: step, State: state, Detail: detail, Hint: hint,
		TookMS: float64(took.Microseconds()) / 1000,
	})
}

func (p *prober) failed(step string, err error, hint string) {
	e := MapError(err)
	detail := lineOf(e)
	if _, dialled := errors.AsType[*dialError](err); dialled && tlsFault(err) == nil {
		detail = err.Error() // there is no connection yet that could be lost
	}
	p.done(step, gobridge.ProbeFailed, detail, cmp.Or(e.Hint, hint))
}

// lineOf is an error without its hint.
func lineOf(e *gobridge.Error) string {
	plain := *e
	plain.Hint = ""
	return plain.Error()
}

// run takes the steps in order and ends at the first that fails.
func (p *prober) run(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	p.began = time.Now()
	host := p.url.Hostname()
	if net.ParseIP(host) == nil {
		addresses, err := net.DefaultResolver.LookupHost(ctx, host)
		if err != nil {
			p.failed("dns", &dialError{err}, "check the host name and the resolver of this machine")
			return
		}
		p.done("dns", gobridge.ProbeOK, strings.Join(addresses, ", "), "")
	}
	nc, err := dialTCP(ctx, p.url.Host)
	if err != nil {
		p.failed("tcp", &dialError{err}, "is the broker running, is the port right, is a firewall in between?")
		return
	}
	defer func() { _ = nc.Close() }()
	p.done("tcp", gobridge.ProbeOK, "connected to "+nc.RemoteAddr().String(), "")

	scheme := schemes[p.url.Scheme]
	var cfg *tls.Config
	if scheme.secure {
		cfg = namedFor(p.login.tls, p.url)
		secured := tls.Client(nc, cfg)
		if err := secured.HandshakeContext(ctx); err != nil {
			p.failed("tls", &dialError{&handshakeError{p.url.Host, err}}, "")
			return
		}
		p.chain(secured.ConnectionState())
		nc = secured
	}
	if scheme.websocket { // it wants a connection of its own
		_ = nc.Close()
		ws, err := dialWebsocket(ctx, p.url, p.url.Host, cfg)
		if err != nil {
			hint := "check the path of the URL"
			if scheme.secure {
				hint += ", and whether the broker wants a client certificate"
			}
			p.failed("websocket", &dialError{err}, hint)
			return
		}
		nc = ws
		p.done("websocket", gobridge.ProbeOK, "accepted", "")
	}
	stop := context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	connack, id, err := p.connect(nc)
	switch {
	case ctx.Err() != nil && err != nil:
		p.failed("login", &dialError{ctx.Err()}, "nothing answered CONNECT: does this port speak MQTT?")
	case err != nil:
		hint := "does this port speak MQTT v5, without TLS where the URL has none?"
		if scheme.secure {
			hint = "does this port speak MQTT v5, and does the broker want another client certificate, or one at all?"
		}
		p.failed("login", err, hint)
	case connack.ReasonCode >= 0x80:
		var text string
		if connack.Properties != nil {
			text = connack.Properties.ReasonString
		}
		fault := reasonFault("login as client "+id, connack.ReasonCode, text)
		fault.Hint = cmp.Or(p.login.refusedHint(connack.ReasonCode), fault.Hint)
		p.failed("login", fault, "")
	default:
		p.done("login", gobridge.ProbeOK, fmt.Sprintf("accepted as client %s (clean start, no session is left; %s is not disturbed)", id, p.set.ClientID), "")
		p.limits(connack)
		_, _ = (&packets.Disconnect{}).WriteTo(nc)
	}
}

// connect logs in under a client id of the probe's own.
func (p *prober) connect(nc net.Conn) (*packets.Connack, string, error) {
	id := p.set.ClientID + "-check-" + strings.ToLower(rand.Text()[:4])
	connect := &packets.Connect{
		ProtocolName: "MQTT", ProtocolVersion: 5, CleanStart: true, ClientID: id, KeepAlive: uint16(*p.set.KeepAlive),
		Username: p.login.username, UsernameFlag: p.login.username != "",
		Password: []byte(p.login.password.Reveal()), PasswordFlag: p.login.password.IsSet(),
		Properties: &packets.Properties{},
	}
	_, broken := connect.WriteTo(nc)
	// Also after a failed write: the broker may have said why before it closed.
	answer, err := packets.ReadPacket(io.LimitReader(nc, maxConnack))
	if err != nil {
		if _, told := alertOf(err); broken != nil && !told {
			err = broken
		}
		return nil, id, err
	}
	connack, ok := answer.Content.(*packets.Connack)
	if !ok {
		return nil, id, errNoConnack
	}
	return connack, id, nil
}

// chain tells of the certificates that the broker showed.
func (p *prober) chain(state tls.ConnectionState) {
	verdict, hint := gobridge.ProbeOK, ""
	var names []string
	var first *x509.Certificate // to expire
	for _, c := range state.PeerCertificates {
		names = append(names, c.Subject.String())
		if first == nil || c.NotAfter.Before(first.NotAfter) {
			first = c
		}
	}
	detail := tls.VersionName(state.Version) + ", " + strings.Join(names, " < ")
	if first != nil {
		detail += ", " + expiry(first)
		if time.Until(first.NotAfter) < expirySoon {
			verdict, hint = gobridge.ProbeWarning, "renew the broker's certificate"
		}
	}
	if p.set.TLS.InsecureSkipVerify {
		verdict, hint = gobridge.ProbeWarning, "it was not verified: remove tls.insecure_skip_verify"
	}
	p.done("tls", verdict, detail, hint)
}

func expiry(c *x509.Certificate) string {
	return fmt.Sprintf("expires in %d days (%s)", int(time.Until(c.NotAfter).Hours()/24), c.NotAfter.UTC().Format(time.DateOnly))
}

// limits tells what the broker announced, and what of it the session cannot live with.
func (p *prober) limits(ca *packets.Connack) {
	props := ca.Properties
	if props == nil {
		props = &packets.Properties{}
	}
	orElse := func(v *uint32, none string) string {
		if v == nil {
			return none
		}
		return fmt.Sprint(*v)
	}
	available := func(v *byte) string {
		if v != nil && *v == 0 {
			return "no"
		}
		return "yes"
	}
	window, qos, aliases, keepAlive := 65_535, byte(2), 0, fmt.Sprintf("%d s as asked", *p.set.KeepAlive)
	if props.ReceiveMaximum != nil {
		window = int(*props.ReceiveMaximum)
	}
	if props.MaximumQOS != nil {
		qos = *props.MaximumQOS
	}
	if props.TopicAliasMaximum != nil {
		aliases = int(*props.TopicAliasMaximum)
	}
	if props.ServerKeepAlive != nil {
		keepAlive = fmt.Sprintf("%d s", *props.ServerKeepAlive)
	}
	detail := fmt.Sprintf("receive maximum %d, maximum QoS %d, packet size %s, retain %s, wildcards %s, $share %s, topic aliases %d, keep-alive %s, session expiry %s",
		window, qos, orElse(props.MaximumPacketSize, "any"), available(props.RetainAvailable), available(props.WildcardSubAvailable),
		available(props.SharedSubAvailable), aliases, keepAlive, orElse(props.SessionExpiryInterval, "not limited"))
	if hint := p.unfit(qos, available(props.WildcardSubAvailable) == "yes", available(props.SharedSubAvailable) == "yes"); hint != "" {
		p.done("limits", gobridge.ProbeFailed, detail, hint)
		return
	}
	p.done("limits", gobridge.ProbeOK, detail, "")
}

// unfit says what the session needs and the broker does not offer.
func (p *prober) unfit(qos byte, wildcards, shares bool) string {
	if p.use.Receiver == nil {
		return ""
	}
	for _, t := range p.use.Receiver.Topics {
		_, filter, shared := gobridge.SplitShare(t.Topic)
		wanted := 1
		if t.QoS != nil {
			wanted = *t.QoS
		}
		switch {
		case shared && !shares:
			return fmt.Sprintf("%q needs shared subscriptions", t.Topic)
		case strings.ContainsAny(filter, "+#") && !wildcards:
			return fmt.Sprintf("%q needs wildcard subscriptions", t.Topic)
		case wanted > int(qos) && p.set.OnQoSDowngrade != DowngradeAccept:
			return fmt.Sprintf("%q needs QoS %d: lower it, or write on_qos_downgrade: accept", t.Topic, wanted)
		}
	}
	return ""
}
