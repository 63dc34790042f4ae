// Package memory is a transport inside the process: a [Hub] stands in for a
// broker. Tests of the engine and programs that embed it use it, and it passes
// the same conformance suite as the other transports.
//
// Guarantees: a message of QoS 1 or 2 stays in the hub until its delivery is
// acknowledged; what is unsettled when a session ends is delivered again, in order,
// to the next one. A delivery that was given back comes again after [RetryDelay].
// Topics are matched as in MQTT.
package memory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/gobridge/gobridge"
)

// SessionOptions, ReceiverOptions and SenderOptions are empty: the hub is given
// to [Transport].
type (
	SessionOptions  struct{}
	ReceiverOptions struct{}
	SenderOptions   struct{}
)

// Transport returns the transport kind "memory" on a hub.
func Transport(h *Hub) *gobridge.Transport {
	return &gobridge.Transport{
		Name:            "memory",
		SessionOptions:  func() any { return &SessionOptions{} },
		ReceiverOptions: func() any { return &ReceiverOptions{} },
		SenderOptions:   func() any { return &SenderOptions{} },
		Check:           func(*gobridge.SessionUse, gobridge.Report) {},
		Endpoints:       func(s *gobridge.SessionSpec) []string { return []string{"memory:" + s.ID} },
		CheckAddress:    gobridge.ValidateTopic,
		Open: func(use *gobridge.SessionUse, _ gobridge.Env) (gobridge.Session, error) {
			return open(h, use), nil
		},
	}
}

// RetryDelay is the least time before a message that was given back by
// [gobridge.Delivery.Retry] is delivered again on the same session.
const RetryDelay = time.Second

// Message is one message in a hub.
type Message struct {
	Topic   string
	Payload []byte
	// ID is the producer's identity; empty means none.
	ID      string
	Headers []gobridge.Property
	QoS     uint8
	Expires time.Time
	// Hops counts the bridges crossed.
	Hops int
	// Unwanted marks the delivery of the message as such, see [gobridge.Delivery].
	Unwanted *gobridge.Error
}

// Hub holds the queues of its subscribers, keyed by session, and what was sent
// to it. Safe for concurrent use.
type Hub struct {
	mu       sync.Mutex
	queues   map[string]*queue
	sessions map[*session]struct{}
	down     bool
	answer   func(m *Message) error
	sent     []Message
	returned []Message
	onSent   func(Message)
}

// queue is what the hub keeps for one subscribing session.
type queue struct {
	filters []string
	waiting []*queued // not delivered, or given back, in order
	last    uint64
	owner   *session
}

// queued is one message in a queue.
type queued struct {
	Message
	seq uint64
	// due is when a message that was given back is delivered again, zero for others.
	due time.Time
}

// put queues a message again, in its place.
func (q *queue) put(m *queued) {
	i := len(q.waiting)
	for i > 0 && q.waiting[i-1].seq > m.seq {
		i--
	}
	q.waiting = slices.Insert(q.waiting, i, m)
}

// NewHub returns an empty hub.
func NewHub() *Hub {
	return &Hub{queues: map[string]*queue{}, sessions: map[*session]struct{}{}}
}

// SetDown takes the hub away from its senders, or gives it back. Messages in the
// hub stay.
func (h *Hub) SetDown(down bool) {
	h.mu.Lock()
	h.down = down
	all := h.all()
	h.mu.Unlock()
	for _, s := range all {
		s.poke()
		if !down {
			s.notify()
		}
	}
}

// SetAnswer sets how the hub answers each message sent to it: nil confirms it.
// Without an answer function everything is confirmed.
func (h *Hub) SetAnswer(f func(m *Message) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answer = f
}

// OnSent sets a function that hears of every confirmed message, in order.
func (h *Hub) OnSent(f func(Message)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.onSent = f
}

// Break ends the running instance of a session, as if it could not go on.
func (h *Hub) Break(sessionID string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.sessions {
		if s.id == sessionID {
			select {
			case s.broken <- fmt.Errorf("session %s was broken: %w", sessionID, gobridge.ErrSessionUnrecoverable):
			default: // it is about to end
			}
		}
	}
}

// Sent returns the confirmed messages in order.
func (h *Hub) Sent() []Message {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.sent)
}

// Returned returns the messages that were given back by Retry, in order.
func (h *Hub) Returned() []Message {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.returned)
}

// Publish puts a message into the queue of every session that subscribed to its
// topic, connected or not.
func (h *Hub) Publish(m Message) {
	h.mu.Lock()
	h.publish(m)
	all := h.all()
	h.mu.Unlock()
	for _, s := range all {
		s.poke()
	}
}

func (h *Hub) publish(m Message) {
	for _, q := range h.queues {
		if slices.ContainsFunc(q.filters, func(f string) bool { return gobridge.MatchTopic(f, m.Topic) }) {
			q.last++
			q.waiting = append(q.waiting, &queued{Message: m, seq: q.last})
		}
	}
}

// Unsettled counts the messages that wait in the hub or were delivered and not
// acknowledged.
func (h *Hub) Unsettled() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, q := range h.queues {
		n += len(q.waiting)
		if q.owner != nil {
			n += len(q.owner.open)
		}
	}
	return n
}

func (h *Hub) all() []*session {
	all := make([]*session, 0, len(h.sessions))
	for s := range h.sessions {
		all = append(all, s)
	}
	return all
}

// session is a connection to a hub. Its Run goroutine does what a socket reader
// does elsewhere: it offers deliveries and reports outcomes.
type session struct {
	hub     *Hub
	id      string
	filters []string
	senders map[string]*sender
	wake    chan struct{}
	broken  chan error // capacity 1

	// Under hub.mu.
	connected bool
	emit      gobridge.Emit
	emitting  sync.Mutex // held while emit runs
	open      []*delivery
	offered   []*delivery // not taken by the route
	pending   []*gobridge.Outbound
	notices   []func()
}

func open(h *Hub, use *gobridge.SessionUse) *session {
	s := &session{hub: h, id: use.Session.ID, senders: map[string]*sender{}, wake: make(chan struct{}, 1), broken: make(chan error, 1)}
	if use.Receiver != nil {
		for _, t := range use.Receiver.Topics {
			s.filters = append(s.filters, t.Topic)
		}
		h.mu.Lock()
		if h.queues[s.id] == nil {
			h.queues[s.id] = &queue{}
		}
		h.queues[s.id].filters = s.filters
		h.mu.Unlock()
	}
	for _, spec := range use.Senders {
		s.senders[spec.ID] = &sender{s}
	}
	return s
}

func (s *session) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run serves the session until ctx ends or the hub breaks it.
func (s *session) Run(ctx context.Context) error {
	s.hub.mu.Lock()
	s.connected = true
	s.hub.sessions[s] = struct{}{}
	if q := s.hub.queues[s.id]; q != nil && len(s.filters) > 0 {
		q.owner = s
	}
	s.hub.mu.Unlock()
	s.notify()
	defer s.end()
	for {
		s.confirm()
		s.deliver()
		select {
		case <-ctx.Done():
			return nil
		case err := <-s.broken:
			return err
		case <-s.wake:
		}
	}
}

// end gives unsettled messages back to the hub and fails what was not confirmed.
func (s *session) end() {
	h := s.hub
	h.mu.Lock()
	s.connected = false
	delete(h.sessions, s)
	if q := h.queues[s.id]; q != nil && q.owner == s {
		q.owner = nil
		for _, d := range s.open {
			if d.Redeliverable || slices.Contains(s.offered, d) {
				q.put(d.msg)
			}
		}
		for _, m := range q.waiting {
			m.due = time.Time{}
		}
		s.open, s.offered = nil, nil
	}
	pending := s.pending
	s.pending = nil
	h.mu.Unlock()
	s.complete(pending, func(*gobridge.Outbound) error { return gobridge.ErrConnectionLost })
}

// confirm answers the messages handed over.
func (s *session) confirm() {
	h := s.hub
	h.mu.Lock()
	pending := s.pending
	s.pending = nil
	answer, down, onSent := h.answer, h.down, h.onSent
	h.mu.Unlock()
	s.complete(pending, func(m *gobridge.Outbound) error {
		if down {
			return gobridge.ErrConnectionLost
		}
		e := m.Envelope
		msg := Message{Topic: m.Address, Payload: e.Payload, ID: e.ID, Headers: e.Headers, QoS: e.QoS, Expires: e.ExpiresAt, Hops: e.Hops + 1}
		if answer != nil {
			if err := answer(&msg); err != nil {
				return err
			}
		}
		h.mu.Lock()
		h.sent = append(h.sent, msg)
		h.publish(msg)
		all := h.all()
		h.mu.Unlock()
		if onSent != nil {
			onSent(msg)
		}
		for _, other := range all {
			other.poke()
		}
		return nil
	})
}

func (s *session) complete(pending []*gobridge.Outbound, outcome func(*gobridge.Outbound) error) {
	var touched []gobridge.Completion
	for _, m := range pending {
		c := m.Completion
		c.Done(m, outcome(m))
		if !slices.Contains(touched, c) {
			touched = append(touched, c)
		}
	}
	for _, c := range touched {
		c.Flush()
	}
}

// deliver offers what waits, in order. The route may take a part; the rest stays
// offered until Resume.
func (s *session) deliver() {
	h := s.hub
	s.emitting.Lock()
	defer s.emitting.Unlock()
	h.mu.Lock()
	emit := s.emit
	q := h.queues[s.id]
	if emit == nil || q == nil || q.owner != s {
		h.mu.Unlock()
		return
	}
	now := time.Now()
	q.waiting = slices.DeleteFunc(q.waiting, func(m *queued) bool {
		if now.Before(m.due) {
			return false
		}
		d := s.receive(m)
		s.open = append(s.open, d)
		s.offered = append(s.offered, d)
		return true
	})
	batch := make([]*gobridge.Delivery, len(s.offered))
	for i, d := range s.offered {
		batch[i] = &d.Delivery
	}
	h.mu.Unlock()
	if len(batch) == 0 {
		return
	}
	n, err := emit(batch)
	h.mu.Lock()
	s.offered = s.offered[n:]
	var refused *delivery
	if err != nil && len(s.offered) > 0 {
		refused, s.offered = s.offered[0], s.offered[1:]
	}
	h.mu.Unlock()
	switch {
	case refused == nil:
	case refused.Delivery.Retry(0, err) != nil:
		refused.Delivery.Ack() // nothing delivers it again: it is lost
		s.poke()
	default:
		s.poke()
	}
}

// delivery is one receipt from the hub.
type delivery struct {
	gobridge.Delivery
	session *session
	msg     *queued
}

func (s *session) receive(m *queued) *delivery {
	now := time.Now()
	id, origin := m.ID, gobridge.IDProducer
	if id == "" {
		id, origin = uuid.NewString(), gobridge.IDGenerated
	}
	d := &delivery{session: s, msg: m}
	d.Envelope = gobridge.Envelope{
		ID: id, IDOrigin: origin, Topic: m.Topic, Payload: m.Payload, Headers: m.Headers, QoS: m.QoS,
		CreatedAt: now, ExpiresAt: m.Expires, Hops: m.Hops,
	}
	d.Redeliverable = m.QoS > 0
	d.ReceivedAt = now
	d.Unwanted = m.Unwanted
	d.SetSettler(d)
	return d
}

// Ack removes the message from the hub.
func (d *delivery) Ack() {
	h := d.session.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if i := slices.Index(d.session.open, d); i >= 0 {
		d.session.open = slices.Delete(d.session.open, i, i+1)
	}
}

// Retry puts the message back into its queue. On a dead session it fails: the next
// one is given the message anyway.
func (d *delivery) Retry(after time.Duration, _ error) error {
	if !d.Redeliverable {
		return gobridge.ErrNotSupported
	}
	s := d.session
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	i := slices.Index(s.open, d)
	if i < 0 {
		return fmt.Errorf("give a message back to session %s: %w", s.id, gobridge.ErrSessionUnrecoverable)
	}
	s.open = slices.Delete(s.open, i, i+1)
	after = max(after, RetryDelay)
	d.msg.due = time.Now().Add(after)
	s.hub.queues[s.id].put(d.msg)
	s.hub.returned = append(s.hub.returned, d.msg.Message)
	time.AfterFunc(after, s.poke)
	return nil
}

// Extend is not needed: the hub has no deadline.
func (d *delivery) Extend(time.Time) error { return gobridge.ErrNotSupported }

// Receiver returns the session's receiver.
func (s *session) Receiver() gobridge.Receiver {
	if len(s.filters) == 0 {
		return nil
	}
	return (*receiver)(s)
}

type receiver session

// Run offers deliveries until ctx ends.
func (r *receiver) Run(ctx context.Context, emit gobridge.Emit) error {
	s := (*session)(r)
	s.hub.mu.Lock()
	if s.emit != nil {
		s.hub.mu.Unlock()
		return errors.New("memory receiver: Run is running already")
	}
	s.emit = emit
	s.hub.mu.Unlock()
	s.poke()
	<-ctx.Done()
	s.hub.mu.Lock()
	s.emit = nil
	s.hub.mu.Unlock()
	s.emitting.Lock() // an emit that is under way ends first
	defer s.emitting.Unlock()
	return nil
}

// Resume lets the session goroutine offer again.
func (r *receiver) Resume() { (*session)(r).poke() }

// Flush does nothing: acknowledgements are not buffered.
func (r *receiver) Flush() {}

// Sender returns the sender with the given id.
func (s *session) Sender(id string) gobridge.Sender {
	if snd := s.senders[id]; snd != nil {
		return snd
	}
	return nil
}

type sender struct{ s *session }

// Send hands a message to the session goroutine.
func (x *sender) Send(m *gobridge.Outbound) error {
	if err := gobridge.ValidateTopic(m.Address); err != nil {
		return &gobridge.Error{Code: gobridge.CodeInvalidTopic, Class: gobridge.ClassRejected, Op: fmt.Sprintf("send to %q", m.Address), Err: err}
	}
	h := x.s.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.down || !x.s.connected {
		return gobridge.ErrNotConnected
	}
	x.s.pending = append(x.s.pending, m)
	return nil
}

// Flush wakes the session goroutine.
func (x *sender) Flush() { x.s.poke() }

// Available reports whether the hub can be reached.
func (x *sender) Available() error {
	x.s.hub.mu.Lock()
	defer x.s.hub.mu.Unlock()
	if x.s.hub.down || !x.s.connected {
		return gobridge.ErrNotConnected
	}
	return nil
}

// Notify registers f.
func (x *sender) Notify(f func()) {
	x.s.hub.mu.Lock()
	defer x.s.hub.mu.Unlock()
	x.s.notices = append(x.s.notices, f)
}

func (s *session) notify() {
	s.hub.mu.Lock()
	var fs []func()
	if s.connected && !s.hub.down {
		fs = slices.Clone(s.notices)
	}
	s.hub.mu.Unlock()
	for _, f := range fs {
		f()
	}
}

// Health is a snapshot.
func (s *session) Health() gobridge.SessionHealth {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	h := gobridge.SessionHealth{
		State: "closed", Connected: s.connected, SubscriptionsWanted: len(s.filters),
		UnsettledCount: len(s.open), ServiceLevel: gobridge.LevelNone,
	}
	if s.connected {
		h.State, h.SubscriptionsActive, h.ServiceLevel = "ready", len(s.filters), gobridge.LevelFull
	}
	if len(s.open) > 0 {
		h.OldestUnsettledAge = time.Since(s.open[0].ReceivedAt)
	}
	return h
}
