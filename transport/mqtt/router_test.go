package mqtt

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/google/go-cmp/cmp"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/metric"
)

func window(n int) func(*SessionSettings, *SenderSettings) {
	return func(s *SessionSettings, _ *SenderSettings) { s.ReceiveMaximum = n }
}

// Covers: S1-602, S1-604, S1-606, S1-609
func TestQoS0GivesWayToQoS1WhenTheBudgetIsSpent(t *testing.T) {
	r, _, c := receiving(t, gobridge.ModePersistent, window(4))
	// No receiver runs: everything is pending.
	c.Send(publish(0, 0, "z1"), publish(0, 0, "z2"), publish(1, 1, "a"), publish(0, 0, "z3"), publish(0, 0, "dropped"))
	c.Send(publish(2, 1, "b"), publish(3, 1, "c"))
	eventually(t, "all arrived", func() bool { return r.Health().UnsettledCount == 3 })
	to, _ := r.receive(t)
	if diff := cmp.Diff([]string{"a", "z3", "b", "c"}, payloads(to.wait(t, 4))); diff != "" {
		t.Errorf("dispatched (-want +got):\n%s", diff)
	}
	r.wantValue(t, 3, metric.MQTTRouterDropped) // dropped, z1 and z2
	r.wantValue(t, 6, metric.MQTTRouterBuffered)
	r.wantValue(t, 0, metric.MQTTReceiveWindowExceeded)
}

// Covers: S1-602, S1-604, S1-707
func TestQoS0IsShedWhileTheRouteIsFull(t *testing.T) {
	r, _, c := receiving(t, gobridge.ModePersistent, window(4))
	to := newRoute()
	to.room = 1
	r.receiveInto(t, to)
	c.Send(publish(1, 1, "a"))
	to.wait(t, 1)
	for i := range 10 {
		c.Send(publish(0, 0, fmt.Sprint(i)))
	}
	c.Send(publish(2, 1, "b"))
	eventually(t, "all arrived", func() bool { return r.Health().UnsettledCount == 2 })
	if dropped := r.value(metric.MQTTRouterDropped); dropped != 7 {
		t.Errorf("MQTTRouterDropped = %d, want 7", dropped)
	}
	to.mu.Lock()
	to.room = -1
	to.mu.Unlock()
	r.Receiver().Resume()
	got := to.wait(t, 5)
	if got := payloads(got); got[len(got)-1] != "b" {
		t.Errorf("dispatched %v", got)
	}
}

// A burst larger than the admission budget must not shed what the route has room
// for.
func TestBurstOfQoS0ReachesAnOpenRoute(t *testing.T) {
	r, _, c := receiving(t, gobridge.ModePersistent)
	to, _ := r.receive(t)
	var burst []packets.Packet
	for i := range 2000 {
		burst = append(burst, publish(0, 0, fmt.Sprint(i)))
	}
	c.Send(burst...)
	got := to.wait(t, 2000)
	for i, d := range got {
		if string(d.Envelope.Payload) != fmt.Sprint(i) {
			t.Fatalf("message %d is %s", i, d.Envelope.Payload)
		}
	}
	r.wantValue(t, 0, metric.MQTTRouterDropped)
}

func TestUnmatchedMessageIsDroppedAfterTheGrace(t *testing.T) {
	r, _, c := receiving(t, gobridge.ModePersistent)
	to, _ := r.receive(t)
	other, system := publish(1, 1, "other"), publish(2, 2, "system")
	other.Topic, system.Topic = "old/a", "$SYS/in/a"
	zero := publish(0, 0, "zero")
	zero.Topic = "old/a"
	began := time.Now()
	c.Send(other, system, zero, publish(3, 1, "matched"))
	to.wait(t, 1)[0].Ack()
	r.Receiver().Flush()
	expectPuback(t, c, 1)
	if waited := time.Since(began); waited < 100*time.Millisecond {
		t.Errorf("dropped after %s, before the grace of 100ms", waited)
	}
	c.Expect(packets.PUBREC)
	expectPuback(t, c, 3)
	r.wantValue(t, 3, metric.MQTTRouterUnmatchedDropped)
	if got := payloads(to.wait(t, 1)); len(got) != 1 {
		t.Errorf("dispatched %v", got)
	}
}

func TestTopicsThatStartWithDollarNeedAFilterThatDoes(t *testing.T) {
	in := &inbound{}
	tests := []struct {
		filters []string
		topic   string
		want    bool
	}{
		{[]string{"#"}, "a/b", true},
		{[]string{"#"}, "$SYS/a", false},
		{[]string{"+/a"}, "$SYS/a", false},
		{[]string{"x", "$SYS/#"}, "$SYS/a", true},
		{[]string{"a/+"}, "a/b", true},
		{[]string{"a/+"}, "a/b/c", false},
		{nil, "a", false},
	}
	for _, tt := range tests {
		in.filters = tt.filters
		if got := in.matches(tt.topic); got != tt.want {
			t.Errorf("%v matches %q: %v, want %v", tt.filters, tt.topic, got, tt.want)
		}
	}
}

// smallBudget leaves room for about three deliveries of 100 KiB before the reader
// pauses.
func smallBudget(r *running) {
	r.in.mu.Lock()
	defer r.in.mu.Unlock()
	r.in.budget = 350 << 10
}

// A broker that ignores the receive maximum is served as long as the byte budget
// has room; then the reader pauses, which is no dead connection (V1).
//
// Covers: S1-607, S1-608, S1-612
func TestReaderPausesWhenTheByteBudgetIsSpent(t *testing.T) {
	t.Parallel()
	r, fb, c := receiving(t, gobridge.ModePersistent, window(2), func(s *SessionSettings, _ *SenderSettings) {
		s.KeepAlive = new(gobridge.Seconds(1))
	})
	smallBudget(r)
	to, _ := r.receive(t)
	body := strings.Repeat("x", 100<<10)
	for id := range uint16(10) {
		c.Send(publish(id+1, 1, body))
	}
	got := to.wait(t, 3)
	eventually(t, "reader pauses", func() bool { return r.Health().State == "paused" })
	if h := r.Health(); h.ServiceLevel == gobridge.LevelFull || len(h.Reasons) == 0 || h.ReceiveWindowUtilization != 1.5 {
		t.Errorf("health while paused: %+v", h)
	}
	time.Sleep(2500 * time.Millisecond) // longer than the link may be silent
	for n := 3; ; {
		for _, d := range got[:n] {
			d.Ack()
		}
		r.Receiver().Flush()
		if n == 10 {
			break
		}
		n++
		got = to.wait(t, n)
	}
	for id := range uint16(10) {
		expectPuback(t, c, id+1)
	}
	if n := fb.Connections(); n != 1 {
		t.Errorf("%d connections, want 1: the pause was taken for a dead link", n)
	}
	if n := r.value(metric.MQTTReceiveWindowExceeded); n == 0 {
		t.Error("MQTTReceiveWindowExceeded = 0")
	}
	r.wantValue(t, 0, metric.MQTTRouterOverflowDropped)
}

// Before any receiver exists nothing can make room: only then QoS 1 is
// acknowledged and dropped.
//
// Covers: S1-613, S1-614
func TestOverflowBeforeAReceiverRunsIsDropped(t *testing.T) {
	r, _, c := receiving(t, gobridge.ModePersistent)
	smallBudget(r)
	body := strings.Repeat("x", 100<<10)
	for id := range uint16(5) {
		c.Send(publish(id+1, 1, body))
	}
	eventually(t, "two are dropped", func() bool { return r.value(metric.MQTTRouterOverflowDropped) == 2 })
	to, _ := r.receive(t)
	for _, d := range to.wait(t, 3) {
		d.Ack()
	}
	r.Receiver().Flush()
	expectPuback(t, c, 1, 2, 3, 4, 5)
}

func TestQueuedMessagesOutliveALostConnection(t *testing.T) {
	r, fb, c := receiving(t, gobridge.ModePersistent)
	c.Send(publish(1, 1, "a"), publish(0, 0, "zero"), publish(2, 1, "b"))
	eventually(t, "all arrived", func() bool { return r.value(metric.MQTTRouterBuffered) == 3 })
	c.Reset()
	c = fb.Accept()
	c.Handshake(nil) // the broker has forgotten them
	c.Grant(c.ExpectSubscribe())
	to, _ := r.receive(t)
	if diff := cmp.Diff([]string{"a", "zero", "b"}, payloads(to.wait(t, 3))); diff != "" {
		t.Errorf("dispatched (-want +got):\n%s", diff)
	}
}

func TestSessionEndPurgesWhatNoRouteTook(t *testing.T) {
	r, fb, c := receiving(t, gobridge.ModePersistent)
	c.Send(publish(1, 1, "a"), publish(0, 0, "zero"))
	eventually(t, "all arrived", func() bool { return r.value(metric.MQTTRouterBuffered) == 2 })
	fb.CutAll()
	r.stop()
	r.wantValue(t, 2, metric.MQTTRouterStalePurged)
}
