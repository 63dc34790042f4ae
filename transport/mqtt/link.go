package mqtt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/autopaho"
	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
	"github.com/gorilla/websocket"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/metric"
	"github.com/gobridge/gobridge/transport/mqtt/wire"
)

// linkConn is one connection of a session as the library holds it: it remembers
// the first thing that went wrong.
type linkConn struct {
	*guardConn
	broker string
	login  *login // that it was opened with

	mu    sync.Mutex
	cause error
}

var (
	_ net.Conn    = (*linkConn)(nil)
	_ sync.Locker = (*linkConn)(nil)
)

// Read is that of the guard connection.
func (c *linkConn) Read(p []byte) (int, error) {
	n, err := c.guardConn.Read(p)
	if err != nil {
		c.fail(err)
	}
	return n, err
}

// fail takes note of why the connection ends. The first cause stands.
func (c *linkConn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause == nil {
		c.cause = err
	}
}

func (c *linkConn) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// clientConfig is what the library needs to keep the connection: dial, CONNECT,
// keep-alive, SUBSCRIBE. Messages do not pass through it.
func (s *session) clientConfig() autopaho.ClientConfig {
	cfg := autopaho.ClientConfig{
		ServerUrls:           s.brokers,
		KeepAlive:            uint16(*s.set.KeepAlive),
		ReconnectBackoff:     s.waitToConnect,
		ConnectTimeout:       max(s.set.ConnectTimeout, s.set.ReconnectTimeout),
		AttemptConnection:    s.attempt,
		OnConnectionUp:       s.established,
		OnConnectionDown:     s.mayReconnect,
		OnConnectError:       s.connectFailed,
		ConnectPacketBuilder: s.connectPacket,
		ClientConfig: paho.ClientConfig{
			ClientID:    s.set.ClientID,
			Session:     &s.ledger,
			PingHandler: &s.pinger,
			// Bounds CONNECT and SUBSCRIBE; both have a stricter bound of their own.
			PacketTimeout: max(s.set.ConnectTimeout, s.set.ReconnectTimeout, s.set.ReconcileTimeout),
		},
	}
	if w := s.set.Will; w.Topic != "" {
		cfg.WillMessage = &paho.WillMessage{Topic: w.Topic, Payload: []byte(w.Payload), QoS: byte(w.QoS), Retain: w.Retain}
	}
	return cfg
}

// waitToConnect is the library's ReconnectBackoff. It waits itself, because what the
// library waits for cannot be woken; only after the end of the session does it leave
// the waiting to the library, which is about to be told.
func (s *session) waitToConnect(int) time.Duration {
	for {
		if s.backoff.wait(s.stopping) {
			return time.Hour
		}
		if s.carried.wish() != wishEnded {
			return 0
		}
	}
}

// connectPacket completes each CONNECT. The library would send Clean Start on the
// first connect alone; an ephemeral session needs it on every one, and one that is to
// be thrown away until the history says that it was. The credential is the latest one
// each time. The library calls attempt next.
func (s *session) connectPacket(cp *paho.Connect, _ *url.URL) (*paho.Connect, error) {
	l, err := s.keyring.next()
	if err != nil {
		return nil, err
	}
	s.trying = l
	cp.Username, cp.UsernameFlag = l.username, l.username != ""
	cp.Password, cp.PasswordFlag = []byte(l.password.Reveal()), l.password.IsSet()
	s.mu.Lock()
	cp.CleanStart = !s.durable || s.discard
	s.mu.Unlock()
	window, packet := uint16(s.set.ReceiveMaximum), uint32(s.set.MaxPacketBytes())
	cp.Properties = &paho.ConnectProperties{
		ReceiveMaximum:     &window,
		MaximumPacketSize:  &packet,
		RequestProblemInfo: true,
	}
	if s.durable {
		expiry := uint32(s.set.SessionExpiryInterval)
		cp.Properties.SessionExpiryInterval = &expiry
	}
	return cp, nil
}

// attempt opens one connection. connect_timeout, and reconnect_timeout after the
// first connection, bounds everything up to the CONNACK.
func (s *session) attempt(ctx context.Context, _ autopaho.ClientConfig, u *url.URL) (net.Conn, error) {
	if !s.out.fence.Open(time.Now()) {
		return nil, gobridge.ErrLeaseLost // a connect would disconnect the next owner
	}
	s.mu.Lock()
	bound := s.set.ConnectTimeout
	if s.connects > 0 {
		bound = s.set.ReconnectTimeout
	}
	s.mu.Unlock()
	deadline := time.Now().Add(bound)
	nc, err := dial(ctx, u, s.trying.tls, bound)
	if err != nil {
		return nil, err
	}
	if err := nc.SetReadDeadline(deadline); err != nil {
		_ = nc.Close()
		return nil, err
	}
	c := newGuardConn(nc, s, guardOptions{MaxPacket: uint32(s.set.MaxPacketBytes()), Logger: s.log})
	return &linkConn{guardConn: c, broker: brokerName(u), login: s.trying}, nil
}

// connectFailed is called after each attempt that did not end in a connection.
func (s *session) connectFailed(err error) {
	connack, answered := errors.AsType[*autopaho.ConnackError](err)
	if !answered {
		// The library puts the whole URL in front, with a query that may hold a secret.
		err = cmp.Or(errors.Unwrap(err), err)
	}
	mapped := MapError(err)
	if answered {
		mapped.Hint = cmp.Or(s.trying.refusedHint(connack.ReasonCode), mapped.Hint)
	}
	s.count.connectFailures.Get(string(mapped.Code)).Inc()
	permanent := false
	switch mapped.Code {
	case gobridge.CodeNotAuthorized, gobridge.CodeForbidden, gobridge.CodeInvalidConfig, gobridge.CodeVersionMismatch:
		permanent = true // only a person can change that
	}
	switch {
	case s.keyring.refused(s.trying, mapped):
		s.backoff.skip() // the previous one is worth a try
		permanent = false
	case permanent:
		s.backoff.refused()
	default:
		s.backoff.failed()
	}
	s.mu.Lock()
	s.lastError = mapped.Error()
	s.refused = ""
	if permanent {
		s.refused = mapped.Error()
	}
	s.mu.Unlock()
	if times, ok := s.failures.allowText(string(mapped.Code)+mapped.Op, time.Now()); ok {
		s.log.Warn("cannot connect", "code", mapped.Code, "err", mapped, "times", times)
	}
}

var errCleanStartIgnored = errors.New("broker resumed a session although a clean start was asked for")

// up begins a connection: it is called with the CONNACK, before anything else is
// read. What is open from earlier connections is decided here.
func (s *session) up(c *linkConn, ca *packets.Connack) error {
	if ca.SessionPresent && !s.durable {
		return errCleanStartIgnored
	}
	if err := c.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	s.mu.Lock()
	resumeLost := s.carried.connack(ca.SessionPresent) && s.durable
	s.connects++
	reconnect := s.connects > 1
	s.link, s.linkCtx, s.linkEnd = c, ctx, cancel
	s.upAt = time.Now()
	s.present, s.deliberate, s.refused = ca.SessionPresent, false, ""
	s.converged, s.unmanaged = false, ""
	if !ca.SessionPresent {
		s.forgetGrants()
		s.void = true
	}
	s.trustGrants()
	s.confirming = false
	s.recovery.connack(s.connects, ca.SessionPresent)
	s.mu.Unlock()
	s.failures.forget()
	s.loggedIn(c.login)
	s.log.Info("connected", "broker", c.broker, "session_present", ca.SessionPresent)
	if reconnect {
		s.count.reconnects.Inc()
	}
	if resumeLost {
		s.reportResumeLost()
	}
	s.checkExpiry(ca)
	if s.managed != nil {
		s.in.withhold()
	}
	s.in.connected(c.guardConn, ca.SessionPresent)
	s.out.connected(c.guardConn, limitsOf(ca), ca.SessionPresent)
	c.flush()
	s.wake()
	return nil
}

// reportResumeLost tells that the broker did not have the session that it should
// have had. The error stays until the next converged reconcile.
func (s *session) reportResumeLost() {
	const lost = "broker no longer had the session: subscriptions and queued messages of the time away are lost"
	s.count.resumeLost.Inc()
	s.log.Warn(lost, "hint", "raise session_expiry_interval, or give the broker persistence")
	s.tell(lost)
}

// checkExpiry warns, once for each value, when the broker keeps the session for
// less than asked. Only the library's goroutine that connects calls it.
func (s *session) checkExpiry(ca *packets.Connack) {
	got := ca.Properties.SessionExpiryInterval
	if got == nil {
		s.granted = s.set.SessionExpiryInterval
		return
	}
	known := s.granted
	s.granted = gobridge.Seconds(*got)
	if !s.durable || s.granted >= s.set.SessionExpiryInterval || s.granted == known {
		return
	}
	s.log.Warn("broker keeps the session for less than asked", "session_expiry_interval", gobridge.Seconds(*got),
		"asked", s.set.SessionExpiryInterval)
}

// limitsOf reads what the server allows; what it does not say has the default
// of the standard (MQTT v5, 3.2.2.3).
func limitsOf(ca *packets.Connack) serverLimits {
	p := ca.Properties
	l := serverLimits{receiveMaximum: 65_535, maximumQoS: 2, retain: true}
	if p.ReceiveMaximum != nil && *p.ReceiveMaximum > 0 {
		l.receiveMaximum = int(*p.ReceiveMaximum)
	}
	if p.MaximumQOS != nil {
		l.maximumQoS = *p.MaximumQOS
	}
	if p.RetainAvailable != nil {
		l.retain = *p.RetainAvailable == 1
	}
	if p.MaximumPacketSize != nil {
		l.maximumPacket = int(min(*p.MaximumPacketSize, 1<<31-1)) // no packet is larger
	}
	return l
}

// established is called by the library once requests can be made on the
// connection.
func (s *session) established(cm *autopaho.ConnectionManager, ca *paho.Connack) {
	s.mu.Lock()
	s.cm = cm
	c := connection{s.linkCtx, cm, ca, s.connects}
	s.mu.Unlock()
	if s.recovery.adopt(c) {
		return
	}
	s.tasks.Go(func() { s.reconcile(c) })
}

// mayReconnect is called by the library when a connection has gone.
func (s *session) mayReconnect() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.closing
}

// down ends a connection. The library calls it more than once.
func (s *session) down(d *packets.Disconnect) {
	s.mu.Lock()
	c := s.link
	if c == nil {
		s.mu.Unlock()
		return
	}
	s.link = nil
	up := time.Since(s.upAt)
	quiet := s.closing || s.deliberate
	cause := lossCause(c, d)
	if !s.closing && s.carried.cause() == "" {
		s.lastError = cause.Error()
	}
	s.converged = false
	s.recovery.event(recoverDisconnected, 0, cause)
	s.linkEnd(cause)
	s.mu.Unlock()
	if said := faultyPacket(d); said || d == nil && !quiet {
		s.out.blame(c.guardConn, cause, said)
	}
	s.out.lost(c.guardConn)
	s.in.lost(c.guardConn)
	s.wake()
	if quiet {
		return
	}
	if s.doubt != nil {
		s.doubt()
	}
	s.log.Warn("connection lost", "broker", c.broker, "after", up.Round(time.Millisecond), "err", cause)
	flapping := s.backoff.lost(up, d == nil && closedByPeer(c.failure()))
	switch {
	case d != nil && d.ReasonCode == packets.DisconnectSessionTakenOver:
		s.backoff.takenOver()
		s.count.takeover[metric.TakeoverReported].Inc()
		s.takenOver(true)
	case flapping:
		s.count.takeover[metric.TakeoverInferred].Inc()
		s.takenOver(false)
	}
}

// tell sets what health says is wrong.
func (s *session) tell(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastError = what
}

// closedByPeer reports whether a connection ended by the peer's close, as against a
// failure of the network.
func closedByPeer(err error) bool {
	_, websocketClosed := errors.AsType[*websocket.CloseError](err)
	return websocketClosed || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// lossCause says why the connection ended.
func lossCause(c *linkConn, d *packets.Disconnect) error {
	if d == nil {
		if err := c.failure(); err != nil {
			return fmt.Errorf("connection lost: %w", err)
		}
		return gobridge.ErrConnectionLost
	}
	var text string
	if d.Properties != nil {
		text = d.Properties.ReasonString
	}
	return disconnectFault(d.ReasonCode, text)
}

// refuse ends a connection whose broker broke the protocol in a way that the
// guard connection cannot see. Called by the reader, which must not close the
// connection itself.
func (s *session) refuse(c *guardConn, err error) {
	s.log.Error("server broke the protocol, closing", "error", err)
	if malformed, ok := errors.AsType[*wire.MalformedError](err); ok {
		c.disconnect(disconnectFor(malformed.Reason))
	}
	s.mu.Lock()
	if s.link != nil && s.link.guardConn == c {
		s.link.fail(err)
	}
	s.mu.Unlock()
	s.in.lost(c)
	s.out.lost(c)
	_ = c.SetReadDeadline(time.Unix(1, 0)) // the next read fails and tells the library
}
