package mqtt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
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

// Tests of promises in docs/conformance.md that belong to no other file.

// logLines keeps what is logged.
type logLines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// with returns the lines that hold every one of the texts.
func (l *logLines) with(texts ...string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []string
	for line := range strings.Lines(l.buf.String()) {
		if !slices.ContainsFunc(texts, func(s string) bool { return !strings.Contains(line, s) }) {
			found = append(found, line)
		}
	}
	return found
}

// logged lets the receiving side of the session log into the result.
func logged(r *running) *logLines {
	l := &logLines{}
	r.in.mu.Lock()
	defer r.in.mu.Unlock()
	r.in.log = slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
	return l
}

// Covers: S1-206, S1-215
func TestEachKindOfPoisonIsLoggedOnce(t *testing.T) {
	r, _, c := receiving(t, gobridge.ModePersistent, func(s *SessionSettings, _ *SenderSettings) { s.MaxPayloadBytes = 1024 })
	log := logged(r)
	r.receive(t)
	many := publish(3, 1, "properties")
	for range 700 {
		many.Properties.User = append(many.Properties.User, packets.User{Key: "k"})
	}
	second := *many
	second.PacketID = 4
	c.Send(publish(1, 1, strings.Repeat("x", 1025)), publish(2, 1, strings.Repeat("y", 1025)), many, &second)
	expectPuback(t, c, 1, 2, 3, 4)
	for class, want := range map[string]int{"payload_size": 1, "user_properties": 1} {
		if got := log.with("level=ERROR", "class="+class); len(got) != want {
			t.Errorf("%d error lines of class %s, want %d: %q", len(got), class, want, got)
		}
	}
	if got := log.with("level=DEBUG", "count=700"); len(got) != 2 {
		t.Errorf("%d debug lines with the number that was sent, want 2: %q", len(got), got)
	}
}

// Covers: S1-605
func TestDroppedQoS0NamesTheBound(t *testing.T) {
	r, _, c := receiving(t, gobridge.ModePersistent, window(1))
	log := logged(r)
	c.Send(publish(0, 0, "kept"), publish(0, 0, "dropped"))
	eventually(t, "the log names the budget", func() bool { return len(log.with("level=WARN", "receive_maximum")) == 1 })
	r.wantValue(t, 1, metric.MQTTRouterDropped)
}

// Before a receiver runs, 64 MiB of QoS 0 may wait. QoS 1 takes room from it.
//
// Covers: S1-605, S1-610, S1-611
func TestPendingQoS0IsBoundedInBytes(t *testing.T) {
	r, _, c := receiving(t, gobridge.ModePersistent)
	log := logged(r)
	body := strings.Repeat("x", 100<<10)
	r.in.mu.Lock()
	r.in.bytes = PendingBytesLimit - 450<<10 // as if the rest waited already: four of the bodies fit
	r.in.mu.Unlock()
	for i := range 5 {
		c.Send(publish(0, 0, fmt.Sprint(i)+body))
	}
	eventually(t, "the log names the ceiling", func() bool { return len(log.with("level=WARN", "pending byte ceiling")) == 1 })
	r.wantValue(t, 1, metric.MQTTRouterDropped)
	c.Send(publish(1, 1, "protected"+body), publish(2, 1, "protected too"+body))
	eventually(t, "the two oldest have given way", func() bool {
		return r.value(metric.MQTTRouterDropped) == 3 && r.Health().UnsettledCount == 2
	})
	to, _ := r.receive(t)
	var got []string
	for _, p := range payloads(to.wait(t, 4)) {
		got = append(got, strings.TrimRight(p, "x"))
	}
	if diff := cmp.Diff([]string{"2", "3", "protected", "protected too"}, got); diff != "" {
		t.Errorf("dispatched (-want +got):\n%s", diff)
	}
	r.wantValue(t, 0, metric.MQTTRouterOverflowDropped)
}

// Covers: S1-501, S1-503, S1-504, S1-505
func TestShorterTimeoutDecides(t *testing.T) {
	for _, tt := range []struct{ route, sender, want time.Duration }{
		{30 * time.Second, 0, 30 * time.Second},
		{30 * time.Second, 5 * time.Second, 5 * time.Second},
		{30 * time.Second, time.Hour, 30 * time.Second},
		{0, 5 * time.Second, 5 * time.Second},
		{2 * time.Hour, 0, 2 * time.Hour}, // the safety net does not shorten
		{0, 0, time.Minute},
	} {
		got := time.Duration(timeoutOf(&gobridge.Outbound{Timeout: tt.route}, &sender{timeout: tt.sender}))
		if got != tt.want {
			t.Errorf("route %s, sender %s: %s, want %s", tt.route, tt.sender, got, tt.want)
		}
	}
}

// What a process has not seen confirmed ends with it, whatever the broker kept of
// its session.
//
// Covers: S1-102, S2-504
func TestOpenPublishesEndWithTheProcess(t *testing.T) {
	fb := bridgetest.NewFakeBroker(t)
	use := func() *gobridge.SessionUse { return testUse(fb.URL(), gobridge.ModePersistent, nil) }
	first := startSession(t, use())
	c := fb.Accept()
	c.Handshake(nil)
	first.awaitAvailable(t)
	o := newOutcomes()
	first.send(t, o, 1, "open")
	c.ExpectPublish()
	c.Reset()
	first.stop()
	if err := o.err("open"); err == nil {
		t.Error("the open publish was reported as confirmed")
	}

	second := startSession(t, use())
	t.Cleanup(fb.CutAll)
	c = fb.Accept()
	if p := c.Handshake(present()); p.ClientID != "client" || p.CleanStart {
		t.Errorf("CONNECT %s", p)
	}
	second.awaitAvailable(t)
	c.ExpectNothing(50 * time.Millisecond)
}

// Covers: S2-105, S2-108, S2-112
func TestRefusedDeliveryIsCountedByWhatBecomesOfIt(t *testing.T) {
	for _, tt := range []struct {
		qos     byte
		outcome string
		warning string
	}{
		{0, metric.EmitLost, "it is lost"},
		{1, metric.EmitRecovering, "asked to send it again"},
	} {
		t.Run(tt.outcome, func(t *testing.T) {
			r, _, c := receiving(t, gobridge.ModePersistent)
			log := logged(r)
			to := newRoute()
			to.refuse = errors.New("no")
			r.receiveInto(t, to)
			c.Send(publish(uint16(tt.qos), tt.qos, "refused"))
			eventually(t, "it is warned of", func() bool { return len(log.with("level=WARN", tt.warning)) == 1 })
			if tt.qos > 0 {
				c.ExpectDisconnect()
				c.Close()
			} else {
				c.Send(publish(0, 0, "taken"))
				if got := payloads(to.wait(t, 1)); !slices.Equal(got, []string{"taken"}) {
					t.Errorf("dispatched %v", got)
				}
			}
			for _, outcome := range []string{metric.EmitLost, metric.EmitRecovering} {
				want := map[bool]uint64{true: 1}[outcome == tt.outcome]
				r.wantValue(t, want, metric.MQTTReceiverEmitRejected, outcome)
			}
		})
	}
}

// The gate admits one at a time, and whoever is not wanted any more leaves the queue.
//
// Covers: S2-311, S2-313
func TestGateKeepsOthersOutAndLetsCancelledCallersGo(t *testing.T) {
	fb := bridgetest.NewFakeBroker(t)
	r := startSession(t, testUse(fb.URL(), gobridge.ModePersistent, topics(1, "in/#")))
	t.Cleanup(fb.CutAll)
	c := fb.Accept()
	if err := r.gate.acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.Handshake(nil)
	c.ExpectNothing(50 * time.Millisecond) // the reconcile waits
	ctx, cancel := context.WithCancelCause(t.Context())
	left := make(chan error, 1)
	go func() { left <- r.gate.acquire(ctx) }()
	reason := errors.New("not wanted any more")
	cancel(reason)
	select {
	case err := <-left:
		if !errors.Is(err, reason) {
			t.Errorf("left with %v", err)
		}
	case <-time.After(testWait):
		t.Fatal("a cancelled caller waits for the gate")
	}
	r.gate.release()
	c.Grant(c.ExpectSubscribe())
	r.awaitReady(t)
}

// Covers: S2-310, S2-315
func TestTimesOfARecoveryFollowFromOtherSettings(t *testing.T) {
	r := startSession(t, testUse("tcp://127.0.0.1:1", gobridge.ModePersistent, topics(1, "in/#"), func(s *SessionSettings, _ *SenderSettings) {
		s.ConnectTimeout, s.ReconcileTimeout, s.UnmatchedGrace = 3*time.Second, 5*time.Second, new(7*time.Second)
	}))
	if got, want := r.bound, (2*3+6*5+2*7)*time.Second; got != want {
		t.Errorf("recovery bound %s, want %s", got, want)
	}
	if r.spacing != 30*time.Second {
		t.Errorf("spacing %s, want 30s", r.spacing)
	}
}

// Covers: S2-401, S2-403, S2-404, S2-405, S2-408
func TestGaugesFollowTheUnsettledPackets(t *testing.T) {
	r, fb, c := receiving(t, gobridge.ModePersistent, window(4))
	gauge := func(d *metric.Desc) (value float64) {
		r.metrics.Each(func(s *metric.Series) {
			if s.Desc == d {
				value, _ = s.Value()
			}
		})
		return value
	}
	to, _ := r.receive(t)
	c.Send(publish(0, 0, "not counted"), publish(1, 1, "a"), publish(2, 2, "b"), publish(3, 1, "c"))
	got := to.wait(t, 4)
	time.Sleep(20 * time.Millisecond)
	if n := gauge(metric.MQTTUnsettled); n != 3 {
		t.Errorf("MQTTUnsettled = %v, want 3", n)
	}
	if age := gauge(metric.MQTTOldestUnsettledAge); age < 0.02 || age > testWait.Seconds() {
		t.Errorf("MQTTOldestUnsettledAge = %v, want seconds since the first", age)
	}
	if use := gauge(metric.MQTTReceiveWindowUtilization); use != 0.75 {
		t.Errorf("MQTTReceiveWindowUtilization = %v, want 3 of 4", use)
	}
	got[1].Ack()
	got[2].Ack()
	r.Receiver().Flush()
	if n := gauge(metric.MQTTUnsettled); n != 1 {
		t.Errorf("MQTTUnsettled = %v after two settlements, want 1", n)
	}
	c.Reset() // the epoch ends, and the broker has forgotten the third
	c = fb.Accept()
	c.Handshake(nil)
	c.Grant(c.ExpectSubscribe())
	r.awaitReady(t)
	for _, d := range []*metric.Desc{metric.MQTTUnsettled, metric.MQTTOldestUnsettledAge, metric.MQTTReceiveWindowUtilization} {
		if v := gauge(d); v != 0 {
			t.Errorf("%s = %v after the session was lost, want 0", d.Name, v)
		}
		if diff := cmp.Diff([]string{"session_id"}, d.Labels); diff != "" {
			t.Errorf("%s: labels (-want +got):\n%s", d.Name, diff)
		}
	}
	if diff := cmp.Diff([]string{"session_id"}, metric.MQTTSessionRecoveryRecycle.Labels); diff != "" {
		t.Errorf("MQTTSessionRecoveryRecycle: labels (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"session_id", "outcome"}, metric.MQTTReceiverEmitRejected.Labels); diff != "" {
		t.Errorf("MQTTReceiverEmitRejected: labels (-want +got):\n%s", diff)
	}
}

// Covers: S1-334
func TestQoS0BesideQoS1DoesNotPermitAnEphemeralSession(t *testing.T) {
	mixed := []gobridge.TopicSpec{{Topic: "a", QoS: new(0)}, {Topic: "b", QoS: new(1)}}
	s := twoBrokers()
	s.Routes[0].Receiver.Topics = mixed
	if faults, _ := problemsOf(s); faults != nil || s.Sessions[0].Mode != gobridge.ModePersistent {
		t.Errorf("mode %s, faults %q; want persistent", s.Sessions[0].Mode, faults)
	}
	s = twoBrokers()
	s.Routes[0].Receiver.Topics = mixed
	s.Sessions[0].Mode = gobridge.ModeEphemeral
	if faults, _ := problemsOf(s); len(faults) != 1 || !strings.Contains(faults[0], `QoS 1 or 2 messages of "b"`) {
		t.Errorf("faults %q, want one about b", faults)
	}
}
