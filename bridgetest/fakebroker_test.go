package bridgetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/google/go-cmp/cmp"
)

// connectTo connects a client while the script answers its CONNECT.
func connectTo(t *testing.T, fb *FakeBroker, cfg ClientConfig, connack *packets.Connack) (*Client, *FakeConn) {
	t.Helper()
	cfg.Addr = fb.Addr()
	var (
		c   *Client
		err error
		wg  sync.WaitGroup
	)
	wg.Go(func() { c, err = Connect(t.Context(), cfg) })
	conn := fb.Accept()
	conn.Handshake(connack)
	wg.Wait()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Abort)
	return c, conn
}

func TestFakeBrokerAnnouncesAnything(t *testing.T) {
	fb := NewFakeBroker(t)
	want := &packets.Connack{SessionPresent: true, Properties: &packets.Properties{
		ReceiveMaximum: new(uint16(5)), MaximumQOS: new(byte(1)), RetainAvailable: new(byte(0)), MaximumPacketSize: new(uint32(300)),
		SessionExpiryInterval: new(uint32(9)), ServerKeepAlive: new(uint16(3)), AssignedClientID: "you", ReasonString: "why",
	}}
	c, _ := connectTo(t, fb, ClientConfig{ClientID: "me", SessionExpiry: 60}, want)
	if diff := cmp.Diff(want, c.Connack()); diff != "" {
		t.Errorf("CONNACK (-want +got):\n%s", diff)
	}
	var connects int
	for _, r := range fb.Records() {
		if connect, ok := r.Packet.Content.(*packets.Connect); ok && connect.ClientID == "me" && r.Epoch == 1 && !r.At.IsZero() {
			connects++
		}
	}
	if connects != 1 {
		t.Errorf("records show %d CONNECTs of connection 1, want 1", connects)
	}
}

func TestFakeBrokerRefusesConnections(t *testing.T) {
	fb := NewFakeBroker(t)
	fb.Auto(AutoConfig{Connack: func(_ *FakeConn, _ *packets.Connect, a *packets.Connack) { a.ReasonCode = packets.ConnackServerBusy }})
	_, err := Connect(t.Context(), ClientConfig{Addr: fb.Addr()})
	if refused, ok := errors.AsType[*ConnackError](err); !ok || refused.Code != packets.ConnackServerBusy {
		t.Errorf("got %v, want reason 0x89", err)
	}
}

func TestFakeBrokerGrantsPerFilterAndSendsWhatItIsTold(t *testing.T) {
	fb := NewFakeBroker(t)
	c, conn := connectTo(t, fb, ClientConfig{ManualAck: true}, nil)
	var wg sync.WaitGroup
	wg.Go(func() { conn.Grant(conn.ExpectSubscribe(), 1, packets.SubackNotauthorized) })
	granted, err := c.Subscribe(t.Context(), packets.SubOptions{Topic: "a", QoS: 2}, packets.SubOptions{Topic: "b", QoS: 1})
	wg.Wait()
	if diff := cmp.Diff([]byte{1, packets.SubackNotauthorized}, granted); diff != "" || err != nil {
		t.Fatalf("granted (-want +got):\n%s%v", diff, err)
	}
	conn.Send(&packets.Publish{Topic: "a", QoS: 2, PacketID: 7, Duplicate: true, Retain: true, Payload: []byte("x")})
	got := c.MustReceive(t, 5*time.Second)
	if got.QoS != 2 || got.PacketID != 7 || !got.Dup || !got.Retain {
		t.Errorf("got QoS %d id %d dup %t retain %t", got.QoS, got.PacketID, got.Dup, got.Retain)
	}
	conn.ExpectNothing(50 * time.Millisecond)
	if err := got.Ack(0x97); err != nil {
		t.Fatal(err)
	}
	if rec := conn.Expect(packets.PUBREC).Content.(*packets.Pubrec); rec.PacketID != 7 || rec.ReasonCode != 0x97 {
		t.Errorf("PUBREC %d 0x%02X", rec.PacketID, rec.ReasonCode)
	}
	conn.SendRaw([]byte{0xF0, 0x02, 0, 0}) // AUTH with a truncated body
	conn.Disconnect(packets.DisconnectSessionTakenOver)
	select {
	case <-c.Done():
	case <-time.After(5 * time.Second):
		t.Error("raw bytes and DISCONNECT did not end the client")
	}
}

func TestFakeBrokerEndsConnectionsInThreeWays(t *testing.T) {
	fb := NewFakeBroker(t)
	ends := map[string]func(*FakeConn){
		"DISCONNECT 0x8E": func(c *FakeConn) { c.Disconnect(packets.DisconnectSessionTakenOver) },
		"EOF":             (*FakeConn).Close,
		"reset by peer":   (*FakeConn).Reset,
	}
	for want, end := range ends {
		c, conn := connectTo(t, fb, ClientConfig{}, nil)
		end(conn)
		select {
		case <-c.Done():
			if !strings.Contains(c.Err().Error(), want) {
				t.Errorf("ended with %v, want %s", c.Err(), want)
			}
		case <-time.After(5 * time.Second):
			t.Errorf("%s: the client goes on", want)
		}
	}
}

func TestFakeBrokerWithholdsPings(t *testing.T) {
	fb := NewFakeBroker(t)
	answered, _ := connectTo(t, fb, ClientConfig{KeepAlive: 1}, nil)
	silent, conn := connectTo(t, fb, ClientConfig{KeepAlive: 1}, nil)
	conn.WithholdPings(true)
	select {
	case <-silent.Done():
	case <-time.After(5 * time.Second):
		t.Error("the client lives on without PINGRESP")
	}
	select {
	case <-answered.Done():
		t.Errorf("the answered client ended: %v", answered.Err())
	default:
	}
}

func TestFakeBrokerExpectationsFail(t *testing.T) {
	fb := NewFakeBroker(t)
	c, conn := connectTo(t, fb, ClientConfig{}, nil)
	if err := c.PublishAsync(t.Context(), &packets.Publish{Topic: "t", QoS: 1}, nil); err != nil {
		t.Fatal(err)
	}
	check := func(want string, expect func()) {
		t.Helper()
		r := record(t, func(tb testing.TB) {
			fb.t = tb
			defer func() { fb.t = t }()
			expect()
		})
		if !strings.Contains(r.failed, want) {
			t.Errorf("failed with %q, want %q", r.failed, want)
		}
	}
	check("got PUBLISH, want SUBSCRIBE", func() { conn.ExpectSubscribe() })
	if err := c.PublishAsync(t.Context(), &packets.Publish{Topic: "t"}, nil); err != nil {
		t.Fatal(err)
	}
	check("want nothing", func() { conn.ExpectNothing(5 * time.Second) })
	c.Abort()
	check("ended", func() { conn.ExpectPublish() })
}

func TestAutoSinkHoldsReordersAndRefuses(t *testing.T) {
	for _, qos := range []byte{1, 2} {
		t.Run(fmt.Sprintf("QoS%d", qos), func(t *testing.T) {
			fb := NewFakeBroker(t)
			auto := fb.Auto(AutoConfig{
				PubAck: func(p *packets.Publish) (byte, bool) {
					if string(p.Payload) == "bad" {
						return packets.PubackQuotaExceeded, false
					}
					return 0, strings.HasPrefix(string(p.Payload), "hold")
				},
				Connack: func(_ *FakeConn, _ *packets.Connect, a *packets.Connack) {
					a.Properties.ReceiveMaximum = new(uint16(3))
				},
			})
			c := MustConnect(t, ClientConfig{Addr: fb.Addr(), CleanStart: true})
			ends := make(chan string, 4)
			publish := func(ctx context.Context, text string) error {
				p := &packets.Publish{Topic: "t", QoS: qos, Payload: []byte(text)}
				return c.PublishAsync(ctx, p, func(a Ack) { ends <- fmt.Sprintf("%s %d", text, a.Reason) })
			}
			for _, text := range []string{"hold-1", "hold-2", "bad", "hold-3"} {
				if err := publish(t.Context(), text); err != nil {
					t.Fatal(err)
				}
			}
			if got := <-ends; got != "bad 151" {
				t.Errorf("first end %q", got)
			}
			auto.Wait(5*time.Second, func(s AutoStats) bool { return s.Received == 4 })
			full, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if err := publish(full, "one too many"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("over the Receive Maximum: %v, want to wait", err)
			}
			auto.ReleaseHeld(true)
			var order []string
			for range 3 {
				order = append(order, <-ends)
			}
			if diff := cmp.Diff([]string{"hold-3 0", "hold-2 0", "hold-1 0"}, order); diff != "" {
				t.Errorf("ends (-want +got):\n%s", diff)
			}
			if s := auto.Stats(); s.PeakOutstanding != 3 {
				t.Errorf("peak outstanding %d, want 3", s.PeakOutstanding)
			}
		})
	}
}

func TestAutoSinkTakesARepeatedQoS2PublishOnce(t *testing.T) {
	fb := NewFakeBroker(t)
	auto := fb.Auto(AutoConfig{PubComp: func(uint16) (byte, bool) { return 0, true }})
	cfg := ClientConfig{Addr: fb.Addr(), ClientID: "c", SessionExpiry: 60}
	c := MustConnect(t, cfg)
	p := &packets.Publish{Topic: "t", QoS: 2, PacketID: 9}
	for range 2 {
		if err := c.out.put(p); err != nil {
			t.Fatal(err)
		}
	}
	s := auto.Wait(5*time.Second, func(s AutoStats) bool { return s.Received+s.ReceivedRepeats == 2 })
	if s.Received != 1 || len(auto.Received()) != 1 {
		t.Errorf("taken %d times, want once: %+v", s.Received, s)
	}
}

func TestAutoSinkAnswersSlowlyButInParallel(t *testing.T) {
	fb := NewFakeBroker(t)
	fb.Auto(AutoConfig{AckDelay: 50 * time.Millisecond})
	c := MustConnect(t, ClientConfig{Addr: fb.Addr(), CleanStart: true})
	start := time.Now()
	var acks sync.WaitGroup
	for range 100 {
		acks.Add(1)
		if err := c.PublishAsync(t.Context(), &packets.Publish{Topic: "t", QoS: 1}, func(Ack) { acks.Done() }); err != nil {
			t.Fatal(err)
		}
	}
	acks.Wait()
	if took := time.Since(start); took < 50*time.Millisecond || took > 2*time.Second {
		t.Errorf("100 acks of 50 ms took %v", took)
	}
}

func TestAutoSourceHonoursTheWindowAndRedelivers(t *testing.T) {
	for _, qos := range []byte{1, 2} {
		t.Run(fmt.Sprintf("QoS%d", qos), func(t *testing.T) {
			fb := NewFakeBroker(t)
			auto := fb.Auto(AutoConfig{Source: &SourceConfig{N: 100, Topic: "s", QoS: qos}})
			cfg := ClientConfig{Addr: fb.Addr(), ClientID: "c", SessionExpiry: 60, ReceiveMaximum: 10, ManualAck: true, Session: NewSession()}
			c := MustConnect(t, cfg)
			subscribe(t, c, packets.SubOptions{Topic: "s", QoS: qos})
			for i := range 5 {
				m := c.MustReceive(t, 5*time.Second)
				if string(m.Payload) != fmt.Sprint(i) {
					t.Fatalf("message %d is %s", i, m.Payload)
				}
				if err := m.Ack(0); err != nil {
					t.Fatal(err)
				}
			}
			s := auto.Wait(5*time.Second, func(s AutoStats) bool { return s.SourceAcked == 5 && s.SourceSent == 15 })
			c.Abort()
			cfg.ManualAck = false
			c = MustConnect(t, cfg)
			for i := range 95 {
				m := c.MustReceive(t, 5*time.Second)
				if string(m.Payload) != fmt.Sprint(i+5) || m.Dup != (i < 10) {
					t.Fatalf("after the resume message %d is %s dup %t", i, m.Payload, m.Dup)
				}
			}
			s = auto.Wait(5*time.Second, func(s AutoStats) bool { return s.SourceAcked == 100 })
			want := AutoStats{SourceSent: 100, SourceResent: 10, SourceAcked: 100, PeakOpen: 10, SessionsResumed: 1}
			want.SessionTakeovers = s.SessionTakeovers // 1 when CONNECT overtakes the news of the reset
			if diff := cmp.Diff(want, s); diff != "" {
				t.Errorf("stats (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAutoSourceSeesAcksOutOfOrderAndLosesDroppedSessions(t *testing.T) {
	fb := NewFakeBroker(t)
	auto := fb.Auto(AutoConfig{Source: &SourceConfig{N: 3, Topic: "s", QoS: 1, Window: 3}})
	c := MustConnect(t, ClientConfig{Addr: fb.Addr(), ClientID: "c", ReceiveMaximum: 1, ManualAck: true})
	subscribe(t, c, packets.SubOptions{Topic: "s", QoS: 1})
	c.MustReceive(t, 5*time.Second)
	if err := c.MustReceive(t, 5*time.Second).Ack(0); err != nil {
		t.Fatal(err)
	}
	auto.Wait(5*time.Second, func(s AutoStats) bool { return s.SourceAcked == 1 })
	c.Close() // without session expiry
	s := auto.Wait(5*time.Second, func(s AutoStats) bool { return s.SourceLost > 0 })
	want := AutoStats{SourceSent: 3, SourceAcked: 1, SourceLost: 2, PeakOpen: 3, AcksOutOfOrder: 1}
	if diff := cmp.Diff(want, s); diff != "" {
		t.Errorf("stats (-want +got):\n%s", diff)
	}
}

// BenchmarkAutoSourceAndSink measures what this equipment can carry by itself: a fake
// source, a client pair in between that does nothing but forward, a fake sink.
func BenchmarkAutoSourceAndSink(b *testing.B) {
	source, dest := NewFakeBroker(b), NewFakeBroker(b)
	payload := make([]byte, 256)
	src := &SourceConfig{N: b.N, Topic: "t", QoS: 1, Payload: func(int) []byte { return payload }}
	source.Auto(AutoConfig{Source: src, DropRecords: true})
	sink := dest.Auto(AutoConfig{DropRecords: true})
	out := MustConnect(b, ClientConfig{Addr: dest.Addr(), ClientID: "out", CleanStart: true, Window: 1000})
	in := MustConnect(b, ClientConfig{Addr: source.Addr(), ClientID: "in", CleanStart: true, ReceiveMaximum: 1000, OnMessage: func(m *Message) {
		_ = out.PublishAsync(b.Context(), &packets.Publish{Topic: m.Topic, QoS: 1, Payload: m.Payload}, nil)
	}})
	b.ResetTimer()
	if _, err := in.Subscribe(b.Context(), packets.SubOptions{Topic: "t", QoS: 1}); err != nil {
		b.Fatal(err)
	}
	sink.Wait(10*time.Minute, func(s AutoStats) bool { return s.Received == b.N })
}
