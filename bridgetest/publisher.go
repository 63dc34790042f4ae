package bridgetest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// redialPause is the time between two attempts of a Publisher or Collector to reach
// its broker.
const redialPause = 20 * time.Millisecond

// PublisherConfig describes what a [Publisher] publishes.
type PublisherConfig struct {
	Addr        string
	ClientID    string // defaults to "checker-publisher"
	Topic       string
	N           int     // messages, numbered 0 to N-1
	QoS         byte    // 1 or 2
	Rate        float64 // messages a second; 0 publishes flat out
	Window      int     // unacknowledged messages; defaults to 200
	PayloadSize int     // bytes: the number, a space and padding; 0 for the bare number
	MessageIDs  bool    // user property mqtt.message-id "m-<number>"
	Username    string
	Password    string
	TLS         *tls.Config

	// Properties returns further properties of message i; MessageIDs adds to them.
	Properties func(i int) *packets.Properties
}

// Publisher publishes numbered messages and goes on until each is acknowledged,
// through broker restarts and cut links: it resumes its session where the broker has
// it and publishes again what was open where the broker has not. It keeps the ledger
// against which a [Collector]'s messages are judged.
type Publisher struct {
	cfg    PublisherConfig
	cancel context.CancelFunc
	wg     sync.WaitGroup
	done   chan struct{} // closed when all is acknowledged, or at Stop

	mu       sync.Mutex
	next     int          // first number that was never sent
	again    []int        // sent, not acknowledged, and no session holds them; ascending
	acked    []bool       // by number
	ended    int          // acknowledged or refused
	resent   map[int]bool // went to the broker more than once
	refused  map[int]byte
	unrouted int
	dials    int
	lastErr  error
	changed  chan struct{} // closed and replaced when ended or again changed
}

// StartPublisher starts to publish and returns. The publisher is stopped in the
// Cleanup.
func StartPublisher(t testing.TB, cfg PublisherConfig) *Publisher {
	t.Helper()
	if cfg.ClientID == "" {
		cfg.ClientID = "checker-publisher"
	}
	if cfg.Window == 0 {
		cfg.Window = 200
	}
	if cfg.QoS == 0 {
		t.Fatal("publisher: QoS must be 1 or 2: nobody acknowledges QoS 0")
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	p := &Publisher{
		cfg: cfg, cancel: cancel, done: make(chan struct{}), changed: make(chan struct{}),
		acked: make([]bool, cfg.N), resent: make(map[int]bool), refused: make(map[int]byte),
	}
	p.wg.Go(func() { p.run(ctx) })
	t.Cleanup(p.Stop)
	return p
}

// Stop ends publishing, finished or not, and waits.
func (p *Publisher) Stop() {
	p.cancel()
	p.wg.Wait()
}

// Done is closed when every message was acknowledged or refused, or after Stop.
func (p *Publisher) Done() <-chan struct{} { return p.done }

// Wait waits until every message was acknowledged or refused. It ends the test with
// the state after timeout.
func (p *Publisher) Wait(t testing.TB, timeout time.Duration) {
	t.Helper()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended < p.cfg.N {
		t.Fatalf("publisher: %d of %d sent, %d acknowledged within %v; connections: %d, last error: %v", p.next, p.cfg.N, p.ended, timeout, p.dials, p.lastErr)
	}
}

// Ledger returns what was sent so far and how it ended.
func (p *Publisher) Ledger() Ledger {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := Ledger{
		Sent: p.next, Acked: p.ended - len(p.refused), Unrouted: p.unrouted,
		Resent: slices.Sorted(maps.Keys(p.resent)), Refused: maps.Clone(p.refused),
	}
	for seq, acked := range p.acked[:p.next] {
		if _, refused := p.refused[seq]; !acked && !refused {
			l.Open = append(l.Open, seq)
		}
	}
	return l
}

func (p *Publisher) run(ctx context.Context) {
	defer close(p.done)
	session := NewSession()
	start := time.Now()
	for ctx.Err() == nil && !p.finished() {
		c, err := Connect(ctx, ClientConfig{
			Addr: p.cfg.Addr, ClientID: p.cfg.ClientID, SessionExpiry: 3600, Window: p.cfg.Window, KeepAlive: 5,
			Username: p.cfg.Username, Password: p.cfg.Password, TLS: p.cfg.TLS, Session: session,
		})
		if err != nil {
			p.note(err)
			pause(ctx, redialPause)
			continue
		}
		p.mu.Lock()
		p.dials++
		p.mu.Unlock()
		err = p.publish(ctx, c, start)
		if err != nil {
			p.note(err)
			c.Abort()
			continue
		}
		c.Close()
	}
}

// publish sends what is due on one connection and waits for the acknowledgements. A
// nil error means that all are in.
func (p *Publisher) publish(ctx context.Context, c *Client, start time.Time) error {
	for {
		seq, changed := p.take()
		if seq < 0 {
			if p.finished() {
				return nil
			}
			select {
			case <-changed:
				continue
			case <-c.Done():
				return c.Err()
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if p.cfg.Rate > 0 {
			pause(ctx, time.Until(start.Add(time.Duration(float64(seq)/p.cfg.Rate*float64(time.Second)))))
		}
		if err := c.PublishAsync(ctx, p.message(seq), func(a Ack) { p.end(seq, a) }); err != nil {
			p.putBack(seq)
			return err
		}
	}
}

// take returns the next number to send: one that must be sent again before any new
// one, or -1 and a channel that tells of a change.
func (p *Publisher) take() (int, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.again) > 0 {
		seq := p.again[0]
		p.again = p.again[1:]
		return seq, nil
	}
	if p.next < p.cfg.N {
		p.next++
		return p.next - 1, nil
	}
	return -1, p.changed
}

// putBack returns a number that was taken and not sent.
func (p *Publisher) putBack(seq int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if seq == p.next-1 && !p.resent[seq] {
		p.next--
		return
	}
	p.sendAgain(seq)
}

// sendAgain needs mu.
func (p *Publisher) sendAgain(seq int) {
	i, _ := slices.BinarySearch(p.again, seq)
	p.again = slices.Insert(p.again, i, seq)
}

// end records how a message ended. The broker may have taken the message of a lost
// session, so to send it again allows a duplicate.
func (p *Publisher) end(seq int, a Ack) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a.Resent > 0 || a.Err != nil {
		p.resent[seq] = true
	}
	switch {
	case a.Err != nil:
		p.sendAgain(seq)
	case a.Reason >= 0x80:
		p.refused[seq] = a.Reason
		p.ended++
	default:
		if a.Reason == packets.PubackNoMatchingSubscribers {
			p.unrouted++
		}
		p.acked[seq] = true
		p.ended++
	}
	if a.Err != nil || p.ended == p.cfg.N {
		close(p.changed)
		p.changed = make(chan struct{})
	}
}

func (p *Publisher) finished() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended == p.cfg.N
}

func (p *Publisher) note(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastErr = err
}

func (p *Publisher) message(seq int) *packets.Publish {
	props := &packets.Properties{}
	if p.cfg.Properties != nil {
		props = p.cfg.Properties(seq)
	}
	if p.cfg.MessageIDs {
		props.User = append(props.User, packets.User{Key: "mqtt.message-id", Value: fmt.Sprintf("m-%d", seq)})
	}
	return &packets.Publish{Topic: p.cfg.Topic, QoS: p.cfg.QoS, Payload: numbered(seq, p.cfg.PayloadSize), Properties: props}
}

// numbered returns a payload that starts with seq in decimal, padded to size.
func numbered(seq, size int) []byte {
	b := strconv.AppendInt(nil, int64(seq), 10)
	if len(b) < size {
		b = append(b, ' ')
		b = append(b, strings.Repeat("x", size-len(b))...)
	}
	return b
}

// sequence reads the number of a payload made by numbered.
func sequence(payload []byte) (int, error) {
	digits, _, _ := strings.Cut(string(payload), " ")
	seq, err := strconv.Atoi(digits)
	if err != nil || seq < 0 {
		return 0, errors.New("payload does not start with a sequence number")
	}
	return seq, nil
}

// pause waits for d, less when ctx ends.
func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
