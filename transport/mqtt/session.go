package mqtt

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/autopaho"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/metric"
	"github.com/gobridge/gobridge/transport/mqtt/wire"
)

const (
	// closeWait bounds the wait for the broker to close the connection after our
	// DISCONNECT. Closing first could destroy what the broker has not read yet.
	closeWait = 2 * time.Second
)

// session is one MQTT session: a connection manager of the library, and the
// messages, which the library never sees. It survives reconnects.
//
// Everything happens on the goroutine that reads the connection (packetHandler),
// on those of the engine (Send, Ack), and on the one in Run, which owns the timers.
// A reconcile has a goroutine of its own while it runs, and recoveries have one
// (recover.go). Locks are never held over a callback to the engine.
type session struct {
	id      string
	set     *SessionSettings
	log     *slog.Logger
	count   *counters
	metrics *metric.Registry
	durable bool
	sharing bool // it has a $share filter
	brokers []*url.URL
	keyring *keyring
	trying  *login // of the attempt under way; the library's goroutine that connects

	in      *inbound
	out     *outbound
	senders map[string]*sender
	serves  bool     // it has a receiver
	managed *managed // nil: without a managed subscription history
	// mayRemove: there is a place for messages of filters that left the config.
	mayRemove bool

	ledger  ledger
	pinger  pinger
	backoff *backoff

	wakeUp   chan struct{} // to Run, capacity 1
	stopping chan struct{} // closed when the session ends: nobody waits to connect
	tasks    sync.WaitGroup
	failures repeated // of connecting
	gate     gate
	doubt    func() // see gobridge.Env; may be nil
	carried  *carried

	recovery *recovery
	quiesce  func(context.Context) error // empties the route; nil: there is nothing to empty
	spacing  time.Duration               // between recoveries
	confirm  time.Duration               // how long grants are taken on trust
	bound    time.Duration               // the hard deadline of one recovery, gate included

	mu sync.Mutex
	status
}

var _ gobridge.Session = (*session)(nil)

// sender is one way into outbound, with its own rules.
type sender struct {
	out      *outbound
	qos      QoSRule
	retain   RetainRule
	timeout  time.Duration
	throttle time.Duration
}

var _ gobridge.Sender = (*sender)(nil)

func (s *sender) Send(m *gobridge.Outbound) error { return s.out.send(s, m) }
func (s *sender) Flush()                          { s.out.flush() }

func (s *sender) Available() error {
	if e := s.out.available.Load(); e != nil {
		return e
	}
	return nil
}

func (s *sender) Notify(f func()) {
	s.out.mu.Lock()
	defer s.out.mu.Unlock()
	s.out.notify = append(s.out.notify, f)
}

// openSession builds a session instance of checked options. It reads the TLS files and
// does not connect.
func openSession(use *gobridge.SessionUse, env gobridge.Env) (gobridge.Session, error) {
	set := sessionSettings(use.Session)
	brokers, err := set.Brokers()
	if err != nil {
		return nil, fmt.Errorf("session %s: broker_url: %w", use.Session.ID, err)
	}
	s := &session{
		id:      use.Session.ID,
		set:     set,
		log:     env.Logger,
		count:   newCounters(env.Metrics, use.Session.ID),
		metrics: env.Metrics,
		durable: use.Session.Mode != gobridge.ModeEphemeral,
		sharing: shares(use.Receiver),
		brokers: brokers,
		senders: map[string]*sender{},
		serves:  use.Receiver != nil,
		gate:    newGate(),
		carried: carriedOf(env),
		quiesce: env.Quiesce,
		spacing: recoverySpacing,
		confirm: confirmAfter,
		bound:   2*set.ConnectTimeout + 6*set.ReconcileTimeout + 2**set.UnmatchedGrace,
		wakeUp:  make(chan struct{}, 1),

		stopping: make(chan struct{}),
	}
	s.backoff = s.carried.backoffOf(set)
	s.recovery = newRecovery(s.log)
	s.void = s.carried.isVoid()
	if s.keyring, err = newKeyring(set, brokers, env.Credentials, s.log); err != nil {
		return nil, fmt.Errorf("session %s: %w", s.id, err)
	}
	s.ledger.up, s.ledger.down = s.up, s.down

	s.out = newOutbound(s.durable, s.log, s.count, s.wake)
	s.out.fence, s.doubt = env.Fence, env.Doubt
	for _, spec := range use.Senders {
		o := senderSettings(spec)
		s.out.qos2 = s.out.qos2 || o.QoS == "2" || o.QoS == Preserve
		s.out.confirm = s.out.confirm || o.QoS != "0" && set.OnQoSDowngrade != DowngradeAccept
		s.senders[spec.ID] = &sender{
			out: s.out, qos: o.QoS, retain: o.Retain, timeout: o.Timeout, throttle: *o.ThrottleRetryAfter,
		}
	}

	s.in = newInbound(s.log, s.count)
	s.in.window, s.in.budget, s.in.maxBody = set.ReceiveMaximum, set.RunningBudgetBytes(), int(set.MaxPayloadBytes)
	s.in.session = s.id
	s.in.durable, s.in.grace, s.in.recovery = s.durable, *set.UnmatchedGrace, s.recovery
	if use.Receiver != nil {
		if env.History != nil && s.durable {
			s.managed = &managed{store: env.History, key: historyKey(use)}
		}
		s.in.identity = use.Receiver.Identity
		s.filters = wantedOf(use)
		for i := range s.filters {
			_, filter, _ := gobridge.SplitShare(s.filters[i].filter)
			s.in.filters = append(s.in.filters, filter)
		}
		s.mayRemove = env.DeadLetters
	}
	s.registerGauges()
	return s, nil
}

func (s *session) Receiver() gobridge.Receiver {
	if !s.serves {
		return nil
	}
	return s.in
}

func (s *session) Sender(id string) gobridge.Sender {
	if snd := s.senders[id]; snd != nil {
		return snd
	}
	return nil
}

// wake makes Run deliver outcomes and look at what is asked of it.
func (s *session) wake() {
	select {
	case s.wakeUp <- struct{}{}:
	default: // it will look anyway
	}
}

// Run is part of gobridge.Session.
func (s *session) Run(ctx context.Context) error {
	defer s.removeGauges()
	if s.out.fence != nil {
		s.backoff.wake() // the waits are those of an earlier time as the owner
	}
	cm, err := autopaho.NewConnection(context.WithoutCancel(ctx), s.clientConfig())
	if err != nil {
		return fmt.Errorf("session %s: %w: %w", s.id, gobridge.ErrSessionUnrecoverable, err)
	}
	alive, end := context.WithCancel(ctx) // ends with the instance
	defer end()
	dead := make(chan struct{})
	s.tasks.Go(func() { s.watchCredentials(alive) })
	s.tasks.Go(func() { s.recoverUntil(alive, dead) })
	s.work(ctx, dead)
	end()
	s.shutdown(cm)
	if cause := s.recovery.failure(); cause != nil && ctx.Err() == nil {
		return fmt.Errorf("session %s: %w", s.id, cause)
	}
	return nil
}

// work owns the timers until ctx ends or the session is dead.
func (s *session) work(ctx context.Context, dead <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-dead:
			return
		case <-s.out.timer.C:
			if s.out.expire() {
				s.recycle("a publish was not answered in time")
			}
			s.out.flush()
			s.out.deliver()
		case <-s.in.timer.C:
			s.in.expireUnmatched()
		case <-s.wakeUp:
			s.out.deliver()
		}
	}
}

// shutdown ends the session in good order: acknowledgements, DISCONNECT, the
// broker's close; then nothing of it is left.
func (s *session) shutdown(cm *autopaho.ConnectionManager) {
	s.mu.Lock()
	s.closing = true
	c := s.link
	s.mu.Unlock()
	s.recovery.event(recoverClose, 0, nil)
	s.out.close()
	s.in.stop()
	if c != nil {
		s.in.lost(c.guardConn)
		s.out.deliver()
		c.disconnect(disconnectFor(wire.ReasonSuccess))
		select {
		case <-c.closed(): // the broker closed, and so did the library
		case <-time.After(closeWait):
			s.log.Warn("broker did not close the connection after DISCONNECT")
		}
		_ = c.Close()
	}
	close(s.stopping)
	_ = cm.Disconnect(context.Background()) // waits; its only error is that of the context
	s.tasks.Wait()
	s.closeHistory()
	s.out.end()
	s.out.deliver()
	s.in.purge()
	s.mu.Lock()
	s.ended = true
	s.carried.setVoid(s.void)
	s.mu.Unlock()
	s.log.Info("session closed")
}

// recycle makes the connection anew while the broker keeps the session. During a
// recovery, which does the same, it does nothing.
func (s *session) recycle(why string) {
	if c := s.linked(); c != nil && !s.recovery.owning() {
		s.depart(c.guardConn, fmt.Errorf("reconnecting: %s", why), func() {
			s.log.Warn("reconnecting", "why", why)
			s.backoff.skip()
		})
	}
}

// publish, ack, burstEnd, flushed and admit are the packetHandler of the
// session's connections.

func (s *session) publish(c *guardConn, p *wire.Publish) {
	pump, err := s.in.publish(c, p)
	if cause, ok := errors.AsType[*permanentCause](err); ok {
		s.failClosed(c, cause)
		return
	}
	if err != nil {
		s.refuse(c, err)
		return
	}
	if pump {
		s.in.pump()
	}
}

func (s *session) ack(c *guardConn, a wire.Ack) {
	if a.Type == wire.PUBREL {
		s.in.pubrel(c, a.ID)
		return
	}
	s.out.ack(c, a)
}

func (s *session) burstEnd(c *guardConn) {
	s.out.deliver()
	s.in.pump()
	c.flush()
}

func (s *session) flushed(c *guardConn, total uint64) {
	s.pinger.sent()
	s.out.flushed(c, total)
}

func (s *session) admit(c *guardConn, size int) bool { return s.in.admit(c, size) }

func (s *session) registerGauges() {
	s.metrics.GaugeFunc(metric.MQTTUnsettled, func() float64 { return float64(s.in.health().unsettled) }, s.id)
	s.metrics.GaugeFunc(metric.MQTTOldestUnsettledAge, func() float64 { return s.in.health().oldest.Seconds() }, s.id)
	s.metrics.GaugeFunc(metric.MQTTReceiveWindowUtilization, func() float64 {
		return float64(s.in.health().unsettled) / float64(s.in.window)
	}, s.id)
}

func (s *session) removeGauges() {
	for _, d := range []*metric.Desc{metric.MQTTUnsettled, metric.MQTTOldestUnsettledAge, metric.MQTTReceiveWindowUtilization} {
		s.metrics.GaugeFunc(d, nil, s.id)
	}
}

// brokerName is a broker URL for logs. It holds no user information.
func brokerName(u *url.URL) string { return strings.ToLower(u.Scheme) + "://" + u.Host }
