package mqtt

import (
	"bytes"
	"fmt"
	"log/slog"
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

// Covers: S1-811
func TestOnlyTheFirstTakeoverIsAnError(t *testing.T) {
	at := time.Now()
	for _, c := range []struct {
		owned bool
		want  []string
	}{
		{false, []string{"ERROR 1", "WARN 1", "", "", "WARN 3", ""}},
		{true, []string{"WARN 1", "", "", "", "WARN 4", ""}},
	} {
		var log takeoverLog
		var got []string
		for _, after := range []time.Duration{0, time.Second, 2 * time.Second, 3 * time.Second, repeatEvery + 2*time.Second, repeatEvery + 3*time.Second} {
			line := ""
			if level, times, ok := log.next(c.owned, at.Add(after)); ok {
				line = fmt.Sprint(level, " ", times)
			}
			got = append(got, line)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("under a lease %t (-want +got):\n%s", c.owned, diff)
		}
	}
}

// The log of a session that is used by another instance too names the cause: members
// of a $share group with one client id. What was told outlives the instance.
//
// Covers: S1-811, S1-812
func TestTakeoverOfAShareMemberNamesTheReusedClientID(t *testing.T) {
	t.Parallel()
	carry, log := newCarried(), &logText{}
	for range 2 {
		fb := bridgetest.NewFakeBroker(t)
		use := testUse(fb.URL(), gobridge.ModePersistent, topics(1, "$share/g/a/#"), func(s *SessionSettings, _ *SenderSettings) {
			s.ReconnectMaxDelay = 100 * time.Millisecond
		})
		r := startWith(t, use, gobridge.Env{Logger: slog.New(slog.NewTextHandler(log, nil)), Carried: carry})
		c := fb.Accept()
		c.Handshake(nil)
		c.Disconnect(packets.DisconnectSessionTakenOver)
		eventually(t, "the takeover is counted", func() bool {
			return r.value(metric.MQTTSessionTakeover, metric.TakeoverReported) == 1
		})
		r.stop()
	}
	var got []string
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "took the session over") {
			level, _, _ := strings.Cut(line[strings.Index(line, "level="):], " ")
			got = append(got, level)
			if !strings.Contains(line, "client_id=client") || !strings.Contains(line, "client_id_suffix: hostname") {
				t.Errorf("line %q", line)
			}
		}
	}
	if diff := cmp.Diff([]string{"level=ERROR", "level=WARN"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// logText is a log that tests read while it is written.
type logText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Two members of a $share group with one client id are one session to the broker: each
// connect ends the other one's connection. mosquitto 2.0 does not say why it closes
// (other brokers send 0x8E), so a takeover is inferred from the third short connection
// in a row; the one that was put out then waits for 30 s instead of fighting (D7).
//
// Covers: S1-807, S1-812
func TestReusedClientIDDoesNotStormTheBroker(t *testing.T) {
	t.Parallel()
	broker := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	log := &logText{}
	member := func() *running {
		defaults := NewSessionOptions().Session
		return startWith(t, testUse(broker.URL(), gobridge.ModePersistent, topics(1, "$share/g/in/#"), func(s *SessionSettings, _ *SenderSettings) {
			s.ReconnectDelay, s.ReconnectMaxDelay = defaults.ReconnectDelay, defaults.ReconnectMaxDelay
		}), gobridge.Env{Logger: slog.New(slog.NewTextHandler(log, nil))})
	}
	first := member()
	first.awaitReady(t)
	second := member()
	taken := func(r *running) uint64 {
		return r.value(metric.MQTTSessionTakeover, metric.TakeoverReported) + r.value(metric.MQTTSessionTakeover, metric.TakeoverInferred)
	}
	began := time.Now()
	eventually(t, "a takeover is counted", func() bool { return taken(first)+taken(second) > 0 })
	noticed := time.Since(began)
	out, in := first, second
	if taken(second) > 0 {
		out, in = second, first
	}
	// Longer than any wait that the backoff alone would make after so few attempts.
	time.Sleep(4 * time.Second)
	connects := strings.Count(broker.Log(), " as client (")
	t.Logf("%d connects, takeover noticed after %v", connects, noticed.Round(time.Millisecond))
	if connects > 6 || taken(first)+taken(second) != 1 {
		t.Errorf("%d connects and %d takeovers, want at most 6 and 1:\n%s", connects, taken(first)+taken(second), broker.Log())
	}
	in.awaitReady(t)
	if h := out.Health(); h.Connected || !strings.Contains(h.LastError, "in use elsewhere") {
		t.Errorf("the one that was put out: connected %t, error %q", h.Connected, h.LastError)
	}
	if !strings.Contains(log.String(), "level=ERROR") || !strings.Contains(log.String(), "members of a $share group reuse one client_id") {
		t.Errorf("the log does not name the reused client id:\n%s", log)
	}
}
