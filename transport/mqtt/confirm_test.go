package mqtt

import (
	"errors"
	"testing"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/bridgetest"
)

// soon makes a session confirm what it was granted on trust without a long wait.
func soon(r *recovering) { r.confirm = 50 * time.Millisecond }

// A resumed session with the wanted filters sends nothing at first; then it asks for
// all of them, takes out again what was removed before, and stays ready all the while.
func TestWhatAResumedSessionIsTakenToHaveIsConfirmed(t *testing.T) {
	fb, h := bridgetest.NewFakeBroker(t), newFakeHistory()
	subscribedOnce(t, fb, h, topics(1, "in/a", "in/b"))
	if err := h.Remember(t.Context(), testKey, removed("old/#")); err != nil {
		t.Fatal(err)
	}
	r := startRecovering(t, testUse(fb.URL(), gobridge.ModePersistent, topics(1, "in/a", "in/b")), gobridge.Env{History: h, DeadLetters: true}, soon)
	t.Cleanup(fb.CutAll)
	c := fb.Accept()
	c.Handshake(present())
	r.awaitReady(t)
	sub := expectAsked(t, c, "in/a", "in/b")
	if h := r.Health(); h.ServiceLevel != gobridge.LevelFull || h.SubscriptionsActive != 2 {
		t.Errorf("level %s with %d subscriptions while they are confirmed", h.ServiceLevel, h.SubscriptionsActive)
	}
	c.Grant(sub)
	expectUnsubscribe(t, c, "old/#")
}

// A broker that was killed before it saved the latest subscription comes back with the
// session and without it: messages of it must come again.
func TestSubscriptionThatAKilledMosquittoForgotIsMadeAgain(t *testing.T) {
	broker := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{Extra: []string{"autosave_interval 1800"}})
	h := newFakeHistory()
	first := startManaged(t, testUse(broker.URL(), gobridge.ModePersistent, topics(1, "a/#")), h)
	first.awaitReady(t)
	first.stop()
	broker.Restart() // saves
	r := startRecovering(t, testUse(broker.URL(), gobridge.ModePersistent, topics(1, "a/#", "b/#")), gobridge.Env{History: h, DeadLetters: true}, soon)
	to, _ := r.receive(t)
	r.awaitReady(t)
	broker.Kill()
	eventually(t, "the loss of the connection is noticed", func() bool { return !r.Health().Connected })
	broker.Start()
	eventually(t, "the resumed session is confirmed", func() bool { return r.Health().SessionPresent && !r.trusting() })
	client := bridgetest.MustConnect(t, bridgetest.ClientConfig{Addr: broker.Addr(), ClientID: "publisher"})
	publishAll(t, client, "b/1", false, "after the crash")
	to.wait(t, 1)[0].Ack()
}

// The connection that a recovery has made is no better known than another one.
func TestWhatARecoveryResumedIsConfirmed(t *testing.T) {
	fb := bridgetest.NewFakeBroker(t)
	r := startRecovering(t, testUse(fb.URL(), gobridge.ModePersistent, topics(1, "in/#")), gobridge.Env{}, soon)
	t.Cleanup(fb.CutAll)
	c := fb.Accept()
	c.Handshake(nil)
	c.Grant(c.ExpectSubscribe())
	to, _ := r.receive(t)
	r.awaitReady(t)
	c.Send(publish(1, 1, "given back"))
	if err := to.wait(t, 1)[0].Retry(0, errors.New("not now")); err != nil {
		t.Fatal(err)
	}
	c.ExpectDisconnect()
	c = fb.Accept()
	c.Handshake(present())
	c.Grant(expectAsked(t, c, "in/#"))
	r.awaitReady(t)
}
