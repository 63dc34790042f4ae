package mqtt

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/bridgetest"
	"github.com/gobridge/gobridge/metric"
)

// fenced is a connected session whose broker takes two publishes at a time.
func fenced(t *testing.T, until time.Time) (*recovering, *gobridge.Fence, *bridgetest.FakeBroker, *bridgetest.FakeConn) {
	t.Helper()
	fb := bridgetest.NewFakeBroker(t)
	fence := new(gobridge.Fence)
	fence.OpenUntil(until)
	r := startRecovering(t, testUse(fb.URL(), gobridge.ModePersistent, nil), gobridge.Env{Fence: fence})
	t.Cleanup(fb.CutAll)
	c := fb.Accept()
	c.Handshake(&packets.Connack{Properties: &packets.Properties{ReceiveMaximum: new(uint16(2))}})
	r.awaitAvailable(t)
	return r, fence, fb, c
}

// After the fence no PUBLISH is started: not by Send, and not by an acknowledgement
// that makes room (D5).
func TestNoPublishIsStartedPastTheFence(t *testing.T) {
	r, fence, _, c := fenced(t, time.Now().Add(time.Hour))
	notified := make(chan struct{}, 10)
	r.Sender("out").Notify(func() { notified <- struct{}{} })
	o := newOutcomes()
	r.send(t, o, 1, "a", "b", "waits")
	first := c.ExpectPublish()
	c.ExpectPublish()
	fence.Shut()
	if err := r.Sender("out").Send(o.message("late", 1)); !errors.Is(err, gobridge.ErrLeaseLost) || !gobridge.AsError(err).Outage {
		t.Errorf("Send past the fence: %v", err)
	}
	if err := r.Sender("out").Available(); !errors.Is(err, gobridge.ErrLeaseLost) {
		t.Errorf("Available: %v", err)
	}
	c.Send(&packets.Puback{PacketID: first.PacketID})
	if got := o.wait(t, 2); !slices.Equal(got, []string{"a", "waits"}) {
		t.Errorf("completed %v", got)
	}
	if err := o.err("a"); err != nil {
		t.Errorf("a: %v", err)
	}
	if err := o.err("waits"); !errors.Is(err, gobridge.ErrLeaseLost) {
		t.Errorf("waits: %v", err)
	}
	c.ExpectNothing(2 * fenceCheck)

	// A lease that is renewed after all.
	fence.OpenUntil(time.Now().Add(time.Hour))
	select {
	case <-notified:
	case <-time.After(testWait):
		t.Fatal("nobody was told that the fence is open again")
	}
	r.send(t, o, 1, "later")
	if p := c.ExpectPublish(); string(p.Payload) != "later" {
		t.Errorf("published %q", p.Payload)
	}
}

// Open publishes are not sent again past the fence, and are not taken for stuck.
func TestNoPublishIsSentAgainPastTheFence(t *testing.T) {
	r, fence, fb, c := fenced(t, time.Now().Add(time.Hour))
	o := newOutcomes()
	m := o.message("open", 1)
	m.Timeout = 400 * time.Millisecond
	if err := r.Sender("out").Send(m); err != nil {
		t.Fatalf("send: %v", err)
	}
	r.Sender("out").Flush()
	c.ExpectPublish()
	c.Reset()
	c = fb.Accept()
	fence.Shut() // between the connect and its answer
	c.Handshake(present())
	c.ExpectNothing(6 * fenceCheck)
	fence.OpenUntil(time.Now().Add(time.Hour))
	p := c.ExpectPublish()
	if string(p.Payload) != "open" || !p.Duplicate {
		t.Errorf("sent again: %q, DUP %t", p.Payload, p.Duplicate)
	}
	c.Send(&packets.Puback{PacketID: p.PacketID})
	o.wait(t, 1)
	if err := o.err("open"); err != nil {
		t.Errorf("open: %v", err)
	}
}

// A connect past the fence would disconnect the next owner. A new time as the owner
// begins without the waits of the last one.
func TestNoConnectIsBegunPastTheFence(t *testing.T) {
	fb := bridgetest.NewFakeBroker(t)
	fence, doubts, carry := new(gobridge.Fence), make(chan struct{}, 10), newCarried()
	fence.OpenUntil(time.Now().Add(time.Hour))
	env := gobridge.Env{Fence: fence, Carried: carry, Doubt: func() { doubts <- struct{}{} }}
	use := func() *gobridge.SessionUse {
		return testUse(fb.URL(), gobridge.ModePersistent, nil, func(s *SessionSettings, _ *SenderSettings) {
			s.ReconnectDelay, s.ReconnectMaxDelay = 10*time.Millisecond, time.Minute
		})
	}
	r := startWith(t, use(), env)
	fb.Accept().Handshake(nil)
	r.awaitAvailable(t)
	fence.Shut()
	fb.CutAll()
	<-doubts
	eventually(t, "connects are given up", func() bool { return r.value(metric.MQTTConnectFailures, string(gobridge.CodeLeaseLost)) > 2 })
	if n := fb.Connections(); n != 1 {
		t.Errorf("%d connections, want the first one alone", n)
	}
	r.stop()

	carriedOf(env).backoffOf(sessionSettings(use().Session)).takenOver()
	fence.OpenUntil(time.Now().Add(time.Hour))
	began := time.Now()
	startWith(t, use(), env)
	fb.Accept().Handshake(nil)
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the next time as the owner began with a wait of %v", took)
	}
}
