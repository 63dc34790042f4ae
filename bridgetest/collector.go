package bridgetest

import (
	"context"
	"crypto/tls"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// CollectorConfig describes what a [Collector] subscribes to.
type CollectorConfig struct {
	Addr           string
	ClientID       string // defaults to "checker-collector"
	Filter         string
	QoS            byte   // 1 or 2; defaults to 2, the QoS each message was published with
	ReceiveMaximum uint16 // 0 sends none
	Username       string
	Password       string
	TLS            *tls.Config

	// OnMessage sees every message, duplicates included, before it is counted. It runs
	// on the reading goroutine.
	OnMessage func(*Message)
}

// Collector is a durable subscriber that counts numbered messages by their number,
// through broker restarts and cut links.
type Collector struct {
	cfg    CollectorConfig
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu           sync.Mutex
	arrivals     *arrivals
	byID         map[uint16]string // payload of the last QoS 1 message by packet id
	reconnected  bool
	redelivered  int
	sessionsLost int
	triggers     map[int][]func()
	changed      chan struct{} // closed and replaced at each delivery
}

// StartCollector connects, subscribes and returns: what is published from then on is
// counted. It ends the test when the first subscribe is not granted. The collector is
// stopped in the Cleanup.
func StartCollector(t testing.TB, cfg CollectorConfig) *Collector {
	t.Helper()
	if cfg.ClientID == "" {
		cfg.ClientID = "checker-collector"
	}
	if cfg.QoS == 0 {
		cfg.QoS = 2
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	col := &Collector{
		cfg: cfg, cancel: cancel, arrivals: newArrivals(), byID: make(map[uint16]string),
		triggers: make(map[int][]func()), changed: make(chan struct{}),
	}
	session := NewSession()
	first, err := col.connect(ctx, session)
	if err != nil {
		cancel()
		t.Fatalf("collector: subscribe to %q on %s: %v", cfg.Filter, cfg.Addr, err)
	}
	col.wg.Go(func() { col.run(ctx, session, first) })
	t.Cleanup(col.Stop)
	return col
}

// Stop ends collecting and waits, for running triggers too.
func (col *Collector) Stop() {
	col.cancel()
	col.wg.Wait()
}

// connect opens a connection and subscribes if the broker has no session.
func (col *Collector) connect(ctx context.Context, session *Session) (*Client, error) {
	// Clean Start is never set: mosquitto 2.0.11 forgets sessions that began with it.
	c, err := Connect(ctx, ClientConfig{
		Addr: col.cfg.Addr, ClientID: col.cfg.ClientID, SessionExpiry: 3600, ReceiveMaximum: col.cfg.ReceiveMaximum, KeepAlive: 5,
		Username: col.cfg.Username, Password: col.cfg.Password, TLS: col.cfg.TLS, Session: session, OnMessage: col.receive,
	})
	if err != nil {
		return nil, err
	}
	if c.Connack().SessionPresent {
		return c, nil
	}
	col.mu.Lock()
	clear(col.byID)
	col.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	granted, err := c.Subscribe(ctx, packets.SubOptions{Topic: col.cfg.Filter, QoS: col.cfg.QoS, RetainAsPublished: true})
	if err == nil && granted[0] != col.cfg.QoS {
		err = fmt.Errorf("SUBACK 0x%02X, want QoS %d", granted[0], col.cfg.QoS)
	}
	if err != nil {
		c.Abort()
		return nil, err
	}
	return c, nil
}

func (col *Collector) run(ctx context.Context, session *Session, c *Client) {
	for {
		select {
		case <-c.Done():
			c.Close()
		case <-ctx.Done():
			c.Close()
			return
		}
		col.mu.Lock()
		col.reconnected = true
		col.mu.Unlock()
		for {
			var err error
			if c, err = col.connect(ctx, session); err == nil {
				break
			}
			if ctx.Err() != nil {
				return
			}
			pause(ctx, redialPause)
		}
		if !c.Connack().SessionPresent {
			col.mu.Lock()
			col.sessionsLost++
			col.mu.Unlock()
		}
	}
}

// receive counts one message on the reading goroutine.
func (col *Collector) receive(m *Message) {
	if col.cfg.OnMessage != nil {
		col.cfg.OnMessage(m)
	}
	col.mu.Lock()
	defer col.mu.Unlock()
	close(col.changed)
	col.changed = make(chan struct{})
	if m.QoS == 1 {
		if m.Dup && col.reconnected && col.byID[m.PacketID] == string(m.Payload) {
			col.redelivered++
			return
		}
		col.byID[m.PacketID] = string(m.Payload)
	}
	if !col.arrivals.add(m.Payload) {
		return
	}
	n := len(col.arrivals.order)
	for _, f := range col.triggers[n] {
		col.wg.Go(f)
	}
	delete(col.triggers, n)
}

// OnCount calls f once, on its own goroutine, when n different messages have arrived;
// at once if they have already. Stop waits for f, which must not call Stop.
func (col *Collector) OnCount(n int, f func()) {
	col.mu.Lock()
	defer col.mu.Unlock()
	if len(col.arrivals.order) >= n {
		col.wg.Go(f)
		return
	}
	col.triggers[n] = append(col.triggers[n], f)
}

// Count returns how many different messages have arrived.
func (col *Collector) Count() int {
	col.mu.Lock()
	defer col.mu.Unlock()
	return len(col.arrivals.order)
}

// WaitFor waits until n different messages have arrived and reports whether they did
// within timeout.
func (col *Collector) WaitFor(n int, timeout time.Duration) bool {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		col.mu.Lock()
		count, changed := len(col.arrivals.order), col.changed
		col.mu.Unlock()
		if count >= n {
			return true
		}
		select {
		case <-changed:
		case <-timer.C:
			return false
		}
	}
}

// WaitQuiet waits until no message came for d, so that late duplicates are counted. It
// reports whether that happened within timeout.
func (col *Collector) WaitQuiet(d, timeout time.Duration) bool {
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	for {
		col.mu.Lock()
		changed := col.changed
		col.mu.Unlock()
		quiet := time.NewTimer(d)
		select {
		case <-changed:
			quiet.Stop()
		case <-quiet.C:
			return true
		case <-deadline.C:
			quiet.Stop()
			return false
		}
	}
}

// Report judges what has arrived so far by the ledger of a publisher.
func (col *Collector) Report(l Ledger) Report {
	col.mu.Lock()
	defer col.mu.Unlock()
	r := col.arrivals.report(l)
	r.Redelivered, r.SessionsLost = col.redelivered, col.sessionsLost
	return r
}
