package mqtt

import (
	"errors"
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

func published(id uint16, qos byte, topic string) *packets.Publish {
	p := publish(id, qos, topic)
	p.Topic = topic
	return p
}

// told names the deliveries, those that are not wanted with an exclamation mark.
func told(all []*gobridge.Delivery) []string {
	var names []string
	for _, d := range all {
		name := string(d.Envelope.Payload)
		if d.Unwanted != nil {
			name = "!" + name
		}
		names = append(names, name)
	}
	return names
}

func unsuback(u *packets.Unsubscribe) *packets.Unsuback {
	return &packets.Unsuback{PacketID: u.PacketID, Reasons: make([]byte, len(u.Topics))}
}

// What was queued under a filter that left the config comes as unwanted, in its turn,
// and nothing is dispatched or acknowledged before the filter is out of the broker.
func TestMessagesOfARemovedFilterAreUnwanted(t *testing.T) {
	fb, h := bridgetest.NewFakeBroker(t), newFakeHistory()
	subscribedOnce(t, fb, h, topics(1, "in/a", "old/#", "in/b"))
	wanted := topics(1, "in/a", "in/b")
	r, c := nextProcess(t, fb, h, wanted, present())
	to, _ := r.receive(t)
	u := expectUnsubscribe(t, c, "old/#")
	poison := published(5, 1, "in/a")
	poison.Payload = make([]byte, DefaultMaxPayloadBytes+1)
	c.Send(poison, published(1, 1, "in/a"), published(2, 2, "old/x"), published(0, 0, "old/zero"),
		published(3, 1, "nobody"), published(0, 0, "nobody"), published(4, 1, "in/b"))
	eventually(t, "all arrived", func() bool { return r.Health().UnsettledCount == 5 })
	c.ExpectNothing(30 * time.Millisecond)
	if got := to.taken(); len(got) > 0 {
		t.Errorf("dispatched before the UNSUBACK: %v", told(got))
	}
	c.Send(unsuback(u))
	got := to.wait(t, 4)
	if diff := cmp.Diff([]string{"in/a", "!old/x", "!old/zero", "in/b"}, told(got)); diff != "" {
		t.Errorf("dispatched (-want +got):\n%s", diff)
	}
	verdict := got[1].Unwanted
	if verdict.Code != gobridge.CodeSubscriptionRemoved || verdict.Class != gobridge.ClassPermanent ||
		!strings.Contains(verdict.Error(), `"old/#"`) || verdict.Hint == "" {
		t.Errorf("verdict: %+v", verdict)
	}
	expectPuback(t, c, 5)
	for _, d := range got {
		d.Ack()
	}
	r.Receiver().Flush()
	expectPuback(t, c, 1)
	c.Expect(packets.PUBREC)
	expectPuback(t, c, 3, 4) // nobody's goes after its grace
	r.awaitReady(t)
	r.wantValue(t, 2, metric.MQTTRouterUnmatchedDropped)
	r.end(t, c)

	// The note makes the next process know the filter still, without a round trip.
	r, c = nextProcess(t, fb, h, wanted, present())
	to, _ = r.receive(t)
	c.Send(published(1, 1, "old/y"), published(2, 1, "in/a"))
	if diff := cmp.Diff([]string{"!old/y", "in/a"}, told(to.wait(t, 2))); diff != "" {
		t.Errorf("dispatched (-want +got):\n%s", diff)
	}
	c.ExpectNothing(30 * time.Millisecond)
	r.end(t, c)

	// Wanted again: the note goes.
	r, c = nextProcess(t, fb, h, topics(1, "in/a", "in/b", "old/#"), present())
	c.Grant(expectAsked(t, c, "old/#"))
	r.awaitReady(t)
	h.want(t, granted("1", "in/a", "in/b", "old/#")...)
	r.end(t, c)

	// And with the session that the broker loses.
	r, c = nextProcess(t, fb, h, wanted, present())
	c.Send(unsuback(expectUnsubscribe(t, c, "old/#")))
	r.awaitReady(t)
	h.want(t, append(granted("1", "in/a", "in/b"), removed("old/#"))...)
	c.Reset()
	c = fb.Accept()
	c.Handshake(nil)
	c.Grant(c.ExpectSubscribe())
	r.awaitReady(t)
	h.want(t, granted("1", "in/a", "in/b")...)
}

func TestMessageThatALiveFilterCoversTooIsOrdinary(t *testing.T) {
	fb, h := bridgetest.NewFakeBroker(t), newFakeHistory()
	if err := h.Remember(t.Context(), testKey, granted("1", "in/#", "$share/g/old/#")...); err != nil {
		t.Fatal(err)
	}
	r, c := nextProcess(t, fb, h, topics(1, "in/a/#"), present())
	to, _ := r.receive(t)
	c.Send(published(1, 1, "in/a/x"), published(2, 1, "in/b"), published(3, 1, "old/x"))
	c.Grant(expectAsked(t, c, "in/a/#")) // before the old one goes, so that the topic is always covered
	c.Send(unsuback(expectUnsubscribe(t, c, "$share/g/old/#", "in/#")))
	if diff := cmp.Diff([]string{"in/a/x", "!in/b", "!old/x"}, told(to.wait(t, 3))); diff != "" {
		t.Errorf("dispatched (-want +got):\n%s", diff)
	}
	r.awaitReady(t)
	h.want(t, append(granted("1", "in/a/#"), removed("$share/g/old/#"), removed("in/#"))...)
}

func TestEightFiltersGoIntoOneUnsubscribe(t *testing.T) {
	fb, h := bridgetest.NewFakeBroker(t), newFakeHistory()
	var old []string
	for _, l := range "abcdefghijklmnopqrst" {
		old = append(old, "old/"+string(l))
	}
	if err := h.Remember(t.Context(), testKey, append(granted("1", "in/a"), old...)...); err != nil {
		t.Fatal(err)
	}
	r, c := nextProcess(t, fb, h, topics(1, "in/a"), present())
	for some := range slices.Chunk(old, 8) {
		c.Send(unsuback(expectUnsubscribe(t, c, some...)))
	}
	r.awaitReady(t)
}

// A broker that will not remove a filter does not stop everything else: its messages
// are told apart all the same.
func TestRefusedUnsubscribeLetsTheDispatchBegin(t *testing.T) {
	fb, h := bridgetest.NewFakeBroker(t), newFakeHistory()
	subscribedOnce(t, fb, h, topics(1, "in/a", "old"))
	r, c := nextProcess(t, fb, h, topics(1, "in/a"), present())
	to, _ := r.receive(t)
	c.Send(published(1, 1, "old"), published(2, 1, "in/a"))
	u := expectUnsubscribe(t, c, "old")
	c.Send(&packets.Unsuback{PacketID: u.PacketID, Reasons: []byte{0x87}})
	if diff := cmp.Diff([]string{"!old", "in/a"}, told(to.wait(t, 2))); diff != "" {
		t.Errorf("dispatched (-want +got):\n%s", diff)
	}
}

func TestWithoutADeadLetterQueueARemovalFailsClosed(t *testing.T) {
	begin := func(t *testing.T, h *fakeHistory, fb *bridgetest.FakeBroker, wanted ...string) *running {
		use := testUse(fb.URL(), gobridge.ModePersistent, topics(1, wanted...))
		t.Cleanup(fb.CutAll)
		return startWith(t, use, gobridge.Env{History: h})
	}
	t.Run("filters to remove", func(t *testing.T) {
		fb, h := bridgetest.NewFakeBroker(t), newFakeHistory()
		subscribedOnce(t, fb, h, topics(1, "in/a", "old"))
		r := begin(t, h, fb, "in/a")
		to, _ := r.receive(t)
		c := fb.Accept()
		c.ExpectConnect()
		c.Send(present(), published(1, 1, "in/a"), published(2, 1, "old"))
		c.ExpectDisconnect() // and no PUBACK
		if rest := c.ExpectClosed(); len(rest) > 0 {
			t.Errorf("after the DISCONNECT: %v", rest)
		}
		standsStill(t, r, `"old"`, "configure a dead-letter queue", "put the filter back", "gobridge subscriptions seed s --discard")
		if got := to.taken(); len(got) > 0 {
			t.Errorf("dispatched: %v", told(got))
		}
		h.want(t, granted("1", "in/a", "old")...)
		r.stop()
		// The filter is put back.
		r = begin(t, h, fb, "in/a", "old")
		to, _ = r.receive(t)
		c = fb.Accept()
		c.Handshake(present())
		c.Send(published(1, 1, "in/a"), published(2, 1, "old"))
		if diff := cmp.Diff([]string{"in/a", "old"}, told(to.wait(t, 2))); diff != "" {
			t.Errorf("dispatched (-want +got):\n%s", diff)
		}
	})
	for _, before := range []bool{true, false} {
		name := map[bool]string{true: "message comes before the history is read", false: "message comes later"}[before]
		t.Run("filter removed earlier, "+name, func(t *testing.T) {
			fb, h := bridgetest.NewFakeBroker(t), newFakeHistory()
			if err := h.Remember(t.Context(), testKey, append(granted("1", "in/a"), removed("old"))...); err != nil {
				t.Fatal(err)
			}
			if before {
				h.fail("load")
			}
			r := begin(t, h, fb, "in/a")
			to, _ := r.receive(t)
			c := fb.Accept()
			c.Handshake(present())
			if before {
				c.Send(published(1, 1, "old"), published(2, 1, "in/a"))
				eventually(t, "all arrived", func() bool { return r.Health().UnsettledCount == 2 })
				h.repair()
			} else {
				r.awaitReady(t)
				c.Send(published(1, 1, "old"))
			}
			c.ExpectDisconnect()
			c.Close()
			standsStill(t, r, `"old"`, "configure a dead-letter queue")
			if got := to.taken(); len(got) > 0 {
				t.Errorf("dispatched: %v", told(got))
			}
		})
	}
}

// Nobody knows what the broker has: nothing is read, dispatched or acknowledged.
func TestUnknownBaselineFailsClosed(t *testing.T) {
	start := func(t *testing.T) (*running, *gobridge.SessionUse, *fakeHistory, *bridgetest.FakeBroker, *route) {
		fb, h := bridgetest.NewFakeBroker(t), newFakeHistory()
		t.Cleanup(fb.CutAll)
		use := testUse(fb.URL(), gobridge.ModePersistent, topics(1, "in/a"))
		r := startManaged(t, use, h)
		to, _ := r.receive(t)
		c := fb.Accept()
		c.ExpectConnect()
		c.Send(present(), published(1, 1, "in/a"), published(2, 1, "old"))
		c.ExpectDisconnect()
		if rest := c.ExpectClosed(); len(rest) > 0 {
			t.Errorf("after the DISCONNECT: %v", rest)
		}
		standsStill(t, r, "gobridge subscriptions seed s keeps", "gobridge subscriptions seed s --discard")
		if got := to.taken(); len(got) > 0 {
			t.Errorf("dispatched: %v", told(got))
		}
		if w := h.took(); len(w) > 0 {
			t.Errorf("written to the history: %v", w)
		}
		return r, use, h, fb, to
	}
	t.Run("a retry changes nothing", func(t *testing.T) {
		r, _, _, fb, _ := start(t)
		r.Retry()
		c := fb.Accept()
		c.Handshake(present())
		c.ExpectDisconnect()
		c.Close()
		standsStill(t, r, "gobridge subscriptions seed s keeps")
	})
	t.Run("seed keeps the queue", func(t *testing.T) {
		r, use, h, fb, to := start(t)
		if err := seed(t.Context(), h, use, false, "old"); err != nil {
			t.Fatal(err)
		}
		h.want(t, "in/a", "old")
		r.Retry()
		c := fb.Accept()
		if c.Handshake(present()).CleanStart {
			t.Error("clean start")
		}
		c.Send(again(published(1, 1, "in/a")), again(published(2, 1, "old")))
		c.Grant(expectAsked(t, c, "in/a"))
		c.Send(unsuback(expectUnsubscribe(t, c, "old")))
		if diff := cmp.Diff([]string{"in/a", "!old"}, told(to.wait(t, 2))); diff != "" {
			t.Errorf("dispatched (-want +got):\n%s", diff)
		}
		r.awaitReady(t)
		h.want(t, append(granted("1", "in/a"), removed("old"))...)
	})
	t.Run("discard throws the session away once", func(t *testing.T) {
		r, use, h, fb, to := start(t)
		if err := seed(t.Context(), h, use, true); err != nil {
			t.Fatal(err)
		}
		r.Retry()
		c := fb.Accept()
		c.Handshake(present()) // the session shows that it is still there
		c.Send(again(published(1, 1, "in/a")))
		c.ExpectDisconnect()
		c.Close()
		c = fb.Accept()
		if !c.Handshake(nil).CleanStart {
			t.Error("no clean start")
		}
		c.Grant(expectAsked(t, c, "in/a"))
		r.awaitReady(t)
		h.want(t, granted("1", "in/a")...)
		r.wantValue(t, 0, metric.MQTTSessionResumeLost)
		if got := to.taken(); len(got) > 0 {
			t.Errorf("dispatched: %v", told(got))
		}
		c.Reset()
		c = fb.Accept()
		if c.Handshake(present()).CleanStart {
			t.Error("clean start again")
		}
	})
}

// The note of a discard goes with the reset after the CONNACK: a process that dies
// before does not end it, and one that cannot write subscribes to nothing that the
// next one would throw away.
func TestDiscardSurvivesUntilTheHistoryIsReset(t *testing.T) {
	fb, h := bridgetest.NewFakeBroker(t), newFakeHistory()
	wanted := topics(1, "in/a")
	subscribedOnce(t, fb, h, wanted)
	use := testUse(fb.URL(), gobridge.ModePersistent, wanted)
	check(use, func(path, what, _ string) { t.Errorf("check: %s: %s", path, what) })
	if err := seed(t.Context(), h, use, true); err != nil {
		t.Fatal(err)
	}
	h.fail("reset")
	r, c := nextProcess(t, fb, h, wanted, present())
	c.ExpectDisconnect()
	c.Close()
	c = fb.Accept()
	if !c.Handshake(nil).CleanStart {
		t.Error("no clean start")
	}
	awaitStoreFault(t, r)
	c.ExpectNothing(50 * time.Millisecond)
	r.end(t, c)
	h.want(t, append(granted("1", "in/a"), discardNote)...)

	r, c = nextProcess(t, fb, h, wanted, present())
	c.ExpectDisconnect()
	c.Close()
	c = fb.Accept()
	if !c.Handshake(nil).CleanStart {
		t.Error("no clean start")
	}
	awaitStoreFault(t, r)
	h.repair()
	c.Grant(expectAsked(t, c, "in/a"))
	r.awaitReady(t)
	h.want(t, granted("1", "in/a")...)
}

func TestSubscriptionsTellWhatTheHistoryKnows(t *testing.T) {
	h := newFakeHistory()
	use := testUse("tcp://127.0.0.1:1", gobridge.ModePersistent, topics(1, "in/b", "in/a", "in/c d"))
	check(use, func(path, what, _ string) { t.Errorf("check: %s: %s", path, what) })
	want := func(known bool, all ...gobridge.SubscriptionState) {
		t.Helper()
		got, gotKnown, err := subscriptions(t.Context(), h, use)
		if err != nil || gotKnown != known {
			t.Errorf("known %v, error %v", gotKnown, err)
		}
		if diff := cmp.Diff(all, got); diff != "" {
			t.Errorf("subscriptions (-want +got):\n%s", diff)
		}
	}
	wanted := func(filter string, granted bool) gobridge.SubscriptionState {
		return gobridge.SubscriptionState{Filter: filter, Wanted: true, Granted: granted}
	}
	want(false, wanted("in/b", false), wanted("in/a", false), wanted("in/c d", false))
	if err := h.Remember(t.Context(), testKey, append(granted("1", "in/a", "in/c d"), "old/1", "# qos=2 no_local=true in/b", "in/b",
		removed("old/2 with spaces"), removed("old/1"), removed("in/a"))...); err != nil {
		t.Fatal(err)
	}
	want(true, wanted("in/b", false), wanted("in/a", true), wanted("in/c d", true),
		gobridge.SubscriptionState{Filter: "old/1"}, gobridge.SubscriptionState{Filter: "old/2 with spaces", Removed: true})
	if err := seed(t.Context(), h, use, true); err != nil {
		t.Fatal(err)
	}
	want(true, wanted("in/b", false), wanted("in/a", false), wanted("in/c d", false),
		gobridge.SubscriptionState{Filter: "old/1"}, gobridge.SubscriptionState{Filter: "old/2 with spaces", Removed: true})
	if err := seed(t.Context(), h, use, false); err != nil {
		t.Fatal(err)
	}
	want(true, wanted("in/b", false), wanted("in/a", false), wanted("in/c d", false),
		gobridge.SubscriptionState{Filter: "old/1"}, gobridge.SubscriptionState{Filter: "old/2 with spaces", Removed: true})

	if err := seed(t.Context(), h, use, false, "a/#/b"); err == nil {
		t.Error("an invalid filter was taken")
	}
	if err := seed(t.Context(), h, use, true, "a"); err == nil {
		t.Error("filters of a session that is thrown away were taken")
	}
	use.Session.Mode = gobridge.ModeEphemeral
	if err := seed(t.Context(), h, use, true); !errors.Is(err, gobridge.ErrNotSupported) {
		t.Errorf("seed of an ephemeral session: %v", err)
	}
}
