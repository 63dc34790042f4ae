package bridgetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/google/go-cmp/cmp"
)

func subscribe(t *testing.T, c *Client, filters ...packets.SubOptions) {
	t.Helper()
	granted, err := c.Subscribe(t.Context(), filters...)
	if err != nil {
		t.Fatal(err)
	}
	var want []byte
	for _, f := range filters {
		want = append(want, f.QoS)
	}
	if diff := cmp.Diff(want, granted); diff != "" {
		t.Fatalf("granted (-want +got):\n%s", diff)
	}
}

func TestClientCarriesPropertiesAtEveryQoS(t *testing.T) {
	m := StartMosquitto(t, MosquittoConfig{})
	sub := MustConnect(t, ClientConfig{Addr: m.Addr(), ClientID: "sub", CleanStart: true})
	subscribe(t, sub, packets.SubOptions{Topic: "t/#", QoS: 2, RetainAsPublished: true})
	pub := MustConnect(t, ClientConfig{Addr: m.Addr(), ClientID: "pub", CleanStart: true})
	for qos := range byte(3) {
		sent := &packets.Publish{
			Topic: fmt.Sprintf("t/%d", qos), QoS: qos, Retain: qos == 1, Payload: []byte{0, 1, 0xFF},
			Properties: &packets.Properties{
				ContentType: "text/x", CorrelationData: []byte{0xFE, 0},
				User: []packets.User{{Key: "k", Value: "1"}, {Key: "k", Value: "2"}},
			},
		}
		if ack, err := pub.Publish(t.Context(), sent); err != nil || ack.Reason != 0 {
			t.Fatalf("QoS %d: ack %+v, %v", qos, ack, err)
		}
		got := sub.MustReceive(t, 5*time.Second)
		if got.Topic != sent.Topic || got.QoS != qos || got.Retain != sent.Retain || got.Dup {
			t.Errorf("QoS %d: got topic %q QoS %d retain %t dup %t", qos, got.Topic, got.QoS, got.Retain, got.Dup)
		}
		if diff := cmp.Diff(sent.Payload, got.Payload); diff != "" {
			t.Errorf("QoS %d payload (-want +got):\n%s", qos, diff)
		}
		if diff := cmp.Diff(sent.Properties, got.Properties); diff != "" {
			t.Errorf("QoS %d properties (-want +got):\n%s", qos, diff)
		}
	}
}

func TestClientPipelinesTwentyThousandMessagesInOrder(t *testing.T) {
	m := StartMosquitto(t, MosquittoConfig{})
	const n = 20_000
	for _, qos := range []byte{1, 2} {
		t.Run(fmt.Sprintf("QoS%d", qos), func(t *testing.T) {
			var (
				got     atomic.Int64
				all     = make(chan struct{})
				ordered = true
			)
			sub := MustConnect(t, ClientConfig{
				Addr: m.Addr(), ClientID: "sub", CleanStart: true,
				OnMessage: func(m *Message) {
					i := got.Add(1) - 1
					ordered = ordered && string(m.Payload) == fmt.Sprint(i)
					if i == n-1 {
						close(all)
					}
				},
			})
			subscribe(t, sub, packets.SubOptions{Topic: "t", QoS: qos})
			pub := MustConnect(t, ClientConfig{Addr: m.Addr(), ClientID: "pub", CleanStart: true})
			start := time.Now()
			var refused atomic.Int64
			var acks sync.WaitGroup
			for i := range n {
				acks.Add(1)
				p := &packets.Publish{Topic: "t", QoS: qos, Payload: fmt.Append(nil, i)}
				err := pub.PublishAsync(t.Context(), p, func(a Ack) {
					if a.Reason != 0 || a.Err != nil {
						refused.Add(1)
					}
					acks.Done()
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			acks.Wait()
			select {
			case <-all:
			case <-time.After(30 * time.Second):
				t.Fatalf("received %d of %d", got.Load(), n)
			}
			t.Logf("QoS %d: %.0f msg/s", qos, n/time.Since(start).Seconds())
			if refused.Load() != 0 || !ordered {
				t.Errorf("refused %d, in order %t; want 0, true", refused.Load(), ordered)
			}
		})
	}
}

func TestClientResumesItsSession(t *testing.T) {
	for _, qos := range []byte{1, 2} {
		t.Run(fmt.Sprintf("QoS%d", qos), func(t *testing.T) {
			fb := NewFakeBroker(t)
			session := NewSession()
			cfg := ClientConfig{Addr: fb.Addr(), ClientID: "c", SessionExpiry: 60, Session: session}
			connected := make(chan *Client, 1)
			connect := func() {
				c, err := Connect(t.Context(), cfg)
				if err != nil {
					t.Error(err)
				}
				connected <- c
			}
			go connect()
			conn := fb.Accept()
			conn.Handshake(nil)
			c := <-connected
			acks := make(chan Ack, 3)
			for i := range 3 {
				p := &packets.Publish{Topic: "t", QoS: qos, Payload: fmt.Append(nil, i)}
				if err := c.PublishAsync(t.Context(), p, func(a Ack) { acks <- a }); err != nil {
					t.Fatal(err)
				}
			}
			var ids []uint16
			for range 3 {
				ids = append(ids, conn.ExpectPublish().PacketID)
			}
			if qos == 2 { // the second one is past PUBREC: only its PUBREL comes again
				conn.Send(&packets.Pubrec{PacketID: ids[1]})
				conn.Expect(packets.PUBREL)
			}
			conn.Reset()
			c.Close()

			go connect()
			conn = fb.Accept()
			conn.Handshake(&packets.Connack{SessionPresent: true})
			c = <-connected
			defer c.Close()
			for i, id := range ids {
				if qos == 2 && i == 1 {
					if rel := conn.Expect(packets.PUBREL); rel.PacketID() != id {
						t.Errorf("PUBREL for %d, want %d", rel.PacketID(), id)
					}
					continue
				}
				p := conn.ExpectPublish()
				if p.PacketID != id || !p.Duplicate || string(p.Payload) != fmt.Sprint(i) {
					t.Errorf("resent id %d dup %t payload %s, want %d true %d", p.PacketID, p.Duplicate, p.Payload, id, i)
				}
			}
			if qos == 1 {
				conn.Send(&packets.Puback{PacketID: ids[0], ReasonCode: 0x97})
			} else {
				conn.Send(&packets.Pubrec{PacketID: ids[0], ReasonCode: 0x97})
			}
			select {
			case a := <-acks:
				if diff := cmp.Diff(Ack{Reason: 0x97, Resent: 1}, a); diff != "" {
					t.Errorf("ack (-want +got):\n%s", diff)
				}
			case <-time.After(5 * time.Second):
				t.Fatal("no ack")
			}
			if session.Open() != 2 {
				t.Errorf("open publishes: %d, want 2", session.Open())
			}
		})
	}
}

func TestClientReportsALostSession(t *testing.T) {
	fb := NewFakeBroker(t)
	fb.Auto(AutoConfig{
		PubAck:  func(*packets.Publish) (byte, bool) { return 0, true },
		Connack: func(_ *FakeConn, _ *packets.Connect, a *packets.Connack) { a.SessionPresent = false },
	})
	cfg := ClientConfig{Addr: fb.Addr(), ClientID: "c", SessionExpiry: 60, Session: NewSession()}
	c := MustConnect(t, cfg)
	acks := make(chan Ack, 1)
	if err := c.PublishAsync(t.Context(), &packets.Publish{Topic: "t", QoS: 1}, func(a Ack) { acks <- a }); err != nil {
		t.Fatal(err)
	}
	c.Abort()
	MustConnect(t, cfg)
	if a := <-acks; !errors.Is(a.Err, ErrSessionLost) {
		t.Errorf("ack %+v, want ErrSessionLost", a)
	}
}

func TestClientAcknowledgesByHandAndGetsTheRestAgain(t *testing.T) {
	m := StartMosquitto(t, MosquittoConfig{})
	cfg := ClientConfig{Addr: m.Addr(), ClientID: "sub", SessionExpiry: 60, Session: NewSession(), ManualAck: true}
	sub := MustConnect(t, cfg)
	subscribe(t, sub, packets.SubOptions{Topic: "t", QoS: 1})
	pub := MustConnect(t, ClientConfig{Addr: m.Addr(), CleanStart: true})
	for _, text := range []string{"a", "b"} {
		if _, err := pub.Publish(t.Context(), &packets.Publish{Topic: "t", QoS: 1, Payload: []byte(text)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := sub.MustReceive(t, 5*time.Second).Ack(0); err != nil {
		t.Fatal(err)
	}
	sub.MustReceive(t, 5*time.Second)
	sub.Close()
	sub = MustConnect(t, cfg)
	if !sub.Connack().SessionPresent {
		t.Fatal("the broker forgot the session")
	}
	if again := sub.MustReceive(t, 5*time.Second); string(again.Payload) != "b" || !again.Dup {
		t.Errorf("got %q dup %t, want \"b\" true", again.Payload, again.Dup)
	}
}

func TestClientLastWillFollowsAnAbruptEnd(t *testing.T) {
	m := StartMosquitto(t, MosquittoConfig{})
	watch := MustConnect(t, ClientConfig{Addr: m.Addr(), CleanStart: true})
	subscribe(t, watch, packets.SubOptions{Topic: "will", QoS: 1})
	will := &Will{Topic: "will", Payload: []byte("gone"), QoS: 1}
	MustConnect(t, ClientConfig{Addr: m.Addr(), ClientID: "polite", CleanStart: true, Will: will}).Close()
	MustConnect(t, ClientConfig{Addr: m.Addr(), ClientID: "crash", CleanStart: true, Will: will}).Abort()
	if got := watch.MustReceive(t, 5*time.Second); string(got.Payload) != "gone" {
		t.Errorf("will payload %q", got.Payload)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if extra, err := watch.Receive(ctx); err == nil {
		t.Errorf("a polite end published a will too: %q", extra.Payload)
	}
}
