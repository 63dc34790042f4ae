package mqtt

import (
	"context"
	"errors"
	"maps"
	"slices"
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

// fakeHistory is a managed subscription history that outlives the sessions of a
// test. It can be made to fail, and tells what was written.
type fakeHistory struct {
	mu      sync.Mutex
	entries map[gobridge.HistoryKey]map[string]struct{}
	down    map[string]error // by operation: load, remember, forget, reset
	hold    chan struct{}    // remember waits for it
	writes  []string
	failed  int // calls of Load
}

var _ gobridge.History = (*fakeHistory)(nil)

func newFakeHistory() *fakeHistory {
	return &fakeHistory{entries: map[gobridge.HistoryKey]map[string]struct{}{}, down: map[string]error{}}
}

var (
	testKey    = gobridge.HistoryKey{SessionID: "s", ClientID: "client"}
	errNoSpace = errors.New("bridge.db: no space left on device")
)

func (h *fakeHistory) Load(_ context.Context, k gobridge.HistoryKey) ([]string, bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.down["load"] != nil {
		h.failed++
	}
	entries, known := h.entries[k]
	return slices.Sorted(maps.Keys(entries)), known, h.down["load"]
}

func (h *fakeHistory) Remember(ctx context.Context, k gobridge.HistoryKey, entries ...string) error {
	h.mu.Lock()
	hold := h.hold
	h.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return h.write("remember", entries, func() {
		if h.entries[k] == nil {
			h.entries[k] = map[string]struct{}{}
		}
		for _, e := range entries {
			h.entries[k][e] = struct{}{}
		}
	})
}

func (h *fakeHistory) Forget(_ context.Context, k gobridge.HistoryKey, entries ...string) error {
	return h.write("forget", entries, func() {
		for _, e := range entries {
			delete(h.entries[k], e)
		}
	})
}

func (h *fakeHistory) Reset(_ context.Context, k gobridge.HistoryKey) error {
	return h.write("reset", nil, func() { h.entries[k] = map[string]struct{}{} })
}

func (h *fakeHistory) Close() error { return nil }

func (h *fakeHistory) write(op string, entries []string, do func()) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.down[op]; err != nil {
		return err
	}
	slices.Sort(entries)
	h.writes = append(h.writes, strings.TrimSpace(op+" "+strings.Join(entries, ", ")))
	do()
	return nil
}

// erase removes the baseline; put is a seed.
func (h *fakeHistory) erase() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.entries)
}

func (h *fakeHistory) put(entries ...string) {
	_ = h.Remember(context.Background(), testKey, entries...)
}

// fail makes operations fail, all of them without names; repair ends it.
func (h *fakeHistory) fail(ops ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(ops) == 0 {
		ops = []string{"load", "remember", "forget", "reset"}
	}
	for _, op := range ops {
		h.down[op] = errNoSpace
	}
}

func (h *fakeHistory) repair() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.down)
}

func (h *fakeHistory) want(t *testing.T, entries ...string) {
	t.Helper()
	got, _, _ := h.Load(t.Context(), testKey)
	slices.Sort(entries)
	if diff := cmp.Diff(entries, got); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}
}

// took returns what was written since the last call.
func (h *fakeHistory) took() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := h.writes
	h.writes = nil
	return w
}

// granted is what the history holds after the filters were granted at that QoS.
func granted(qos string, filters ...string) []string {
	var all []string
	for _, f := range filters {
		all = append(all, "# qos="+qos+" no_local=true "+f)
	}
	return append(all, filters...)
}

// removed is what the history holds after a filter left the config.
func removed(filter string) string { return "# removed " + filter }

// nextProcess starts a session with the history and answers its CONNECT.
func nextProcess(t *testing.T, fb *bridgetest.FakeBroker, h *fakeHistory, wanted []gobridge.TopicSpec, connack *packets.Connack) (*running, *bridgetest.FakeConn) {
	t.Helper()
	r := startManaged(t, testUse(fb.URL(), gobridge.ModePersistent, wanted), h)
	t.Cleanup(fb.CutAll)
	c := fb.Accept()
	c.Handshake(connack)
	return r, c
}

// end stops a session as a broker sees it that reads its DISCONNECT.
func (r *running) end(t *testing.T, c *bridgetest.FakeConn) {
	t.Helper()
	stopped := make(chan struct{})
	go func() { defer close(stopped); r.stop() }()
	c.ExpectDisconnect()
	c.Close()
	<-stopped
}

// subscribedOnce runs a process that has the filters granted, and ends it.
func subscribedOnce(t *testing.T, fb *bridgetest.FakeBroker, h *fakeHistory, wanted []gobridge.TopicSpec) {
	t.Helper()
	r, c := nextProcess(t, fb, h, wanted, nil)
	c.Grant(c.ExpectSubscribe())
	r.awaitReady(t)
	r.end(t, c)
	h.took()
}

func expectUnsubscribe(t *testing.T, c *bridgetest.FakeConn, filters ...string) *packets.Unsubscribe {
	t.Helper()
	u := c.Expect(packets.UNSUBSCRIBE).Content.(*packets.Unsubscribe)
	if diff := cmp.Diff(filters, u.Topics); diff != "" {
		t.Errorf("UNSUBSCRIBE (-want +got):\n%s", diff)
	}
	return u
}

// expectAsked expects a SUBSCRIBE for exactly these filters, without a replay of
// retained messages for those that exist.
func expectAsked(t *testing.T, c *bridgetest.FakeConn, filters ...string) *packets.Subscribe {
	t.Helper()
	sub := c.ExpectSubscribe()
	var got []string
	for _, o := range sub.Subscriptions {
		got = append(got, o.Topic)
		if o.RetainHandling != 1 {
			t.Errorf("%s: Retain Handling %d, want 1", o.Topic, o.RetainHandling)
		}
	}
	if diff := cmp.Diff(filters, got); diff != "" {
		t.Errorf("SUBSCRIBE (-want +got):\n%s", diff)
	}
	return sub
}

// Session Present=false proves that the baseline is empty: no manual step (V5).
//
// Covers: S1-530
func TestNewIdentityStartsByItself(t *testing.T) {
	fb, h := bridgetest.NewFakeBroker(t), newFakeHistory()
	r, c := nextProcess(t, fb, h, topics(1, "in/#"), nil)
	c.Grant(expectAsked(t, c, "in/#"))
	r.awaitReady(t)
	want := []string{"reset", "remember in/#", "remember # qos=1 no_local=true in/#"}
	if diff := cmp.Diff(want, h.took()); diff != "" {
		t.Errorf("written to the history (-want +got):\n%s", diff)
	}
	r.wantValue(t, 0, metric.MQTTSessionResumeLost)
}

// The process ends before it could make use of the CONNACK that proves the empty
// baseline: it writes that down before it goes.
func TestProofOfAnEmptyBaselineOutlivesAShortProcess(t *testing.T) {
	fb, h := bridgetest.NewFakeBroker(t), newFakeHistory()
	h.fail()
	use := testUse(fb.URL(), gobridge.ModePersistent, topics(1, "in/#"), func(s *SessionSettings, _ *SenderSettings) {
		s.ReconnectDelay = testWait // it does not try again in time
	})
	r := startManaged(t, use, h)
	c := fb.Accept()
	c.Handshake(nil)
	awaitStoreFault(t, r)
	h.repair()
	r.end(t, c)
	r, c = nextProcess(t, fb, h, topics(1, "in/#"), present())
	c.Grant(expectAsked(t, c, "in/#"))
	r.awaitReady(t)
}

func TestFilterIsRememberedBeforeItsSubscribe(t *testing.T) {
	fb, h := bridgetest.NewFakeBroker(t), newFakeHistory()
	h.hold = make(chan struct{})
	r, c := nextProcess(t, fb, h, topics(1, "in/#"), nil)
	c.ExpectNothing(50 * time.Millisecond)
	close(h.hold)
	sub := c.ExpectSubscribe()
	h.want(t, "in/#")
	c.Grant(sub)
	r.awaitReady(t)
}

// The first connect of a process: the history equals the wanted filters, so that
// nothing is sent, and nothing is replayed (V7).
//
// Covers: S1-532
func TestResumedSessionWithAnEqualHistoryIsNotSubscribed(t *testing.T) {
	fb, h := bridgetest.NewFakeBroker(t), newFakeHistory()
	wanted := topics(1, "in/a", "in/b")
	subscribedOnce(t, fb, h, wanted)
	r, c := nextProcess(t, fb, h, wanted, present())
	r.awaitReady(t)
	to, _ := r.receive(t)
	c.Send(publish(1, 1, "a"))
	to.wait(t, 1)
	c.ExpectNothing(50 * time.Millisecond)
	if got := r.Health(); got.SubscriptionsActive != 2 || got.SubscriptionsWanted != 2 {
		t.Errorf("%d of %d subscriptions are active", got.SubscriptionsActive, got.SubscriptionsWanted)
	}
	if w := h.took(); len(w) != 0 {
		t.Errorf("written to the history: %v", w)
	}
}

func TestResumedSessionSubscribesToWhatIsMissingAlone(t *testing.T) {
	fb, h := bridgetest.NewFakeBroker(t), newFakeHistory()
	subscribedOnce(t, fb, h, topics(1, "in/a"))
	r, c := nextProcess(t, fb, h, topics(1, "in/a", "in/b"), present())
	c.Grant(expectAsked(t, c, "in/b"))
	r.awaitReady(t)
	h.want(t, granted("1", "in/a", "in/b")...)
}

// A filter alone is not enough: its SUBSCRIBE may never have been answered, its
// grant may have been less, and its terms may be others now.
func TestFilterWithoutTheWantedGrantIsAskedForAgain(t *testing.T) {
	t.Run("no answer", func(t *testing.T) {
		fb, h := bridgetest.NewFakeBroker(t), newFakeHistory()
		r, c := nextProcess(t, fb, h, topics(1, "in/#"), nil)
		c.ExpectSubscribe()
		r.end(t, c)
		h.want(t, "in/#")
		r, c = nextProcess(t, fb, h, topics(1, "in/#"), present())
		c.Grant(expectAsked(t, c, "in/#"))
		r.awaitReady(t)
	})
	t.Run("downgraded", func(t *testing.T) {
		fb, h := bridgetest.NewFakeBroker(t), newFakeHistory()
		r, c := nextProcess(t, fb, h, topics(1, "in/#"), nil)
		c.Grant(c.ExpectSubscribe(), 0)
		eventually(t, "downgrade is told", func() bool { return r.value(metric.MQTTQoSDowngraded) == 1 })
		r.stop()
		h.want(t, "in/#")
	})
	t.Run("another QoS", func(t *testing.T) {
		fb, h := bridgetest.NewFakeBroker(t), newFakeHistory()
		subscribedOnce(t, fb, h, topics(1, "in/a", "in/b"))
		wanted := append(topics(2, "in/a"), topics(1, "in/b")...)
		r, c := nextProcess(t, fb, h, wanted, present())
		sub := expectAsked(t, c, "in/a")
		h.want(t, "# qos=1 no_local=true in/b", "in/a", "in/b")
		c.Grant(sub)
		r.awaitReady(t)
		h.want(t, "# qos=1 no_local=true in/b", "# qos=2 no_local=true in/a", "in/a", "in/b")
	})
}

// The new filter is subscribed to before the old one goes, and the old one is
// forgotten after the UNSUBACK.
func TestFilterThatIsNotWantedAnyMoreIsUnsubscribed(t *testing.T) {
	for _, code := range []byte{0x00, 0x11} { // success, no subscription existed
		fb, h := bridgetest.NewFakeBroker(t), newFakeHistory()
		subscribedOnce(t, fb, h, topics(1, "in/#"))
		r, c := nextProcess(t, fb, h, topics(1, "in/a/#"), present())
		c.Grant(expectAsked(t, c, "in/a/#"))
		u := expectUnsubscribe(t, c, "in/#")
		h.want(t, append(granted("1", "in/a/#"), "in/#")...)
		if level := r.Health().ServiceLevel; level != gobridge.LevelConnected {
			t.Errorf("service level %s before the UNSUBACK", level)
		}
		c.Send(&packets.Unsuback{PacketID: u.PacketID, Reasons: []byte{code}})
		r.awaitReady(t)
		h.want(t, append(granted("1", "in/a/#"), removed("in/#"))...)
		want := []string{
			"remember in/a/#", "remember # qos=1 no_local=true in/a/#",
			"forget # qos=1 no_local=true in/#", "remember # removed in/#", "forget in/#",
		}
		if diff := cmp.Diff(want, h.took()); diff != "" {
			t.Errorf("written to the history (-want +got):\n%s", diff)
		}
	}
}

// The broker has done it, and the process ends before the answer.
func TestFilterWhoseUnsubackWasLostIsAskedForWhenItIsWantedAgain(t *testing.T) {
	fb, h := bridgetest.NewFakeBroker(t), newFakeHistory()
	subscribedOnce(t, fb, h, topics(1, "in/a", "in/b"))
	r, c := nextProcess(t, fb, h, topics(1, "in/a"), present())
	expectUnsubscribe(t, c, "in/b")
	r.end(t, c)
	h.want(t, append(granted("1", "in/a"), "in/b")...)

	r, c = nextProcess(t, fb, h, topics(1, "in/a", "in/b"), present())
	c.Grant(expectAsked(t, c, "in/b"))
	r.awaitReady(t)
	h.want(t, granted("1", "in/a", "in/b")...)
}

func TestRefusedUnsubscribeIsTheReason(t *testing.T) {
	fb, h := bridgetest.NewFakeBroker(t), newFakeHistory()
	subscribedOnce(t, fb, h, topics(1, "in/a", "in/b"))
	r, c := nextProcess(t, fb, h, topics(1, "in/a"), present())
	u := expectUnsubscribe(t, c, "in/b")
	c.Send(&packets.Unsuback{PacketID: u.PacketID, Reasons: []byte{0x87}})
	eventually(t, "refusal is told", func() bool {
		reasons := r.Health().Reasons
		return len(reasons) == 1 && strings.Contains(reasons[0], `unsubscribe "in/b"`) && strings.Contains(reasons[0], "0x87")
	})
	u = expectUnsubscribe(t, c, "in/b")
	c.Send(&packets.Unsuback{PacketID: u.PacketID, Reasons: []byte{0}})
	r.awaitReady(t)
	h.want(t, append(granted("1", "in/a"), removed("in/b"))...)
}

// A history that is not empty makes the first connect of a process answerable.
//
// Covers: S1-302, S1-529, S1-531, G02
func TestLostResumeIsCountedOnTheFirstConnect(t *testing.T) {
	fb, h := bridgetest.NewFakeBroker(t), newFakeHistory()
	subscribedOnce(t, fb, h, topics(1, "in/old", "in/a"))
	r, c := nextProcess(t, fb, h, topics(1, "in/a"), nil)
	sub := expectAsked(t, c, "in/a")
	if got := r.Health().LastError; !strings.Contains(got, "no longer had the session") {
		t.Errorf("last error %q", got)
	}
	h.want(t, "in/a")
	c.Grant(sub)
	r.awaitReady(t)
	r.wantValue(t, 1, metric.MQTTSessionResumeLost)
	if got := r.Health().LastError; got != "" {
		t.Errorf("last error %q after a converged reconcile", got)
	}
	h.want(t, granted("1", "in/a")...)
}

func awaitStoreFault(t *testing.T, r *running) {
	t.Helper()
	eventually(t, "the store is the reason", func() bool {
		health := r.Health()
		return health.ServiceLevel == gobridge.LevelConnected && slices.ContainsFunc(health.Reasons, func(s string) bool {
			return strings.Contains(s, "managed subscription history: ") && strings.Contains(s, errNoSpace.Error())
		})
	})
}

// Nothing is subscribed to that is not remembered, and nothing is dispatched before
// it is known what the broker has; the store is tried again.
func TestFailingHistoryHoldsTheSessionBack(t *testing.T) {
	t.Parallel()
	t.Run("unreadable, session resumed", func(t *testing.T) {
		fb, h := bridgetest.NewFakeBroker(t), newFakeHistory()
		subscribedOnce(t, fb, h, topics(1, "in/a"))
		h.fail()
		r, c := nextProcess(t, fb, h, topics(1, "in/a", "in/b"), present())
		awaitStoreFault(t, r)
		to, _ := r.receive(t)
		c.Send(publish(1, 1, "waits"))
		eventually(t, "the store is tried for longer than a broker that refuses", func() bool {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.failed > askedInVain+1
		})
		c.ExpectNothing(50 * time.Millisecond)
		if got := to.taken(); len(got) > 0 {
			t.Errorf("dispatched before the history was read: %v", payloads(got))
		}
		h.repair()
		c.Grant(expectAsked(t, c, "in/b"))
		to.wait(t, 1)[0].Ack()
		r.Receiver().Flush()
		expectPuback(t, c, 1)
		r.awaitReady(t)
	})
	t.Run("unwritable, new session", func(t *testing.T) {
		fb, h := bridgetest.NewFakeBroker(t), newFakeHistory()
		h.fail("remember")
		r, c := nextProcess(t, fb, h, topics(1, "in/a"), nil)
		awaitStoreFault(t, r)
		c.ExpectNothing(50 * time.Millisecond)
		h.repair()
		c.Grant(expectAsked(t, c, "in/a"))
		r.awaitReady(t)
	})
	t.Run("unwritable after the grant", func(t *testing.T) {
		fb, h := bridgetest.NewFakeBroker(t), newFakeHistory()
		r, c := nextProcess(t, fb, h, topics(1, "in/a"), nil)
		sub := expectAsked(t, c, "in/a")
		h.fail()
		c.Grant(sub)
		awaitStoreFault(t, r)
		if got := r.Health().SubscriptionsActive; got != 1 {
			t.Errorf("%d subscriptions active, want 1", got)
		}
		h.repair()
		r.awaitReady(t)
		c.ExpectNothing(50 * time.Millisecond)
		h.want(t, granted("1", "in/a")...)
	})
	t.Run("unwritable after the UNSUBACK", func(t *testing.T) {
		fb, h := bridgetest.NewFakeBroker(t), newFakeHistory()
		subscribedOnce(t, fb, h, topics(1, "in/a", "in/b"))
		r, c := nextProcess(t, fb, h, topics(1, "in/a"), present())
		u := expectUnsubscribe(t, c, "in/b")
		h.fail("forget")
		c.Send(unsuback(u))
		awaitStoreFault(t, r)
		h.repair()
		c.Send(unsuback(expectUnsubscribe(t, c, "in/b"))) // it was in the history still
		r.awaitReady(t)
		h.want(t, append(granted("1", "in/a"), removed("in/b"))...)
	})
	t.Run("unwritable before the UNSUBSCRIBE", func(t *testing.T) {
		fb, h := bridgetest.NewFakeBroker(t), newFakeHistory()
		subscribedOnce(t, fb, h, topics(1, "in/a", "in/b"))
		h.fail("forget")
		r, c := nextProcess(t, fb, h, topics(1, "in/a"), present())
		awaitStoreFault(t, r)
		c.ExpectNothing(50 * time.Millisecond) // it would go on to claim the grant
		h.repair()
		c.Send(unsuback(expectUnsubscribe(t, c, "in/b")))
		r.awaitReady(t)
		h.want(t, append(granted("1", "in/a"), removed("in/b"))...)
	})
}

// The session was lost and the store takes no writes: what it remembers is
// subscribed to all the same, and stays remembered.
func TestLostSessionIsSubscribedFromWhatAnUnwritableHistoryHolds(t *testing.T) {
	fb, h := bridgetest.NewFakeBroker(t), newFakeHistory()
	subscribedOnce(t, fb, h, topics(1, "in/a", "in/old"))
	h.fail("remember", "forget", "reset")
	r, c := nextProcess(t, fb, h, topics(1, "in/a", "in/new"), nil)
	c.Grant(expectAsked(t, c, "in/a"))
	awaitStoreFault(t, r)
	c.ExpectNothing(50 * time.Millisecond)
	h.repair()
	c.Grant(expectAsked(t, c, "in/new"))
	r.awaitReady(t)
	r.wantValue(t, 1, metric.MQTTSessionResumeLost)
	if w := h.took(); slices.Contains(w, "reset") {
		t.Errorf("what the broker had was forgotten for a while: %v", w)
	}
	h.want(t, granted("1", "in/a", "in/new")...) // in/old went without an UNSUBSCRIBE
	c.ExpectNothing(50 * time.Millisecond)
}

// The broker answered Session Present=false while the store was away. The session
// that it began then is empty, whatever the history says once it is back.
func TestVoidHistoryIsNotBelievedOnALaterConnect(t *testing.T) {
	fb, h := bridgetest.NewFakeBroker(t), newFakeHistory()
	subscribedOnce(t, fb, h, topics(1, "in/a"))
	h.fail()
	r, c := nextProcess(t, fb, h, topics(1, "in/a"), nil)
	awaitStoreFault(t, r)
	c.Reset()
	c = fb.Accept()
	h.repair()
	c.Handshake(present())
	c.Grant(expectAsked(t, c, "in/a"))
	r.awaitReady(t)
	r.wantValue(t, 1, metric.MQTTSessionResumeLost)
}

func TestHistoryIsForDurableSessionsWithAReceiver(t *testing.T) {
	for name, use := range map[string]func(url string) *gobridge.SessionUse{
		"ephemeral": func(url string) *gobridge.SessionUse {
			return testUse(url, gobridge.ModeEphemeral, topics(0, "in/#"))
		},
		"without a receiver": func(url string) *gobridge.SessionUse { return testUse(url, gobridge.ModePersistent, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			fb, h := bridgetest.NewFakeBroker(t), newFakeHistory()
			h.fail()
			u := use(fb.URL())
			r := startManaged(t, u, h)
			t.Cleanup(fb.CutAll)
			c := fb.Accept()
			c.Handshake(nil)
			if u.Receiver != nil {
				c.Grant(c.ExpectSubscribe())
			}
			r.awaitReady(t)
		})
	}
}
