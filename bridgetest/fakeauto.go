package bridgetest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// AutoConfig says how a [FakeBroker] answers by itself. The zero value is a sink
// that accepts everything. Hooks run on the goroutine of the connection, without
// locks, so they may call [Auto] and [FakeConn] methods.
type AutoConfig struct {
	// Connack changes the answer to CONNECT, which comes with success and the right
	// Session Present. Clearing Session Present drops the session; a reason code of
	// 0x80 or more closes the connection after it.
	Connack func(conn *FakeConn, connect *packets.Connect, connack *packets.Connack)

	// Grant returns the SUBACK reason code of a filter. Nil grants the QoS asked for.
	Grant func(packets.SubOptions) byte

	// PubAck returns the reason code of the PUBACK or PUBREC for p, or holds it back
	// until [Auto.ReleaseHeld]. Nil accepts.
	PubAck func(p *packets.Publish) (reason byte, hold bool)

	// AckDelay is the time between a PUBLISH and its PUBACK or PUBREC, as on a slow
	// or far broker: the acknowledgements keep their order and do not add up.
	AckDelay time.Duration

	// PubComp returns the reason code of the PUBCOMP, or holds it back. Nil accepts.
	PubComp func(packetID uint16) (reason byte, hold bool)

	// Source publishes to the first client that subscribes.
	Source *SourceConfig

	// DropRecords keeps no packets, for long runs: Records and Received stay empty.
	DropRecords bool
}

// SourceConfig describes the messages of an automatic source.
type SourceConfig struct {
	N          int // messages, numbered from 0
	Topic      string
	QoS        byte                            // 1 or 2
	Payload    func(i int) []byte              // nil sends the number in decimal
	Properties func(i int) *packets.Properties // nil sends none
	Window     int                             // 0 honours the client's Receive Maximum; more ignores it, as a broken broker does
}

// AutoStats is what an [Auto] has counted so far.
type AutoStats struct {
	Received        int // messages taken from clients
	ReceivedDup     int // publishes that came with DUP
	ReceivedRepeats int // QoS 2 publishes with an id that was taken and not released: not taken again
	PeakOutstanding int // most publishes from one client without PUBACK or PUBCOMP at a time

	SourceSent       int // source messages sent for the first time
	SourceResent     int // sent again with DUP
	SourceAcked      int // ended with success
	SourceRefused    int // ended with a reason code of 0x80 or more
	SourceLost       int // open when their session was dropped
	PeakOpen         int // most source messages open at a time
	AcksOutOfOrder   int // PUBACK or PUBREC that was not the oldest one due (MQTT v5 section 4.6)
	AcksUnknown      int // PUBACK, PUBREC or PUBCOMP for an id that is not open
	SessionsResumed  int
	SessionTakeovers int
}

// Auto is the automatic part of a [FakeBroker]: a sink for what clients publish and,
// if configured, a source. It does not route messages from one client to another.
type Auto struct {
	fb  *FakeBroker
	cfg AutoConfig

	mu        sync.Mutex
	stats     AutoStats
	published []*packets.Publish
	resent    map[int]bool // numbers of source messages
	sessions  map[string]*autoSession
	source    *autoSession // who gets the source's messages
	held      []heldAnswer
	changed   chan struct{} // closed and replaced when stats changed
}

// autoSession is the broker's half of a client's session.
type autoSession struct {
	conn     *FakeConn // nil while the client is away
	window   int
	open     map[uint16]*sourceMessage
	due      []uint16 // ids without PUBACK or PUBREC, in sending order
	lastID   uint16
	incoming map[uint16]bool // client's publishes without PUBACK or PUBCOMP; true at QoS 2
}

type sourceMessage struct {
	packet   *packets.Publish
	number   int
	released bool // PUBREC came
}

// Auto makes the broker answer by itself. It must be called before clients connect.
func (fb *FakeBroker) Auto(cfg AutoConfig) *Auto {
	if s := cfg.Source; s != nil && s.Payload == nil {
		withNumbers := *s
		withNumbers.Payload = func(i int) []byte { return fmt.Append(nil, i) }
		cfg.Source = &withNumbers
	}
	a := &Auto{fb: fb, cfg: cfg, sessions: make(map[string]*autoSession), resent: make(map[int]bool), changed: make(chan struct{})}
	fb.mu.Lock()
	defer fb.mu.Unlock()
	fb.auto = a
	return a
}

// Stats returns the counts so far.
func (a *Auto) Stats() AutoStats {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stats
}

// Received returns the messages taken from clients so far, in order of arrival. With
// DropRecords it is empty.
func (a *Auto) Received() []*packets.Publish {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.published[:len(a.published):len(a.published)]
}

// Ledger returns the source's side of a [Report]. Its messages carry their numbers
// unless SourceConfig.Payload says otherwise.
func (a *Auto) Ledger() Ledger {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := Ledger{Sent: a.stats.SourceSent, Acked: a.stats.SourceAcked, Resent: slices.Sorted(maps.Keys(a.resent))}
	for _, s := range a.sessions {
		for _, m := range s.open {
			l.Open = append(l.Open, m.number)
		}
	}
	slices.Sort(l.Open)
	return l
}

// Report judges the messages taken so far by the ledger of a source, as a
// [Collector] behind a real broker would.
func (a *Auto) Report(l Ledger) Report {
	arrived := newArrivals()
	for _, p := range a.Received() {
		arrived.add(p.Payload)
	}
	return arrived.report(l)
}

// ReleaseHeld sends the answers that hooks held back, oldest first, or with reverse
// newest first; those of connections that have ended are dropped.
func (a *Auto) ReleaseHeld(reverse bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if reverse {
		slices.Reverse(a.held)
	}
	for _, h := range a.held {
		a.answer(h)
	}
	a.held = nil
}

// Wait waits until the counts satisfy ok and returns them. It ends the test with the
// last counts after timeout.
func (a *Auto) Wait(timeout time.Duration, ok func(AutoStats) bool) AutoStats {
	a.fb.t.Helper()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		a.mu.Lock()
		stats, changed := a.stats, a.changed
		a.mu.Unlock()
		if ok(stats) {
			return stats
		}
		select {
		case <-changed:
		case <-timer.C:
			a.fb.t.Fatalf("fake broker: not there within %v: %+v", timeout, stats)
		}
	}
}

// connect answers CONNECT and resumes the session. It returns nil when the answer was
// a refusal.
func (a *Auto) connect(c *FakeConn, connect *packets.Connect) *autoSession {
	a.mu.Lock()
	_, present := a.sessions[connect.ClientID]
	a.mu.Unlock()
	connack := &packets.Connack{SessionPresent: present && !connect.CleanStart, Properties: &packets.Properties{}}
	if connect.ClientID == "" {
		connack.Properties.AssignedClientID = fmt.Sprintf("auto-%d", c.Epoch)
		connect.ClientID = connack.Properties.AssignedClientID
	}
	if a.cfg.Connack != nil {
		a.cfg.Connack(c, connect, connack)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	defer a.notify()
	c.ConnAck(connack)
	if connack.ReasonCode >= 0x80 {
		return nil
	}
	s := a.sessions[connect.ClientID]
	if s != nil && s.conn != nil {
		a.stats.SessionTakeovers++
		s.conn.Disconnect(packets.DisconnectSessionTakenOver)
		s.conn = nil
	}
	if s == nil || !connack.SessionPresent {
		fresh := &autoSession{open: make(map[uint16]*sourceMessage), incoming: make(map[uint16]bool)}
		if s != nil {
			a.drop(connect.ClientID, s)
		}
		s = fresh
		a.sessions[connect.ClientID] = s
	} else {
		a.stats.SessionsResumed++
	}
	s.conn, s.window = c, 65535
	if m := connect.Properties.ReceiveMaximum; m != nil {
		s.window = int(*m)
	}
	if a.cfg.Source != nil && a.cfg.Source.Window > 0 {
		s.window = a.cfg.Source.Window
	}
	a.redeliver(s)
	a.pump()
	return s
}

// leave ends the connection's part in the session.
func (a *Auto) leave(s *autoSession, c *FakeConn, clientID string, expiry uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	defer a.notify()
	if s.conn != c {
		return // taken over
	}
	s.conn = nil
	if expiry == 0 {
		a.drop(clientID, s)
	}
}

// drop ends a session. Like notify, redeliver and pump it needs mu.
func (a *Auto) drop(clientID string, s *autoSession) {
	a.stats.SourceLost += len(s.open)
	delete(a.sessions, clientID)
	if a.source == s {
		a.source = nil
	}
}

func (a *Auto) notify() {
	close(a.changed)
	a.changed = make(chan struct{})
}

// redeliver sends again what is open, in its first order.
func (a *Auto) redeliver(s *autoSession) {
	byNumber := func(x, y *sourceMessage) int { return cmp.Compare(x.number, y.number) }
	s.due = nil
	for _, m := range slices.SortedFunc(maps.Values(s.open), byNumber) {
		if m.released {
			s.conn.Send(&packets.Pubrel{PacketID: m.packet.PacketID})
			continue
		}
		m.packet.Duplicate = true
		a.stats.SourceResent++
		a.resent[m.number] = true
		s.due = append(s.due, m.packet.PacketID)
		s.conn.Send(m.packet)
	}
}

// pump sends source messages up to the window.
func (a *Auto) pump() {
	s, src := a.source, a.cfg.Source
	if s == nil || s.conn == nil {
		return
	}
	for len(s.open) < s.window && a.stats.SourceSent < src.N {
		for s.lastID++; s.lastID == 0 || s.open[s.lastID] != nil; s.lastID++ {
		}
		i := a.stats.SourceSent
		p := &packets.Publish{Topic: src.Topic, QoS: src.QoS, PacketID: s.lastID, Payload: src.Payload(i)}
		if src.Properties != nil {
			p.Properties = src.Properties(i)
		}
		s.open[s.lastID] = &sourceMessage{packet: p, number: i}
		s.due = append(s.due, s.lastID)
		s.conn.Send(p)
		a.stats.SourceSent++
		a.stats.PeakOpen = max(a.stats.PeakOpen, len(s.open))
	}
}
