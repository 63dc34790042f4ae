package mqtt

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/google/go-cmp/cmp"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/bridgetest"
	"github.com/gobridge/gobridge/metric"
)

// receiving connects a persistent session that receives in/#, and returns the
// broker's side of its connection, subscribed.
func receiving(t *testing.T, mode string, change ...func(*SessionSettings, *SenderSettings)) (*running, *bridgetest.FakeBroker, *bridgetest.FakeConn) {
	t.Helper()
	fb := bridgetest.NewFakeBroker(t)
	qos := 2
	if mode == gobridge.ModeEphemeral {
		qos = 0
	}
	use := testUse(fb.URL(), mode, topics(qos, "in/#"), change...)
	use.Route.DeliveryMode = gobridge.SharedOutbox // for ephemeral with QoS 1; the adapter does not care
	r := startSession(t, use)
	c := fb.Accept()
	c.Handshake(nil)
	c.Grant(c.ExpectSubscribe())
	r.awaitReady(t)
	return r, fb, c
}

func publish(id uint16, qos byte, payload string) *packets.Publish {
	return &packets.Publish{Topic: "in/a", PacketID: id, QoS: qos, Payload: []byte(payload), Properties: &packets.Properties{}}
}

func again(p *packets.Publish) *packets.Publish {
	d := *p
	d.Duplicate = true
	return &d
}

func expectPuback(t *testing.T, c *bridgetest.FakeConn, ids ...uint16) {
	t.Helper()
	for _, id := range ids {
		if a := c.Expect(packets.PUBACK).Content.(*packets.Puback); a.PacketID != id || a.ReasonCode != 0 {
			t.Fatalf("PUBACK %d reason %d, want %d", a.PacketID, a.ReasonCode, id)
		}
	}
}

// Covers: S1-104, S1-105, S1-109, S2-401
func TestAcknowledgementsFollowTheOrderOfReceipt(t *testing.T) {
	r, _, c := receiving(t, gobridge.ModePersistent)
	to, _ := r.receive(t)
	for id := range uint16(4) {
		c.Send(publish(10+id, 1, fmt.Sprint(id)))
	}
	got := to.wait(t, 4)
	if h := r.Health(); h.UnsettledCount != 4 || h.OldestUnsettledAge <= 0 {
		t.Errorf("health: %d unsettled, oldest %s", h.UnsettledCount, h.OldestUnsettledAge)
	}
	for _, i := range []int{3, 1, 2} {
		got[i].Ack()
		got[i].Ack() // settles once
	}
	r.Receiver().Flush()
	c.ExpectNothing(30 * time.Millisecond)
	got[0].Ack()
	r.Receiver().Flush()
	expectPuback(t, c, 10, 11, 12, 13)
	if h := r.Health(); h.UnsettledCount != 0 || h.OldestUnsettledAge != 0 {
		t.Errorf("health: %d unsettled, oldest %s", h.UnsettledCount, h.OldestUnsettledAge)
	}
}

// Until PUBREC the broker owns the message; after it, its PUBLISH is not a new
// message before PUBREL (V2).
//
// Covers: S1-106
func TestQoS2IsRecordedWhenSettled(t *testing.T) {
	r, fb, c := receiving(t, gobridge.ModePersistent)
	to, _ := r.receive(t)
	p := publish(7, 2, "two")
	c.Send(p)
	d := to.wait(t, 1)[0]
	c.ExpectNothing(30 * time.Millisecond)
	d.Ack()
	r.Receiver().Flush()
	if rec := c.Expect(packets.PUBREC).Content.(*packets.Pubrec); rec.PacketID != 7 {
		t.Fatalf("PUBREC for %d, want 7", rec.PacketID)
	}
	c.Reset() // the broker has not seen it

	c = fb.Accept()
	c.Handshake(present())
	c.Send(again(p))
	if rec := c.Expect(packets.PUBREC).Content.(*packets.Pubrec); rec.PacketID != 7 {
		t.Fatalf("PUBREC for %d, want 7", rec.PacketID)
	}
	c.Send(&packets.Pubrel{PacketID: 7})
	if comp := c.Expect(packets.PUBCOMP).Content.(*packets.Pubcomp); comp.PacketID != 7 || comp.ReasonCode != 0 {
		t.Errorf("PUBCOMP %d reason %d", comp.PacketID, comp.ReasonCode)
	}
	c.Send(&packets.Pubrel{PacketID: 7})
	if comp := c.Expect(packets.PUBCOMP).Content.(*packets.Pubcomp); comp.ReasonCode != 0x92 {
		t.Errorf("PUBCOMP for an unknown identifier: reason %#x, want 0x92", comp.ReasonCode)
	}
	if got := to.wait(t, 1); len(got) != 1 {
		t.Errorf("dispatched %v", payloads(got))
	}
	c.Send(publish(7, 2, "new"))
	to.wait(t, 2)
}

// A broker that was killed may resume an older state of the session and give the
// identifier of a recorded message to another one: without DUP on a later connection it
// is no repetition.
func TestIdentifierThatTheBrokerForgotIsANewMessage(t *testing.T) {
	r, fb, c := receiving(t, gobridge.ModePersistent)
	to, _ := r.receive(t)
	c.Send(publish(7, 2, "first"))
	to.wait(t, 1)[0].Ack()
	r.Receiver().Flush()
	c.Expect(packets.PUBREC)
	c.Send(publish(7, 2, "first")) // on one connection it is one message, with or without DUP
	c.Expect(packets.PUBREC)
	c.Reset()
	c = fb.Accept()
	c.Handshake(present())
	c.Send(publish(7, 2, "second"))
	if diff := cmp.Diff([]string{"first", "second"}, payloads(to.wait(t, 2))); diff != "" {
		t.Errorf("dispatched (-want +got):\n%s", diff)
	}
}

// A message that the broker sends again while its delivery is still open is the
// same delivery (B7).
//
// Covers: S2-107
func TestRedeliveredMessageFindsItsOpenDelivery(t *testing.T) {
	r, fb, c := receiving(t, gobridge.ModePersistent)
	to := newRoute()
	to.room = 3
	r.receiveInto(t, to)
	all := []*packets.Publish{publish(1, 1, "open"), publish(2, 1, "settled"), publish(3, 2, "settled while away"), publish(4, 1, "queued")}
	for _, p := range all {
		c.Send(p)
	}
	got := to.wait(t, 3)
	got[1].Ack()
	eventually(t, "fourth message arrived", func() bool { return r.Health().UnsettledCount == 4 })
	c.Reset()
	c = fb.Accept()
	eventually(t, "link is down", func() bool { return !r.Health().Connected })
	got[2].Ack()
	r.Receiver().Flush()
	c.Handshake(present())
	for _, p := range all {
		c.Send(again(p))
	}
	eventually(t, "all are back", func() bool { return r.Health().UnsettledCount == 4 })
	c.ExpectNothing(30 * time.Millisecond)
	got[0].Ack()
	r.Receiver().Flush()
	expectPuback(t, c, 1, 2)
	c.Expect(packets.PUBREC)
	to.mu.Lock()
	to.room = -1
	to.mu.Unlock()
	r.Receiver().Resume()
	got = to.wait(t, 4)
	if diff := cmp.Diff([]string{"open", "settled", "settled while away", "queued"}, payloads(got)); diff != "" {
		t.Errorf("dispatched (-want +got):\n%s", diff)
	}
	got[3].Ack()
	r.Receiver().Flush()
	expectPuback(t, c, 4)
	r.wantValue(t, 0, metric.MQTTAckAfterReconnect)
}

// An identifier that comes back without DUP, or with another message, is a new
// message.
func TestReusedIdentifierIsANewMessage(t *testing.T) {
	tests := []struct {
		name string
		next *packets.Publish
	}{
		{"without DUP", publish(1, 1, "first")},
		{"other payload", again(publish(1, 1, "second"))},
		{"other QoS", again(publish(1, 2, "first"))},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, fb, c := receiving(t, gobridge.ModePersistent)
			to, _ := r.receive(t)
			c.Send(publish(1, 1, "first"))
			to.wait(t, 1)
			c.Reset()
			c = fb.Accept()
			c.Handshake(present())
			c.Send(tt.next)
			got := to.wait(t, 2)
			got[0].Ack() // writes nothing
			r.wantValue(t, 1, metric.MQTTAckAfterReconnect)
			got[1].Ack()
			r.Receiver().Flush()
			if tt.next.QoS == 1 {
				expectPuback(t, c, 1)
			} else {
				c.Expect(packets.PUBREC)
			}
			c.ExpectNothing(20 * time.Millisecond)
		})
	}
}

// Covers: S2-401
func TestSettlementAfterALostSessionWritesNothing(t *testing.T) {
	r, fb, c := receiving(t, gobridge.ModePersistent)
	to, _ := r.receive(t)
	c.Send(publish(1, 1, "a"), publish(2, 1, "b"))
	got := to.wait(t, 2)
	got[1].Ack() // waits for its turn, which never comes
	c.Reset()
	c = fb.Accept()
	c.Handshake(nil)
	c.Grant(c.ExpectSubscribe())
	r.awaitReady(t)
	r.wantValue(t, 1, metric.MQTTAckAfterReconnect)
	got[0].Ack()
	r.Receiver().Flush()
	r.wantValue(t, 2, metric.MQTTAckAfterReconnect)
	c.Send(publish(1, 1, "c"))
	to.wait(t, 3)[2].Ack()
	r.Receiver().Flush()
	expectPuback(t, c, 1)
}

func TestIdentifierInUseOnALiveConnection(t *testing.T) {
	r, fb, c := receiving(t, gobridge.ModePersistent)
	to, _ := r.receive(t)
	p := publish(1, 1, "a")
	c.Send(p, again(p)) // some brokers send again although nothing was lost
	d := to.wait(t, 1)[0]
	c.ExpectNothing(20 * time.Millisecond)
	d.Ack()
	r.Receiver().Flush()
	expectPuback(t, c, 1)
	c.ExpectNothing(20 * time.Millisecond)
	// Another message under an identifier in use breaks the protocol.
	c.Send(publish(2, 1, "b"), publish(2, 1, "c"), publish(3, 1, "behind"))
	if reason := c.ExpectDisconnect().ReasonCode; reason != packets.DisconnectProtocolError {
		t.Errorf("DISCONNECT %#x, want a protocol error", reason)
	}
	c.ExpectClosed()
	fb.Accept().Handshake(present())
	if got := to.wait(t, 2); len(got) != 2 || string(got[1].Envelope.Payload) != "b" {
		t.Errorf("dispatched %v", payloads(got))
	}
}

// A message that breaks a limit is acknowledged, in its turn, and dropped: left
// unacknowledged it would come back for ever.
//
// Covers: S1-201, S1-202, S1-203, S1-205, S1-207, S1-212, S1-214, S1-614
func TestPoisonIsAcknowledgedAndDropped(t *testing.T) {
	users := func(n int) *packets.Properties {
		p := &packets.Properties{}
		for i := range n {
			p.User = append(p.User, packets.User{Key: "k", Value: fmt.Sprint(i)})
		}
		return p
	}
	large := publish(2, 1, strings.Repeat("x", 1025))
	metadata := publish(3, 1, "m")
	metadata.Properties.User = []packets.User{{Key: strings.Repeat("k", 60_000), Value: strings.Repeat("v", 60_000)}, {Key: strings.Repeat("k", 11_100)}}
	many, tooMany, enough := publish(4, 2, "129"), publish(5, 1, "500"), publish(6, 1, "128")
	many.Properties, tooMany.Properties, enough.Properties = users(129), users(500), users(128)

	r, fb, c := receiving(t, gobridge.ModePersistent, func(s *SessionSettings, _ *SenderSettings) { s.MaxPayloadBytes = 1024 })
	to, _ := r.receive(t)
	c.Send(publish(1, 1, "before"), large, metadata, many, tooMany, enough)
	zero := publish(0, 0, strings.Repeat("x", 1025))
	c.Send(zero)
	got := to.wait(t, 2)
	c.ExpectNothing(30 * time.Millisecond) // their turn comes after the first message
	got[1].Ack()
	got[0].Ack()
	r.Receiver().Flush()
	expectPuback(t, c, 1, 2, 3)
	if rec := c.Expect(packets.PUBREC).Content.(*packets.Pubrec); rec.PacketID != 4 {
		t.Errorf("PUBREC for %d, want 4", rec.PacketID)
	}
	expectPuback(t, c, 5, 6)
	if diff := cmp.Diff([]string{"before", "128"}, payloads(to.wait(t, 2))); diff != "" {
		t.Errorf("dispatched (-want +got):\n%s", diff)
	}
	r.wantValue(t, 5, metric.MQTTIngressPoisonDropped)
	r.wantValue(t, 1, metric.MQTTIngressUserPropertiesTruncated)
	if n := fb.Connections(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
}

// Covers: S1-210
func TestPacketOverTheAnnouncedSizeEndsTheConnection(t *testing.T) {
	r, fb, c := receiving(t, gobridge.ModePersistent, func(s *SessionSettings, _ *SenderSettings) { s.MaxPayloadBytes = 1024 })
	r.receive(t)
	c.Send(publish(1, 1, strings.Repeat("x", 1024+MetadataAllowance)))
	if reason := c.ExpectDisconnect().ReasonCode; reason != packets.DisconnectPacketTooLarge {
		t.Errorf("DISCONNECT %#x, want packet too large", reason)
	}
	c.ExpectClosed()
	fb.Accept()
	eventually(t, "last error tells", func() bool { return strings.Contains(r.Health().LastError, "maximum packet size") })
}

// Covers: S1-609
func TestReceiverCanRunAgain(t *testing.T) {
	r, _, c := receiving(t, gobridge.ModePersistent)
	to, stop := r.receive(t)
	c.Send(publish(1, 1, "a"))
	first := to.wait(t, 1)[0]
	stop()
	before := r.value(metric.MQTTRouterBuffered) // the first may have come before the receiver ran
	c.Send(publish(2, 1, "b"), publish(0, 0, "c"))
	eventually(t, "second message arrived", func() bool { return r.value(metric.MQTTRouterBuffered) == before+2 })
	first.Ack()
	r.Receiver().Flush()
	expectPuback(t, c, 1)
	next, _ := r.receive(t)
	if diff := cmp.Diff([]string{"b", "c"}, payloads(next.wait(t, 2))); diff != "" {
		t.Errorf("dispatched (-want +got):\n%s", diff)
	}
	if len(to.wait(t, 1)) != 1 {
		t.Error("the stopped route was offered more")
	}
}

// Covers: S2-105, S2-106, S2-108, S2-109, S2-110, S2-407
func TestRefusedDelivery(t *testing.T) {
	t.Run("comes again on a session that resumes", func(t *testing.T) {
		r, fb, c := receiving(t, gobridge.ModePersistent)
		to := newRoute()
		to.refuse = errors.New("no")
		r.receiveInto(t, to)
		p, q := publish(1, 1, "refused"), publish(2, 1, "taken")
		c.Send(p, q)
		leaves(c)
		c = fb.Accept()
		c.Handshake(present())
		c.Send(again(p), again(q))
		got := to.wait(t, 2) // the second one was taken before, or comes again like the first
		if all := payloads(got); len(all) != 2 || !slices.Contains(all, "refused") || !slices.Contains(all, "taken") {
			t.Fatalf("dispatched %v", all)
		}
		got[0].Ack()
		got[1].Ack()
		r.Receiver().Flush()
		expectPuback(t, c, 1, 2)
		r.wantValue(t, 1, metric.MQTTReceiverEmitRejected, metric.EmitRecovering)
		r.wantValue(t, 1, metric.MQTTSessionRecoveryRecycle)
		if n := r.Health().RecoveryRecycleCount; n != 1 {
			t.Errorf("recovery_recycle_count %d, want 1", n)
		}
	})
	t.Run("is lost where nothing comes again", func(t *testing.T) {
		r, fb, c := receiving(t, gobridge.ModeEphemeral)
		to := newRoute()
		to.refuse = errors.New("no")
		r.receiveInto(t, to)
		c.Send(publish(1, 1, "refused"), publish(2, 1, "taken"))
		to.wait(t, 1)[0].Ack()
		r.Receiver().Flush()
		expectPuback(t, c, 1, 2)
		r.wantValue(t, 1, metric.MQTTReceiverEmitRejected, metric.EmitLost)
		if fb.Connections() != 1 {
			t.Error("the session reconnected")
		}
	})
}

// Covers: S2-104
func TestRetryWhereNothingComesAgainIsNotSupported(t *testing.T) {
	tests := []struct {
		name string
		mode string
		qos  byte
	}{
		{"QoS 0", gobridge.ModePersistent, 0},
		{"ephemeral", gobridge.ModeEphemeral, 1},
		{"ephemeral QoS 0", gobridge.ModeEphemeral, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, fb, c := receiving(t, tt.mode)
			to, _ := r.receive(t)
			c.Send(publish(uint16(tt.qos), tt.qos, "a"))
			d := to.wait(t, 1)[0]
			if d.Redeliverable {
				t.Error("the delivery says that it comes again")
			}
			if err := d.Retry(0, nil); !errors.Is(err, gobridge.ErrNotSupported) {
				t.Errorf("Retry: %v", err)
			}
			if err := d.Extend(time.Now()); !errors.Is(err, gobridge.ErrNotSupported) {
				t.Errorf("Extend: %v", err)
			}
			if level := r.Health().ServiceLevel; level != gobridge.LevelFull {
				t.Errorf("service level %s", level)
			}
			d.Ack() // it is still open
			r.Receiver().Flush()
			if tt.qos > 0 {
				expectPuback(t, c, 1)
			}
			r.wantValue(t, 0, metric.MQTTSessionRecoveryRecycle)
			if fb.Connections() != 1 {
				t.Error("the session reconnected")
			}
		})
	}
}
