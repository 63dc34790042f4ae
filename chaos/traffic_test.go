package chaos

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/gobridge/gobridge/bridgetest"
)

// sender publishes one stream and notes when.
type sender struct {
	*stream
	n      int // messages, numbered 0 to n-1
	topic  string
	source *bridgetest.Mosquitto
	pub    *bridgetest.Publisher // nil for QoS 0
	ended  chan struct{}         // closed when a QoS 0 sender has ended

	mu   sync.Mutex
	sent []time.Time // when each was given to the network for the last time
}

// startSender publishes a stream for as long as tells.
func startSender(t *testing.T, w *world, s *stream, lasts time.Duration) *sender {
	t.Helper()
	snd := &sender{
		stream: s, n: max(1, int(s.rate*lasts.Seconds())), topic: w.plan.topic(s), source: w.source.broker, ended: make(chan struct{}),
	}
	snd.sent = make([]time.Time, snd.n)
	if s.qos == 0 {
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		go func() {
			defer close(snd.ended)
			snd.run(ctx)
		}()
		t.Cleanup(func() { cancel(); <-snd.ended })
		return snd
	}
	close(snd.ended)
	size := 60
	if s.leaf == poison {
		size = sizeLimit + 1
	}
	snd.pub = bridgetest.StartPublisher(t, bridgetest.PublisherConfig{
		Addr: w.source.broker.Addr(), ClientID: "checker-" + snd.topic, Username: checker, Password: checker,
		Topic: snd.topic, N: snd.n, QoS: s.qos, Rate: s.rate, PayloadSize: size, Properties: snd.properties,
	})
	return snd
}

// properties notes the time and returns the properties of message i. Ids are the same
// on every route: they tell messages of one binding apart.
func (s *sender) properties(i int) *packets.Properties {
	s.mu.Lock()
	s.sent[i] = time.Now()
	s.mu.Unlock()
	p := &packets.Properties{}
	if s.ids != none {
		n := i
		if s.ids == reused {
			n = s.group(i)
		}
		p.User = append(p.User, packets.User{Key: "mqtt.message-id", Value: fmt.Sprintf("%s-%d", s.leaf, n)})
	}
	if s.leaf == expiring {
		p.MessageExpiry = new(uint32(1))
	}
	return p
}

// group is the number that messages under one reused id share.
func (s *stream) group(i int) int { return i / 3 }

// sentAt returns when message i was sent, for the last time.
func (s *sender) sentAt(i int) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent[i]
}

// run publishes QoS 0: what no connection takes is gone.
func (s *sender) run(ctx context.Context) {
	var c *bridgetest.Client
	defer func() {
		if c != nil {
			c.Close()
		}
	}()
	tick := time.NewTicker(time.Duration(float64(time.Second) / s.rate))
	defer tick.Stop()
	for i := range s.n {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if c == nil {
			var err error
			if c, err = bridgetest.Connect(ctx, bridgetest.ClientConfig{
				Addr: s.source.Addr(), ClientID: "checker-" + s.topic, CleanStart: true, Username: checker, Password: checker, Timeout: time.Second,
			}); err != nil {
				c = nil
				continue
			}
		}
		err := c.PublishAsync(ctx, &packets.Publish{Topic: s.topic, Payload: []byte(strconv.Itoa(i)), Properties: s.properties(i)}, nil)
		if err != nil {
			c.Abort()
			c = nil
		}
	}
}

// wait waits until everything was sent and acknowledged, and calls look meanwhile.
func (s *sender) wait(t *testing.T, timeout time.Duration, look func()) {
	t.Helper()
	var done <-chan struct{} = s.ended
	if s.pub != nil {
		done = s.pub.Done()
	}
	for deadline := time.Now().Add(timeout); ; look() {
		select {
		case <-done:
			return
		case <-time.After(100 * ms):
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not everything was sent within %v: %+v", s.topic, timeout, s.ledger())
		}
	}
}

// ledger tells how sending ended.
func (s *sender) ledger() bridgetest.Ledger {
	if s.pub == nil {
		return bridgetest.Ledger{Sent: s.n}
	}
	return s.pub.Ledger()
}

// way is where messages of a topic arrive: at a binding.
type way struct{ binding, topic string }

// arrived is what came of one stream on one way.
type arrived struct {
	count map[int]int
	first map[int]time.Time
	order []int // first arrivals
}

// sink collects what arrives at the destinations.
type sink struct {
	collectors []*bridgetest.Collector

	mu      sync.Mutex
	ways    map[way]*arrived
	foreign []string
	last    time.Time
}

func startSink(t *testing.T, w *world) *sink {
	t.Helper()
	s := &sink{ways: map[way]*arrived{}}
	for _, d := range w.dests {
		s.collectors = append(s.collectors, bridgetest.StartCollector(t, bridgetest.CollectorConfig{
			Addr: d.broker.Addr(), Filter: "out/#", Username: checker, Password: checker, OnMessage: s.take,
		}))
	}
	return s
}

// take counts a message on out/BINDING/TOPIC.
func (s *sink) take(m *bridgetest.Message) {
	binding, topic, _ := strings.Cut(strings.TrimPrefix(m.Topic, "out/"), "/")
	digits, _, _ := strings.Cut(string(m.Payload), " ")
	seq, err := strconv.Atoi(digits)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = time.Now()
	if err != nil {
		s.foreign = append(s.foreign, fmt.Sprintf("%q on %s", m.Payload, m.Topic))
		return
	}
	a := s.ways[way{binding, topic}]
	if a == nil {
		a = &arrived{count: map[int]int{}, first: map[int]time.Time{}}
		s.ways[way{binding, topic}] = a
	}
	a.count[seq]++
	if a.count[seq] == 1 {
		a.first[seq] = s.last
		a.order = append(a.order, seq)
	}
}

// String lists the first arrivals.
func (s *sink) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	for w, a := range s.ways {
		for _, seq := range a.order {
			fmt.Fprintf(&b, "%s %s %s %d\n", w.binding, w.topic, a.first[seq].Format("15:04:05.000"), seq)
		}
	}
	return b.String()
}

// quiet tells how long nothing has arrived.
func (s *sink) quiet() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.last)
}
