package mqtt

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/google/go-cmp/cmp"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/bridgetest"
	"github.com/gobridge/gobridge/metric"
)

func subscribing(t *testing.T, mode string, wanted []gobridge.TopicSpec, connack *packets.Connack, change ...func(*SessionSettings, *SenderSettings)) (*running, *bridgetest.FakeBroker, *bridgetest.FakeConn) {
	t.Helper()
	fb := bridgetest.NewFakeBroker(t)
	use := testUse(fb.URL(), mode, wanted, change...)
	use.Route.DeliveryMode = gobridge.SharedOutbox // so that ephemeral may ask for QoS 1
	r := startSession(t, use)
	t.Cleanup(fb.CutAll)
	c := fb.Accept()
	c.Handshake(connack)
	return r, fb, c
}

// Covers: S1-532, S1-533
func TestSubscribeOptionsFollowTheMode(t *testing.T) {
	tests := []struct {
		mode   string
		retain byte
	}{{gobridge.ModePersistent, 1}, {gobridge.ModeEphemeral, 0}}
	for _, tt := range tests {
		t.Run(tt.mode, func(t *testing.T) {
			_, _, c := subscribing(t, tt.mode, topics(1, "in/#"), nil)
			sub := c.ExpectSubscribe()
			want := []packets.SubOptions{{Topic: "in/#", QoS: 1, RetainAsPublished: true, RetainHandling: tt.retain, NoLocal: true}}
			if diff := cmp.Diff(want, sub.Subscriptions); diff != "" {
				t.Errorf("SUBSCRIBE (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNoLocalIsNeverSetOnASharedFilter(t *testing.T) {
	s := &session{set: &SessionSettings{NoLocal: new(true)}, durable: true}
	if o := s.subscribeOptions(&subscription{filter: "$share/g/a", shared: true}, true); o.NoLocal {
		t.Error("No Local on a shared filter")
	}
	if o := s.subscribeOptions(&subscription{filter: "a"}, true); !o.NoLocal {
		t.Error("no No Local on a plain filter")
	}
}

func TestEightFiltersGoIntoOneSubscribe(t *testing.T) {
	var filters []string
	for i := range 20 {
		filters = append(filters, fmt.Sprintf("in/%d", i))
	}
	r, _, c := subscribing(t, gobridge.ModePersistent, topics(1, filters...), nil)
	var got []string
	for _, n := range []int{8, 8, 4} {
		sub := c.ExpectSubscribe()
		if h := r.Health(); h.ServiceLevel != gobridge.LevelConnected || h.State != "subscribing" {
			t.Errorf("state %s, service level %s while subscribing", h.State, h.ServiceLevel)
		}
		if len(sub.Subscriptions) != n {
			t.Errorf("%d filters in one SUBSCRIBE, want %d", len(sub.Subscriptions), n)
		}
		for _, s := range sub.Subscriptions {
			got = append(got, s.Topic)
		}
		c.Grant(sub)
	}
	if diff := cmp.Diff(filters, got); diff != "" {
		t.Errorf("filters (-want +got):\n%s", diff)
	}
	r.awaitReady(t)
	if h := r.Health(); h.SubscriptionsActive != 20 || h.SubscriptionsWanted != 20 {
		t.Errorf("%d of %d subscriptions", h.SubscriptionsActive, h.SubscriptionsWanted)
	}
}

// A resumed session in which this process had its filters granted is not
// subscribed again, and nothing is replayed (V7).
//
// Covers: S1-532
func TestResumedSessionIsNotSubscribedAgain(t *testing.T) {
	r, fb, c := subscribing(t, gobridge.ModePersistent, topics(1, "in/#"), present())
	// The first connect of a process subscribes in any case: the broker's part may be
	// from another config.
	sub := c.ExpectSubscribe()
	if sub.Subscriptions[0].RetainHandling != 1 {
		t.Errorf("retain handling %d, want 1", sub.Subscriptions[0].RetainHandling)
	}
	c.Grant(sub)
	r.awaitReady(t)
	c.Reset()
	c = fb.Accept()
	c.Handshake(present())
	eventually(t, "ready again", func() bool { return r.Health().SessionPresent && r.Health().ServiceLevel == gobridge.LevelFull })
	c.ExpectNothing(50 * time.Millisecond)
	c.Reset()
	c = fb.Accept()
	c.Handshake(nil)
	c.Grant(c.ExpectSubscribe())
	r.awaitReady(t)
}

func TestRefusedFilterIsTheReasonAndIsAskedForAgain(t *testing.T) {
	r, _, c := subscribing(t, gobridge.ModePersistent, topics(1, "in/a", "in/secret"), nil)
	c.Grant(c.ExpectSubscribe(), 1, 0x87)
	eventually(t, "refusal is told", func() bool {
		h := r.Health()
		return h.ServiceLevel == gobridge.LevelConnected && h.SubscriptionsActive == 1 && len(h.Reasons) == 1 &&
			strings.Contains(h.Reasons[0], `"in/secret"`) && strings.Contains(h.Reasons[0], "0x87")
	})
	sub := c.ExpectSubscribe()
	if len(sub.Subscriptions) != 1 || sub.Subscriptions[0].Topic != "in/secret" {
		t.Errorf("asked again for %v", sub.Subscriptions)
	}
	c.Grant(sub)
	r.awaitReady(t)
	if h := r.Health(); h.LastError != "" || len(h.Reasons) != 0 {
		t.Errorf("health: %+v", h)
	}
}

// Covers: S1-522, S1-523, S1-525, S1-526
func TestDowngradedGrant(t *testing.T) {
	t.Run("three times is the broker's rule", func(t *testing.T) {
		r, fb, c := subscribing(t, gobridge.ModePersistent, topics(1, "in/a", "in/b"), nil)
		c.Grant(c.ExpectSubscribe(), 0, 1)
		eventually(t, "downgrade is told", func() bool {
			h := r.Health()
			return h.ServiceLevel == gobridge.LevelConnected && h.SubscriptionsActive == 1 && len(h.Reasons) == 1 &&
				strings.Contains(h.Reasons[0], `"in/a"`) && strings.Contains(h.Reasons[0], "granted QoS 0 instead of 1")
		})
		c.Grant(c.ExpectSubscribe(), 0)
		downgradedTimes(t, r.carried, "in/a", 2)
		c.Reset() // a reconnect does not start the count anew
		c = fb.Accept()
		c.Handshake(present())
		c.Grant(c.ExpectSubscribe(), 0)
		c.ExpectDisconnect()
		c.Close()
		standsStill(t, r, `"in/a"`, "granted QoS 0 instead of 1", "on_qos_downgrade")
		r.wantValue(t, 1, metric.MQTTQoSDowngraded) // one transition
		if n := fb.Connections(); n != 2 {
			t.Errorf("%d connections, want no third before the longest wait", n)
		}
		r.Retry()
		c = fb.Accept()
		c.Handshake(present())
		c.Grant(c.ExpectSubscribe()) // asked again, and granted
		r.awaitReady(t)
		if h := r.Health(); h.LastError != "" || len(h.Reasons) != 0 {
			t.Errorf("health: %+v", h)
		}
	})
	t.Run("another answer starts the count anew", func(t *testing.T) {
		r, fb, c := subscribing(t, gobridge.ModePersistent, topics(2, "in/#"), nil)
		for _, code := range []byte{0, 0, 1} {
			c.Grant(c.ExpectSubscribe(), code)
		}
		c.Grant(c.ExpectSubscribe(), 2)
		r.awaitReady(t)
		r.wantValue(t, 2, metric.MQTTQoSDowngraded)
		if n := fb.Connections(); n != 1 {
			t.Errorf("%d connections, want 1", n)
		}
	})
	t.Run("the count survives the instance", func(t *testing.T) {
		fb, carried := bridgetest.NewFakeBroker(t), newCarried()
		t.Cleanup(fb.CutAll)
		for i := range 3 {
			r := startWith(t, testUse(fb.URL(), gobridge.ModePersistent, topics(1, "in/#")), gobridge.Env{Carried: carried})
			c := fb.Accept()
			c.Handshake(present())
			c.Grant(c.ExpectSubscribe(), 0)
			want := uint64(0)
			if i == 0 {
				want = 1
			}
			if i == 2 {
				c.ExpectDisconnect()
				c.Close()
				standsStill(t, r, "3 times in a row")
			} else {
				downgradedTimes(t, r.carried, "in/#", i+1)
				c.Reset()
			}
			r.stop()
			r.wantValue(t, want, metric.MQTTQoSDowngraded)
		}
	})
	t.Run("may be accepted", func(t *testing.T) {
		r, _, c := subscribing(t, gobridge.ModePersistent, topics(2, "in/#"), nil, func(s *SessionSettings, _ *SenderSettings) {
			s.OnQoSDowngrade = DowngradeAccept
		})
		c.Grant(c.ExpectSubscribe(), 1)
		r.awaitReady(t)
		r.wantValue(t, 1, metric.MQTTQoSDowngraded)
		c.ExpectNothing(50 * time.Millisecond)
	})
}

func downgradedTimes(t *testing.T, c *carried, filter string, times int) {
	t.Helper()
	eventually(t, "downgrade is counted", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.downgrades[filter].times == times
	})
}

// standsStill waits until the session has closed its connection for a permanent cause,
// which its reasons and its last error tell.
func standsStill(t *testing.T, r *running, texts ...string) {
	t.Helper()
	eventually(t, "session stands still", func() bool {
		h := r.Health()
		if h.Connected || h.ServiceLevel != gobridge.LevelNone || len(h.Reasons) != 1 {
			return false
		}
		for _, text := range texts {
			if !strings.Contains(h.Reasons[0], text) || !strings.Contains(h.LastError, text) {
				return false
			}
		}
		return true
	})
}

func TestFilterThatTheBrokerCannotServeIsNotSent(t *testing.T) {
	connack := &packets.Connack{Properties: &packets.Properties{WildcardSubAvailable: new(byte(0))}}
	r, _, c := subscribing(t, gobridge.ModePersistent, topics(1, "in/#", "in2"), connack)
	sub := c.ExpectSubscribe()
	if len(sub.Subscriptions) != 1 || sub.Subscriptions[0].Topic != "in2" {
		t.Errorf("asked for %v", sub.Subscriptions)
	}
	c.Grant(sub)
	eventually(t, "told", func() bool {
		h := r.Health()
		return len(h.Reasons) == 1 && strings.Contains(h.Reasons[0], "wildcard")
	})
}

func TestSubscribeWithoutAnAnswerIsAskedAgain(t *testing.T) {
	r, _, c := subscribing(t, gobridge.ModePersistent, topics(1, "in/#"), nil, func(s *SessionSettings, _ *SenderSettings) {
		s.ReconcileTimeout = 100 * time.Millisecond
	})
	first := c.ExpectSubscribe()
	second := c.ExpectSubscribe()
	if first.PacketID == second.PacketID || first.PacketID < firstRequestID {
		t.Errorf("packet identifiers %d and %d", first.PacketID, second.PacketID)
	}
	c.Grant(first) // late: it is nobody's answer any more
	c.Grant(second)
	r.awaitReady(t)
}

// What the broker sends before its SUBACK is dispatched already.
//
// Covers: S1-609
func TestBacklogArrivesBeforeTheSuback(t *testing.T) {
	r, _, c := subscribing(t, gobridge.ModePersistent, topics(1, "in/#"), present())
	to, _ := r.receive(t)
	sub := c.ExpectSubscribe()
	c.Send(again(publish(1, 1, "a")), publish(2, 1, "b"))
	for _, d := range to.wait(t, 2) {
		d.Ack()
	}
	r.Receiver().Flush()
	expectPuback(t, c, 1, 2)
	c.Grant(sub)
	r.awaitReady(t)
}
