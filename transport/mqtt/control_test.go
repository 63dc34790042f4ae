package mqtt

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/bridgetest"
	"github.com/gobridge/gobridge/metric"
)

func inBackground(f func(context.Context) error) (done chan error, cancel context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.Background(), testWait)
	done = make(chan error, 1)
	go func() { done <- f(ctx); cancel() }()
	return done, cancel
}

func returns(t *testing.T, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(2 * testWait):
		t.Fatal("it does not return")
		return nil
	}
}

func TestDrainRemovesEverySubscriptionAndWaitsForTheQueue(t *testing.T) {
	t.Parallel()
	fb, h := bridgetest.NewFakeBroker(t), newFakeHistory()
	r, c := nextProcess(t, fb, h, topics(1, "in/a", "in/b"), nil)
	c.Grant(c.ExpectSubscribe())
	r.awaitReady(t)
	to, _ := r.receive(t)
	c.Send(publish(1, 1, "queued"))
	d := to.wait(t, 1)[0]

	done, _ := inBackground(r.Drain)
	c.Send(unsuback(expectUnsubscribe(t, c, "in/a", "in/b")))
	c.Send(publish(2, 1, "too"))
	later := to.wait(t, 2)[1]
	later.Ack()
	select {
	case err := <-done:
		t.Fatalf("drained with a message that is not settled: %v", err)
	case <-time.After(drainQuiet + 5*drainPoll):
	}
	d.Ack()
	r.Receiver().Flush()
	began := time.Now()
	if err := returns(t, done); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < drainQuiet-drainPoll {
		t.Errorf("drained after %s of silence, want %s", took, drainQuiet)
	}
	expectPuback(t, c, 1, 2)
	drained := func() {
		t.Helper()
		eventually(t, "session is drained", func() bool {
			s := r.Health()
			return s.State == "drained" && s.Connected && s.ServiceLevel == gobridge.LevelConnected && s.SubscriptionsActive == 0 &&
				len(s.Reasons) == 1 && strings.Contains(s.Reasons[0], "gobridge sessions retry s")
		})
	}
	drained()
	h.want(t, removed("in/a"), removed("in/b"))

	// A reconnect does not subscribe; what still comes is delivered.
	c.Reset()
	c = fb.Accept()
	c.Handshake(present())
	drained()
	c.Send(publish(3, 1, "late"))
	to.wait(t, 3)
	c.ExpectNothing(30 * time.Millisecond)

	r.Retry()
	c.ExpectDisconnect()
	c.Close()
	c = fb.Accept()
	c.Handshake(present())
	c.Grant(c.ExpectSubscribe())
	r.awaitReady(t)
	h.want(t, granted("1", "in/a", "in/b")...)
}

func TestDrainThatIsRefusedSubscribesAgain(t *testing.T) {
	r, fb, c := subscribing(t, gobridge.ModePersistent, topics(1, "in/a"), nil)
	c.Grant(c.ExpectSubscribe())
	r.awaitReady(t)
	done, _ := inBackground(r.Drain)
	u := expectUnsubscribe(t, c, "in/a")
	c.Send(&packets.Unsuback{PacketID: u.PacketID, Reasons: []byte{0x87}})
	c.ExpectDisconnect()
	c.Close()
	if err := returns(t, done); err == nil || !strings.Contains(err.Error(), "0x87") || !strings.Contains(err.Error(), "drain session s") {
		t.Errorf("drain: %v", err)
	}
	c = fb.Accept()
	c.Handshake(present())
	c.Grant(expectAsked(t, c, "in/a"))
	r.awaitReady(t)
}

// The broker has done it, and the answer is lost with the connection.
func TestDrainWithoutAnAnswerSubscribesAgain(t *testing.T) {
	fb, h := bridgetest.NewFakeBroker(t), newFakeHistory()
	subscribedOnce(t, fb, h, topics(1, "in/a"))
	r, c := nextProcess(t, fb, h, topics(1, "in/a"), present())
	r.awaitReady(t)
	done, _ := inBackground(r.Drain)
	expectUnsubscribe(t, c, "in/a")
	h.want(t, "in/a")
	c.Reset()
	if err := returns(t, done); err == nil || !strings.Contains(err.Error(), "without an answer") {
		t.Errorf("drain: %v", err)
	}
	c = fb.Accept()
	c.Handshake(present())
	c.Grant(expectAsked(t, c, "in/a"))
	r.awaitReady(t)
	h.want(t, granted("1", "in/a")...)
}

func TestDrainLeavesWhenItsContextEnds(t *testing.T) {
	r, _, c := subscribing(t, gobridge.ModePersistent, topics(1, "in/a"), nil)
	c.Grant(c.ExpectSubscribe())
	r.awaitReady(t)
	if err := r.gate.acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	done, cancel := inBackground(r.Drain)
	cancel()
	if err := returns(t, done); !errors.Is(err, context.Canceled) {
		t.Errorf("while another has the gate: %v", err)
	}
	r.gate.release()

	to, _ := r.receive(t)
	c.Send(publish(1, 1, "never settled"))
	to.wait(t, 1)
	done, cancel = inBackground(r.Drain)
	c.Send(unsuback(expectUnsubscribe(t, c, "in/a")))
	eventually(t, "session is drained", func() bool { return r.Health().State == "drained" })
	cancel()
	if err := returns(t, done); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "still open") {
		t.Errorf("with an open message: %v", err)
	}
}

func TestDrainThatIsOvertakenDoesNotClaimToBeDone(t *testing.T) {
	r, fb, c := subscribing(t, gobridge.ModePersistent, topics(1, "in/a"), nil)
	to, _ := r.receive(t)
	c.Grant(c.ExpectSubscribe())
	r.awaitReady(t)
	c.Send(publish(1, 1, "open"))
	d := to.wait(t, 1)[0]
	done, _ := inBackground(r.Drain)
	c.Send(unsuback(expectUnsubscribe(t, c, "in/a")))
	eventually(t, "session is drained", func() bool { return r.Health().State == "drained" })
	r.Retry()
	if err := returns(t, done); !errors.Is(err, errOvertaken) {
		t.Errorf("drain: %v", err)
	}
	d.Ack()
	c.ExpectDisconnect()
	c.Close()
	c = fb.Accept()
	c.Handshake(present())
	c.Grant(expectAsked(t, c, "in/a"))
	r.awaitReady(t)
}

func TestEndRemovesTheSessionFromTheBroker(t *testing.T) {
	fb, h := bridgetest.NewFakeBroker(t), newFakeHistory()
	r, c := nextProcess(t, fb, h, topics(1, "in/a"), nil)
	c.Grant(c.ExpectSubscribe())
	r.awaitReady(t)
	done, _ := inBackground(r.End)
	d := c.ExpectDisconnect()
	if e := d.Properties.SessionExpiryInterval; d.ReasonCode != 0 || e == nil || *e != 0 {
		t.Errorf("DISCONNECT reason %#x, session expiry %v, want 0 and 0", d.ReasonCode, e)
	}
	c.Send(publish(1, 1, "too late"))
	c.Close()
	if err := returns(t, done); err != nil {
		t.Fatal(err)
	}
	h.want(t)
	s := r.Health()
	if s.State != "ended" || s.Connected || s.ServiceLevel != gobridge.LevelNone || !strings.Contains(s.Reasons[0], "gobridge sessions retry s") {
		t.Errorf("health: %+v", s)
	}
	if err := r.Drain(t.Context()); !errors.Is(err, gobridge.ErrNotConnected) || !strings.Contains(err.Error(), "removed from the broker") {
		t.Errorf("drain of an ended session: %v", err)
	}
	time.Sleep(100 * time.Millisecond) // several reconnect delays
	if n := fb.Connections(); n != 1 {
		t.Errorf("%d connections of an ended session", n)
	}
	r.Retry()
	c = fb.Accept()
	c.Handshake(nil)
	c.Grant(expectAsked(t, c, "in/a"))
	r.awaitReady(t)
	r.wantValue(t, 0, metric.MQTTSessionResumeLost)
}

func TestEndedSessionStopsInGoodOrder(t *testing.T) {
	r, _, c := subscribing(t, gobridge.ModePersistent, topics(1, "in/a"), nil)
	c.Grant(c.ExpectSubscribe())
	r.awaitReady(t)
	done, _ := inBackground(r.End)
	c.ExpectDisconnect()
	c.Close()
	if err := returns(t, done); err != nil {
		t.Fatal(err)
	}
	r.stop()
	if err := r.End(t.Context()); !errors.Is(err, gobridge.ErrClosed) {
		t.Errorf("end of a stopped session: %v", err)
	}
}

func TestEndWithoutTheBrokersCloseIsNotConfirmed(t *testing.T) {
	t.Parallel()
	fb, h := bridgetest.NewFakeBroker(t), newFakeHistory()
	r, c := nextProcess(t, fb, h, topics(1, "in/a"), nil)
	c.Grant(c.ExpectSubscribe())
	r.awaitReady(t)
	c.WithholdClose(true)
	done, _ := inBackground(r.End)
	c.ExpectDisconnect()
	if err := returns(t, done); err == nil || !strings.Contains(err.Error(), "whether it has removed the session is not known") {
		t.Errorf("end: %v", err)
	}
	h.want(t, granted("1", "in/a")...)
}

func TestUnreachableSessionCannotBeChanged(t *testing.T) {
	use := testUse("tcp://127.0.0.1:1", gobridge.ModePersistent, topics(1, "in/a"))
	r := startSession(t, use)
	eventually(t, "refusal is known", func() bool { return r.Health().LastError != "" })
	for name, change := range map[string]func(context.Context) error{"drain": r.Drain, "end": r.End} {
		if err := change(t.Context()); !errors.Is(err, gobridge.ErrNotConnected) || !strings.Contains(err.Error(), "refused") ||
			!strings.Contains(err.Error(), name+" session s") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if state := r.Health().State; state != "connecting" {
		t.Errorf("state %s after a change that could not be made", state)
	}
}
