package mqtt

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/google/go-cmp/cmp"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/bridgetest"
	"github.com/gobridge/gobridge/metric"
)

// sendOnly connects a session that only sends, and returns the broker's side of
// its connection.
func sendOnly(t *testing.T, mode string, connack *packets.Connack, change ...func(*SessionSettings, *SenderSettings)) (*running, *bridgetest.FakeBroker, *bridgetest.FakeConn) {
	t.Helper()
	fb := bridgetest.NewFakeBroker(t)
	change = append(change, preserveQoS)
	r := startSession(t, testUse(fb.URL(), mode, nil, change...))
	c := fb.Accept()
	c.Handshake(connack)
	r.awaitAvailable(t)
	return r, fb, c
}

func preserveQoS(_ *SessionSettings, s *SenderSettings) { s.QoS = Preserve }

func present() *packets.Connack { return &packets.Connack{SessionPresent: true} }

// Covers: S2-506
func TestPublishIsConfirmedByItsAcknowledgement(t *testing.T) {
	r, _, c := sendOnly(t, gobridge.ModePersistent, nil)
	o := newOutcomes()
	r.send(t, o, 0, "zero")
	r.send(t, o, 1, "one")
	r.send(t, o, 2, "two")
	for i, want := range []string{"zero", "one", "two"} {
		if p := c.ExpectPublish(); string(p.Payload) != want || int(p.QoS) != i || p.Topic != "out/topic" {
			t.Errorf("got %s, want %s at QoS %d", p, want, i)
		}
	}
	o.wait(t, 1)
	c.Send(&packets.Puback{PacketID: 1}, &packets.Pubrec{PacketID: 2})
	if rel := c.Expect(packets.PUBREL).Content.(*packets.Pubrel); rel.PacketID != 2 {
		t.Errorf("PUBREL for %d, want 2", rel.PacketID)
	}
	if got := o.wait(t, 2); len(got) != 2 {
		t.Errorf("completed before PUBCOMP: %v", got)
	}
	c.Send(&packets.Pubcomp{PacketID: 2})
	if diff := cmp.Diff([]string{"zero", "one", "two"}, o.wait(t, 3)); diff != "" {
		t.Errorf("order of completion (-want +got):\n%s", diff)
	}
	for _, p := range []string{"zero", "one", "two"} {
		if err := o.err(p); err != nil {
			t.Errorf("%s: %v", p, err)
		}
	}
}

func TestReasonCodeOfTheAnswerDecides(t *testing.T) {
	tests := []struct {
		name   string
		qos    uint8
		answer func(id uint16) packets.Packet
		code   gobridge.Code // "" is a success
		class  gobridge.Class
		outage bool
		retry  time.Duration
	}{
		{"no subscribers", 1, puback(0x10), "", 0, false, 0},
		{"not authorized", 1, puback(0x87), gobridge.CodeNotAuthorized, gobridge.ClassPermanent, false, 0},
		{"not authorized at QoS 2", 2, pubrec(0x87), gobridge.CodeNotAuthorized, gobridge.ClassPermanent, false, 0},
		{"too large", 1, puback(0x95), gobridge.CodePayloadTooLarge, gobridge.ClassRejected, false, 0},
		{"quota exceeded", 1, puback(0x97), gobridge.CodeThrottled, gobridge.ClassTransient, true, 70 * time.Millisecond},
		{"busy", 2, pubrec(0x89), gobridge.CodeBrokerBusy, gobridge.ClassTransient, true, 70 * time.Millisecond},
		{"unspecified", 1, puback(0x80), gobridge.CodeUnavailable, gobridge.ClassTransient, false, 0},
	}
	r, _, c := sendOnly(t, gobridge.ModePersistent, nil, func(_ *SessionSettings, s *SenderSettings) {
		s.ThrottleRetryAfter = new(70 * time.Millisecond)
	})
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := newOutcomes()
			r.send(t, o, tt.qos, "m")
			c.Send(tt.answer(c.ExpectPublish().PacketID))
			o.wait(t, 1)
			err := o.err("m")
			if tt.code == "" {
				if err != nil {
					t.Errorf("got %v, want a success", err)
				}
				return
			}
			e, ok := errors.AsType[*gobridge.Error](err)
			if !ok || e.Code != tt.code || e.Class != tt.class || e.Outage != tt.outage || e.RetryAfter != tt.retry {
				t.Errorf("got %#v, want code %s, class %s, outage %v, retry after %s", e, tt.code, tt.class, tt.outage, tt.retry)
			}
		})
	}
	r.wantValue(t, 2, metric.MQTTPublishFailures, "NOT_AUTHORIZED")
}

func puback(reason byte) func(uint16) packets.Packet {
	return func(id uint16) packets.Packet {
		return &packets.Puback{PacketID: id, ReasonCode: reason, Properties: &packets.Properties{}}
	}
}

func pubrec(reason byte) func(uint16) packets.Packet {
	return func(id uint16) packets.Packet {
		return &packets.Pubrec{PacketID: id, ReasonCode: reason, Properties: &packets.Properties{}}
	}
}

func TestPublishesWaitForTheReceiveMaximumInOrder(t *testing.T) {
	connack := &packets.Connack{Properties: &packets.Properties{ReceiveMaximum: new(uint16(2))}}
	r, _, c := sendOnly(t, gobridge.ModePersistent, connack)
	o := newOutcomes()
	r.send(t, o, 1, "a", "b", "c")
	r.send(t, o, 0, "d") // must not overtake
	r.send(t, o, 1, "e")
	first, second := c.ExpectPublish(), c.ExpectPublish()
	c.ExpectNothing(50 * time.Millisecond)
	c.Send(&packets.Puback{PacketID: first.PacketID}, &packets.Puback{PacketID: second.PacketID})
	var rest []string
	for range 3 {
		p := c.ExpectPublish()
		rest = append(rest, string(p.Payload))
		if p.QoS > 0 {
			c.Send(&packets.Puback{PacketID: p.PacketID})
		}
	}
	if diff := cmp.Diff([]string{"c", "d", "e"}, rest); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	o.wait(t, 5)
}

// Covers: S1-331, G19
func TestOpenPublishesAreSentAgainInOrderWhenTheSessionResumes(t *testing.T) {
	connack := &packets.Connack{Properties: &packets.Properties{ReceiveMaximum: new(uint16(4))}}
	r, fb, c := sendOnly(t, gobridge.ModePersistent, connack)
	o := newOutcomes()
	r.send(t, o, 1, "a", "b")
	r.send(t, o, 2, "c", "d")
	r.send(t, o, 1, "waits")
	for range 4 {
		c.ExpectPublish()
	}
	c.Send(&packets.Puback{PacketID: 1}) // a is done, so "waits" goes out
	c.ExpectPublish()
	c.Send(&packets.Pubrec{PacketID: 3})
	c.Expect(packets.PUBREL)
	o.wait(t, 1)
	c.Reset()

	c = fb.Accept()
	c.Handshake(present())
	rel := c.Expect(packets.PUBREL).Content.(*packets.Pubrel)
	if rel.PacketID != 3 {
		t.Errorf("PUBREL for %d, want 3", rel.PacketID)
	}
	for _, want := range []string{"b", "d", "waits"} {
		if p := c.ExpectPublish(); string(p.Payload) != want || !p.Duplicate {
			t.Errorf("got %s (DUP %v), want %s with DUP", p.Payload, p.Duplicate, want)
		}
	}
	r.awaitAvailable(t)
	r.send(t, o, 1, "new")
	if p := c.ExpectPublish(); string(p.Payload) != "new" || p.Duplicate {
		t.Errorf("got %s (DUP %v), want new without DUP", p.Payload, p.Duplicate)
	}
	if err, done := o.errs["b"]; done {
		t.Errorf("b completed before its answer: %v", err)
	}
}

func TestOpenPublishesAreHandedBackWhenTheSessionIsGone(t *testing.T) {
	tests := []struct{ name, mode string }{
		{"ephemeral", gobridge.ModeEphemeral},
		{"session not present", gobridge.ModePersistent},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			connack := &packets.Connack{Properties: &packets.Properties{ReceiveMaximum: new(uint16(3))}}
			r, fb, c := sendOnly(t, tt.mode, connack)
			o := newOutcomes()
			var mu sync.Mutex
			var atNotify []int
			r.Sender("out").Notify(func() {
				o.mu.Lock()
				defer o.mu.Unlock()
				mu.Lock()
				defer mu.Unlock()
				atNotify = append(atNotify, len(o.order))
			})
			r.send(t, o, 1, "a")
			r.send(t, o, 2, "b")
			r.send(t, o, 1, "c", "waits 1", "waits 2")
			for range 3 {
				c.ExpectPublish()
			}
			c.Reset()
			fb.Accept().Handshake(nil)
			want := []string{"a", "b", "c", "waits 1", "waits 2"}
			if diff := cmp.Diff(want, o.wait(t, 5)); diff != "" {
				t.Errorf("order (-want +got):\n%s", diff)
			}
			for _, p := range want {
				if err := o.err(p); !errors.Is(err, gobridge.ErrConnectionLost) || !gobridge.AsError(err).Outage {
					t.Errorf("%s: %v, want a lost connection", p, err)
				}
			}
			r.awaitAvailable(t)
			eventually(t, "notified", func() bool { mu.Lock(); defer mu.Unlock(); return len(atNotify) > 0 })
			mu.Lock()
			defer mu.Unlock()
			if atNotify[0] != 5 {
				t.Errorf("available with %d of 5 outcomes told", atNotify[0])
			}
		})
	}
}

func TestSendNeedsAConnection(t *testing.T) {
	fb := bridgetest.NewFakeBroker(t)
	r := startSession(t, testUse(fb.URL(), gobridge.ModeEphemeral, nil))
	o := newOutcomes()
	err := r.Sender("out").Send(o.message("early", 1))
	if !errors.Is(err, gobridge.ErrNotConnected) || !gobridge.AsError(err).Outage {
		t.Errorf("Send: %v, want not connected", err)
	}
	if err := r.Sender("out").Available(); !errors.Is(err, gobridge.ErrNotConnected) {
		t.Errorf("Available: %v", err)
	}
}

// A broker that takes QoS 0 only confirms nothing: the sources would be told of
// confirmations that nobody gave.
func TestBrokerThatTakesQoS0OnlyIsNoDestinationForMore(t *testing.T) {
	none := &packets.Connack{Properties: &packets.Properties{MaximumQOS: new(byte(0))}}
	fb := bridgetest.NewFakeBroker(t)
	r := startSession(t, testUse(fb.URL(), gobridge.ModePersistent, nil))
	t.Cleanup(fb.CutAll)
	c := fb.Accept()
	c.Handshake(none)
	eventually(t, "the reason is told", func() bool {
		err := r.Sender("out").Available()
		return err != nil && strings.Contains(err.Error(), "QoS 0 only")
	})
	if err := r.Sender("out").Send(newOutcomes().message("x", 1)); err == nil || !gobridge.AsError(err).Outage {
		t.Errorf("Send returned %v, want an outage", err)
	}
	c.ExpectNothing(30 * time.Millisecond)

	accepting, _, c := sendOnly(t, gobridge.ModePersistent, none, func(s *SessionSettings, _ *SenderSettings) { s.OnQoSDowngrade = DowngradeAccept })
	o := newOutcomes()
	accepting.send(t, o, 1, "one")
	if p := c.ExpectPublish(); p.QoS != 0 {
		t.Errorf("sent with QoS %d, want 0", p.QoS)
	}
}

func TestServerLimitsAreHonoured(t *testing.T) {
	connack := &packets.Connack{Properties: &packets.Properties{
		MaximumQOS: new(byte(1)), RetainAvailable: new(byte(0)), MaximumPacketSize: new(uint32(200)),
	}}
	r, _, c := sendOnly(t, gobridge.ModePersistent, connack, func(_ *SessionSettings, s *SenderSettings) { s.Retain = "true" })
	o := newOutcomes()
	r.send(t, o, 2, "lowered", "again")
	for range 2 {
		p := c.ExpectPublish()
		if p.QoS != 1 || p.Retain {
			t.Errorf("sent with QoS %d, retain %v; want 1 and false", p.QoS, p.Retain)
		}
		c.Send(&packets.Puback{PacketID: p.PacketID})
	}
	o.wait(t, 2)
	large := o.message(strings.Repeat("x", 200), 1)
	err := r.Sender("out").Send(large)
	e, ok := errors.AsType[*gobridge.Error](err)
	if !ok || e.Code != gobridge.CodePayloadTooLarge || e.Class != gobridge.ClassRejected || e.Outage {
		t.Errorf("too large: %v", err)
	}
	r.Sender("out").Flush()
	c.ExpectNothing(30 * time.Millisecond)
}

func TestUnfitAddressIsRejected(t *testing.T) {
	r, _, c := sendOnly(t, gobridge.ModePersistent, nil)
	o := newOutcomes()
	for _, address := range []string{"", "a/+", "#", "a\x00b", "a\tb", "a\xff", "$SYS/x", strings.Repeat("x", 65_536)} {
		m := o.message("m", 1)
		m.Address = address
		e, ok := errors.AsType[*gobridge.Error](r.Sender("out").Send(m))
		if !ok || e.Code != gobridge.CodeInvalidTopic || e.Class != gobridge.ClassRejected {
			t.Errorf("address %.20q: %v, want it rejected", address, e)
		}
	}
	r.Sender("out").Flush()
	c.ExpectNothing(30 * time.Millisecond)
}

// A publish that times out on a live connection costs one reconnect and nothing
// else; when it times out again on the fresh connection, it is the message's own
// failure (B3).
func TestSecondTimeoutOfAPublishIsCharged(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{gobridge.ModePersistent, gobridge.ModeEphemeral} {
		t.Run(mode, func(t *testing.T) {
			r, fb, c := sendOnly(t, mode, nil, func(_ *SessionSettings, s *SenderSettings) { s.Timeout = 100 * time.Millisecond })
			o := newOutcomes()
			r.send(t, o, 1, "stuck")
			c.ExpectPublish()
			c.ExpectDisconnect()
			c = fb.Accept()
			if mode == gobridge.ModePersistent {
				c.Handshake(present())
			} else {
				c.Handshake(nil)
				o.wait(t, 1)
				if err := o.err("stuck"); !errors.Is(err, gobridge.ErrConnectionLost) {
					t.Fatalf("first timeout: %v, want a lost connection", err)
				}
				o = newOutcomes()
				r.awaitAvailable(t)
				r.send(t, o, 1, "stuck")
			}
			p := c.ExpectPublish()
			o.wait(t, 1)
			if err := o.err("stuck"); !errors.Is(err, gobridge.ErrTimeout) || gobridge.AsError(err).Outage {
				t.Errorf("second timeout: %v, want a timeout that is charged", err)
			}
			c.ExpectNothing(150 * time.Millisecond) // no further reconnect
			// Its identifier stays in use until the answer comes.
			r.send(t, o, 1, "next")
			next := c.ExpectPublish()
			if next.PacketID == p.PacketID {
				t.Error("the identifier of a publish without an answer was used again")
			}
			c.Send(&packets.Puback{PacketID: p.PacketID}, &packets.Puback{PacketID: next.PacketID})
			o.wait(t, 2)
			if err := o.err("next"); err != nil {
				t.Errorf("next: %v", err)
			}
		})
	}
}

func TestTimeoutDoesNotRunWithoutAConnection(t *testing.T) {
	r, fb, c := sendOnly(t, gobridge.ModePersistent, nil, func(set *SessionSettings, s *SenderSettings) {
		s.Timeout = 100 * time.Millisecond
		set.ReconnectDelay = time.Millisecond
	})
	o := newOutcomes()
	r.send(t, o, 1, "m")
	c.ExpectPublish()
	c.Reset()
	c = fb.Accept() // no CONNACK yet
	c.ExpectConnect()
	time.Sleep(150 * time.Millisecond)
	c.ConnAck(present())
	p := c.ExpectPublish()
	c.Send(&packets.Puback{PacketID: p.PacketID})
	o.wait(t, 1)
	if err := o.err("m"); err != nil {
		t.Errorf("got %v, want a confirmed message", err)
	}
}

// At QoS 2 the broker may know the identifier of a publish that was given up:
// PUBREL makes it forget before the identifier is used again.
func TestGivenUpQoS2PublishIsReleasedOnTheNextConnection(t *testing.T) {
	r, fb, c := sendOnly(t, gobridge.ModePersistent, nil, func(_ *SessionSettings, s *SenderSettings) { s.Timeout = 80 * time.Millisecond })
	o := newOutcomes()
	r.send(t, o, 2, "stuck")
	c.ExpectPublish()
	c.ExpectDisconnect()
	c = fb.Accept()
	c.Handshake(present())
	p := c.ExpectPublish()
	o.wait(t, 1)
	c.Reset()
	c = fb.Accept()
	c.Handshake(present())
	if rel := c.Expect(packets.PUBREL).Content.(*packets.Pubrel); rel.PacketID != p.PacketID {
		t.Errorf("PUBREL for %d, want %d", rel.PacketID, p.PacketID)
	}
	c.Send(&packets.Pubcomp{PacketID: p.PacketID, ReasonCode: 0x92, Properties: &packets.Properties{}})
	r.awaitAvailable(t)
	r.send(t, o, 1, "next")
	if n := c.ExpectPublish(); string(n.Payload) != "next" {
		t.Errorf("got %s", n)
	}
}

func TestStopCompletesWhatIsOpen(t *testing.T) {
	connack := &packets.Connack{Properties: &packets.Properties{ReceiveMaximum: new(uint16(1))}}
	r, _, c := sendOnly(t, gobridge.ModePersistent, connack)
	o := newOutcomes()
	r.send(t, o, 1, "sent", "waits")
	c.ExpectPublish()
	stopped := make(chan struct{})
	go func() { defer close(stopped); r.stop() }()
	c.ExpectDisconnect()
	c.Close()
	<-stopped
	if diff := cmp.Diff([]string{"sent", "waits"}, o.wait(t, 2)); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	for _, p := range []string{"sent", "waits"} {
		if err := o.err(p); err == nil || !gobridge.AsError(err).Outage {
			t.Errorf("%s: %v, want an outage", p, err)
		}
	}
	if err := r.Sender("out").Send(o.message("late", 1)); !errors.Is(err, gobridge.ErrClosed) {
		t.Errorf("Send after the end: %v", err)
	}
}

// Resends are paced by what the socket takes, and a broker that reads slowly gets
// all of them in order.
func TestLargeBacklogIsSentAgainInOrder(t *testing.T) {
	const n = 128
	r, fb, c := sendOnly(t, gobridge.ModePersistent, nil)
	o := newOutcomes()
	body := strings.Repeat("x", 64<<10)
	for i := range n {
		m := o.message(body, 1)
		m.Envelope.ID = string(rune('a'+i%26)) + m.Envelope.ID
		m.Envelope.Headers = []gobridge.Property{{Name: "n", Value: strings.Repeat("i", i)}}
		if err := r.Sender("out").Send(m); err != nil {
			t.Fatal(err)
		}
	}
	r.Sender("out").Flush()
	for range 3 {
		c.ExpectPublish()
	}
	c.Reset()
	c = fb.Accept()
	c.Handshake(present())
	last := -1
	for range n {
		p := c.ExpectPublish()
		for _, u := range p.Properties.User {
			if u.Key != "n" {
				continue
			}
			if len(u.Value) != last+1 {
				t.Fatalf("message %d after %d", len(u.Value), last)
			}
			last++
		}
	}
	if last != n-1 {
		t.Errorf("last message %d, want %d", last, n-1)
	}
}

// QoS 0 is done when its bytes have left: what has not when the link is cut is
// handed back.
func TestQoS0ThatDidNotLeaveIsHandedBack(t *testing.T) {
	t.Parallel()
	const n = 400
	fb := bridgetest.NewFakeBroker(t)
	proxy := bridgetest.NewProxy(t, fb.Addr())
	r := startSession(t, testUse(proxy.URL(), gobridge.ModePersistent, nil, preserveQoS))
	t.Cleanup(fb.CutAll)
	fb.Accept().Handshake(nil)
	r.awaitAvailable(t)
	proxy.Stall(true)
	o := newOutcomes()
	for i := range n {
		m := o.message(fmt.Sprint(i), 0)
		m.Envelope.Headers = []gobridge.Property{{Name: "fill", Value: strings.Repeat("x", 60_000)}}
		if err := r.Sender("out").Send(m); err != nil {
			t.Fatal(err)
		}
		r.Sender("out").Flush()
	}
	left := len(o.wait(t, 1))
	if left == n {
		t.Fatal("a stalled link took everything: the test shows nothing")
	}
	proxy.Stall(false)
	proxy.Cut()
	for i, p := range o.wait(t, n) {
		if p != fmt.Sprint(i) {
			t.Fatalf("outcome %d is that of %s", i, p)
		}
	}
	if err := o.err("0"); err != nil {
		t.Errorf("first message: %v", err)
	}
	if err := o.err(fmt.Sprint(n - 1)); !errors.Is(err, gobridge.ErrConnectionLost) {
		t.Errorf("last message: %v, want a lost connection", err)
	}
}
