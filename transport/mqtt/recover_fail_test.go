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

// Whichever instance finds that the broker has lost the session tells it, once.
func TestLossIsToldOnceAcrossInstances(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		// first is what the connect that ends the recovery of the first instance finds,
		// second what the second instance finds.
		first, second *packets.Connack
	}{
		{"the first one finds it, the second one an empty session", nil, present()},
		{"both find nothing", nil, nil},
		{"the second one finds it", present(), nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := newFakeHistory()
			env := gobridge.Env{Carried: newCarried(), Metrics: metric.NewRegistry(), History: h}
			r, fb, c := subscribed(t, env)
			to, _ := r.receive(t)
			c.Send(publish(1, 1, "a"))
			d := to.wait(t, 1)[0]
			if tt.first != nil { // then its reconcile fails
				r.managed.entries = nil
				h.fail()
			}
			if err := d.Retry(0, nil); err != nil {
				t.Fatalf("Retry: %v", err)
			}
			leaves(c)
			c = fb.Accept()
			c.Handshake(tt.first)
			leaves(c)
			r.wantDead(t, "settlement recovery")
			h.repair()

			next := startRecovering(t, testUse(fb.URL(), gobridge.ModePersistent, topics(2, "in/#")), env)
			c = fb.Accept()
			c.Handshake(tt.second)
			c.Grant(c.ExpectSubscribe())
			next.awaitReady(t)
			next.wantValue(t, 1, metric.MQTTSessionResumeLost)
			const lost = "WARN broker no longer had the session"
			if n := r.messages.count(lost) + next.messages.count(lost); n != 1 {
				t.Errorf("%d warnings of the loss, want 1", n)
			}
		})
	}
}

// Each fault ends the instance once, with the barrier begun once at most.
//
// Covers: S2-306, S2-307, S2-314, S2-317, S2-319, S2-320, S2-321, S2-322, S2-323, S2-324, S2-327, S2-406, S2-311
func TestFailedRecovery(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		why      string
		before   func(*recovering) // the start
		change   func(*recovering)
		recycles uint64
		drains   int64
		// play is the broker's part from the Retry on.
		play func(t *testing.T, r *recovering, fb *bridgetest.FakeBroker, c *bridgetest.FakeConn)
	}{
		{
			name: "the gate is not free in time", why: "queued: not done within the recovery bound", drains: 1,
			before: impatient,
			change: func(r *recovering) { _ = r.gate.acquire(context.Background()) },
			play: func(_ *testing.T, _ *recovering, _ *bridgetest.FakeBroker, c *bridgetest.FakeConn) {
				leaves(c)
			},
		},
		{
			name: "the route does not get empty", why: "draining: waiting for what the route holds: not done within", recycles: 1, drains: 1,
			before: impatient,
			change: holdDrain,
			play: func(_ *testing.T, _ *recovering, _ *bridgetest.FakeBroker, c *bridgetest.FakeConn) {
				leaves(c)
			},
		},
		{
			name: "the session is lost while it drains", why: "draining: broker no longer had", recycles: 1, drains: 1,
			change: holdDrain,
			play: func(t *testing.T, r *recovering, fb *bridgetest.FakeBroker, c *bridgetest.FakeConn) {
				eventually(t, "it drains", func() bool { return r.drains.Load() == 1 })
				c.Reset()
				c = fb.Accept()
				c.Handshake(nil)
				c.ExpectNothing(50 * time.Millisecond) // the barrier stands
				close(r.hold)
				leaves(c)
			},
		},
		{
			name: "the session is lost by the reconnect", why: "connecting: broker no longer had", recycles: 1, drains: 1,
			play: func(_ *testing.T, _ *recovering, fb *bridgetest.FakeBroker, c *bridgetest.FakeConn) {
				leaves(c)
				c = fb.Accept()
				c.Handshake(nil)
				leaves(c)
			},
		},
		{
			name: "no CONNACK comes", why: "connecting: not done within the recovery bound", recycles: 1, drains: 1,
			before: impatient,
			play: func(_ *testing.T, _ *recovering, _ *bridgetest.FakeBroker, c *bridgetest.FakeConn) {
				leaves(c)
			},
		},
		{
			name: "the connection is lost before its reconcile", why: "resuming: connection lost", recycles: 1, drains: 1,
			change: askAgain,
			play: func(_ *testing.T, _ *recovering, fb *bridgetest.FakeBroker, c *bridgetest.FakeConn) {
				leaves(c)
				c = fb.Accept()
				c.Handshake(present())
				c.ExpectSubscribe()
				c.Reset()
			},
		},
		{
			name: "its reconcile fails", why: "resuming: subscription", recycles: 1, drains: 1,
			change: askAgain,
			play: func(_ *testing.T, _ *recovering, fb *bridgetest.FakeBroker, c *bridgetest.FakeConn) {
				leaves(c)
				c = fb.Accept()
				c.Handshake(present())
				c.Grant(c.ExpectSubscribe(), packets.SubackNotauthorized)
				leaves(c)
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, fb, c := subscribed(t, gobridge.Env{}, func(r *recovering) {
				if tt.before != nil {
					tt.before(r)
				}
			})
			to, _ := r.receive(t)
			c.Send(publish(1, 1, "a"), publish(2, 1, "b"))
			got := to.wait(t, 2)
			if tt.change != nil {
				tt.change(r)
			}
			if err := got[0].Retry(0, nil); err != nil {
				t.Fatalf("Retry: %v", err)
			}
			tt.play(t, r, fb, c)
			r.wantDead(t, tt.why)
			r.wantValue(t, tt.recycles, metric.MQTTSessionRecoveryRecycle)
			if n := r.drains.Load(); n != tt.drains {
				t.Errorf("%d drains, want %d", n, tt.drains)
			}
			if err := got[1].Retry(0, nil); !errors.Is(err, gobridge.ErrSessionUnrecoverable) {
				t.Errorf("Retry on a dead instance: %v", err)
			}
			if err := r.Sender("out").Send(newOutcomes().message("m", 1)); !errors.Is(err, gobridge.ErrClosed) {
				t.Errorf("Send on a dead instance: %v", err)
			}
		})
	}
}

// askAgain makes the next reconcile send a SUBSCRIBE.
func askAgain(r *recovering) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forgetGrants()
}

// A permanent cause that shows in the reconcile of the recovery itself ends the
// instance, and the next one keeps its distance for it.
//
// Covers: S2-321, S2-406
func TestPermanentCauseWithinARecovery(t *testing.T) {
	h := newFakeHistory()
	env := gobridge.Env{Carried: newCarried(), History: h}
	r, fb, c := subscribed(t, env)
	to, _ := r.receive(t)
	c.Send(publish(1, 1, "given back"), publish(2, 1, "settled late"))
	got := to.wait(t, 2)
	c.WithholdClose(true)
	if err := got[0].Retry(0, nil); err != nil {
		t.Fatalf("Retry: %v", err)
	}
	c.ExpectDisconnect()
	h.erase() // whoever did it: the baseline is unknown from now on
	r.mu.Lock()
	r.reload = true
	r.mu.Unlock()
	c.Close()
	c = fb.Accept()
	c.Handshake(present())
	c.Send(again(publish(1, 1, "given back")), again(publish(2, 1, "settled late")))
	got[1].Ack()
	r.Receiver().Flush()
	c.ExpectDisconnect() // and no acknowledgement before it
	c.Close()
	r.wantDead(t, "resuming")
	if n := len(to.taken()); n != 2 {
		t.Errorf("%d dispatched, want the 2 of the first connection", n)
	}
	const cause = "managed subscription history does not know"
	if got := r.carried.cause(); !strings.Contains(got, cause) {
		t.Errorf("the next instance is told %q, want %q", got, cause)
	}
	next := startRecovering(t, testUse(fb.URL(), gobridge.ModePersistent, topics(2, "in/#")), env)
	if reasons := next.Health().Reasons; len(reasons) == 0 || !strings.Contains(reasons[0], cause) {
		t.Errorf("readiness says %q, want %q", reasons, cause)
	}
	time.Sleep(50 * time.Millisecond)
	if n := fb.Connections(); n != 2 {
		t.Errorf("%d connections, want 2: the next instance waits", n)
	}
}

// Whatever ends the connection for good makes a recovery that waits for its turn moot:
// the next connection brings what was given back, if anything does.
func TestQueuedRecoveryIsForgone(t *testing.T) {
	t.Parallel()
	queued := func(t *testing.T, env gobridge.Env) (*recovering, *bridgetest.FakeBroker, *bridgetest.FakeConn, *route) {
		t.Helper()
		r, fb, c := subscribed(t, env, queuedOnly)
		to, _ := r.receive(t)
		c.Send(publish(1, 1, "given back"))
		if err := to.wait(t, 1)[0].Retry(0, nil); err != nil {
			t.Fatalf("Retry: %v", err)
		}
		if phase := r.recovery.phase(); phase != recoveryQueued {
			t.Fatalf("recovery is %s", phase)
		}
		return r, fb, c, to
	}
	t.Run("by the end of the session", func(t *testing.T) {
		r, fb, c, _ := queued(t, gobridge.Env{})
		done := make(chan error, 1)
		go func() { done <- r.End(t.Context()) }()
		leaves(c)
		if err := <-done; err != nil {
			t.Fatalf("End: %v", err)
		}
		if phase := r.recovery.phase(); phase != recoveryIdle {
			t.Errorf("recovery is %s", phase)
		}
		r.Retry()
		c = fb.Accept()
		c.Handshake(nil) // which would be the death of a recovery
		c.Grant(c.ExpectSubscribe())
		r.awaitReady(t)
		r.wantValue(t, 0, metric.MQTTSessionResumeLost)
	})
	t.Run("by a discard", func(t *testing.T) {
		h := newFakeHistory()
		r, fb, c, _ := queued(t, gobridge.Env{History: h})
		h.put(discardNote)
		r.Retry()
		leaves(c)
		c = fb.Accept()
		c.Handshake(present())
		leaves(c)
		c = fb.Accept()
		if connect := c.Handshake(nil); !connect.CleanStart {
			t.Error("the session is not thrown away")
		}
		c.Grant(c.ExpectSubscribe())
		r.awaitReady(t)
		r.wantValue(t, 0, metric.MQTTSessionResumeLost)
	})
	t.Run("by a permanent cause", func(t *testing.T) {
		h := newFakeHistory()
		r, fb, c, to := queued(t, gobridge.Env{History: h})
		h.erase()
		r.Retry()
		leaves(c)
		c = fb.Accept()
		c.Handshake(present())
		leaves(c)
		eventually(t, "it stands still", func() bool { return !r.Health().Connected })
		if phase := r.recovery.phase(); phase != recoveryIdle {
			t.Errorf("recovery is %s", phase)
		}
		h.put("in/#")
		r.Retry()
		c = fb.Accept()
		c.Handshake(present())
		c.Send(again(publish(1, 1, "given back")))
		r.awaitReady(t)
		to.wait(t, 2)
	})
}

// A dead instance waits for nothing that its death made pointless.
func TestDeadInstanceEndsPromptly(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		// play leads to the state in which the instance dies.
		play func(t *testing.T, r *recovering, fb *bridgetest.FakeBroker, c *bridgetest.FakeConn)
	}{
		{"while it waits to connect", func(t *testing.T, r *recovering, _ *bridgetest.FakeBroker, c *bridgetest.FakeConn) {
			r.carried.setCause("a permanent cause")
			r.backoff.refused()
			c.Reset()
			eventually(t, "it waits", func() bool { return !r.Health().Connected })
		}},
		{"while it connects", func(_ *testing.T, _ *recovering, fb *bridgetest.FakeBroker, c *bridgetest.FakeConn) {
			c.Reset()
			fb.Accept().ExpectConnect()
		}},
		{"between two tries of a reconcile", func(t *testing.T, r *recovering, fb *bridgetest.FakeBroker, c *bridgetest.FakeConn) {
			askAgain(r)
			c.Reset()
			c = fb.Accept()
			c.Handshake(present())
			c.Grant(c.ExpectSubscribe(), packets.SubackNotauthorized)
			eventually(t, "the answer is noted", func() bool { return strings.Contains(r.Health().LastError, "subscription") })
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fb := bridgetest.NewFakeBroker(t)
			slow := func(s *SessionSettings, _ *SenderSettings) {
				s.ReconnectDelay, s.ReconnectMaxDelay = time.Hour, time.Hour
			}
			r := startRecovering(t, testUse(fb.URL(), gobridge.ModePersistent, topics(2, "in/#"), slow), gobridge.Env{}, queuedOnly)
			c := fb.Accept()
			c.Handshake(nil)
			c.Grant(c.ExpectSubscribe())
			r.awaitReady(t)
			to, _ := r.receive(t)
			c.Send(publish(1, 1, "a"))
			if err := to.wait(t, 1)[0].Retry(0, nil); err != nil {
				t.Fatalf("Retry: %v", err)
			}
			r.backoff.skip()
			tt.play(t, r, fb, c)
			r.recovery.event(recoverCancel, 0, errors.New("test"))
			began := time.Now()
			r.wantDead(t, "queued: test")
			if took := time.Since(began); took > closeWait+5*time.Second {
				t.Errorf("Run returned after %s", took)
			}
		})
	}
}
