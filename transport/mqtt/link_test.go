package mqtt

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/bridgetest"
	"github.com/gobridge/gobridge/metric"
)

// Covers: S1-204, S1-527, S2-501, S2-503
func TestConnectSaysWhatTheSessionIs(t *testing.T) {
	set := func(s *SessionSettings, _ *SenderSettings) {
		s.ReceiveMaximum, s.MaxPayloadBytes = 50, 1000
		s.KeepAlive = new(gobridge.Seconds(17))
		s.Username, s.Password, s.AllowPlaintextCredentials = "me", gobridge.NewSecret("secret"), true
		s.Will = WillSettings{Topic: "will", Payload: "gone", QoS: 1, Retain: true}
	}
	tests := []struct {
		mode   string
		clean  bool
		expiry *uint32
	}{
		{gobridge.ModeEphemeral, true, nil},
		{gobridge.ModePersistent, false, new(uint32(DefaultSessionExpiry))},
	}
	for _, tt := range tests {
		t.Run(tt.mode, func(t *testing.T) {
			fb := bridgetest.NewFakeBroker(t)
			startSession(t, testUse(fb.URL(), tt.mode, nil, set))
			t.Cleanup(fb.CutAll)
			for range 2 { // Clean Start belongs into every CONNECT
				c := fb.Accept()
				p := c.Handshake(nil)
				if p.CleanStart != tt.clean {
					t.Errorf("Clean Start %v, want %v", p.CleanStart, tt.clean)
				}
				got, want := p.Properties.SessionExpiryInterval, tt.expiry
				if (got == nil) != (want == nil) || got != nil && *got != *want {
					t.Errorf("session expiry %v, want %v", got, want)
				}
				if p.ClientID != "client" || p.KeepAlive != 17 || p.Username != "me" || string(p.Password) != "secret" {
					t.Errorf("CONNECT %s", p)
				}
				if *p.Properties.ReceiveMaximum != 50 || *p.Properties.MaximumPacketSize != 1000+MetadataAllowance {
					t.Errorf("receive maximum %d, maximum packet size %d", *p.Properties.ReceiveMaximum, *p.Properties.MaximumPacketSize)
				}
				if p.Properties.TopicAliasMaximum != nil || p.Properties.RequestProblemInfo != nil {
					t.Error("topic aliases allowed, or problem information refused")
				}
				if !p.WillFlag || p.WillTopic != "will" || string(p.WillMessage) != "gone" || p.WillQOS != 1 || !p.WillRetain {
					t.Errorf("will: %s", p)
				}
				c.Reset()
			}
		})
	}
}

func TestResumedEphemeralSessionIsRefused(t *testing.T) {
	fb := bridgetest.NewFakeBroker(t)
	r := startSession(t, testUse(fb.URL(), gobridge.ModeEphemeral, nil))
	c := fb.Accept()
	c.Handshake(present())
	c.ExpectClosed()
	fb.Accept().Handshake(nil)
	r.awaitAvailable(t)
	t.Cleanup(fb.CutAll)
}

// The acknowledgements and the DISCONNECT are written, and the broker closes
// first: our close could destroy what it has not read yet.
func TestStopWritesAcknowledgementsThenDisconnects(t *testing.T) {
	r, _, c := receiving(t, gobridge.ModePersistent)
	to, _ := r.receive(t)
	c.Send(publish(1, 1, "a"), publish(2, 1, "b"))
	got := to.wait(t, 2)
	got[0].Ack() // not flushed
	c.WithholdClose(true)
	stopped := make(chan struct{})
	go func() { defer close(stopped); r.stop() }()
	expectPuback(t, c, 1)
	if d := c.ExpectDisconnect(); d.ReasonCode != 0 {
		t.Errorf("DISCONNECT %#x", d.ReasonCode)
	}
	c.Send(publish(3, 1, "late"))
	select {
	case <-stopped:
		t.Error("Run returned before the broker closed the connection")
	case <-time.After(50 * time.Millisecond):
	}
	c.Close()
	<-stopped
	got[1].Ack()
	r.Receiver().Flush()
	if h := r.Health(); h.State != "closed" || h.ServiceLevel != gobridge.LevelNone {
		t.Errorf("health after the end: %+v", h)
	}
	if c.ExpectClosed(); len(to.wait(t, 2)) != 2 {
		t.Error("a message was taken after the stop")
	}
}

func TestStopDoesNotWaitForABrokerThatHangs(t *testing.T) {
	t.Parallel()
	r, _, c := receiving(t, gobridge.ModePersistent)
	c.WithholdClose(true)
	began := time.Now()
	r.stop()
	if took := time.Since(began); took < closeWait || took > closeWait+3*time.Second {
		t.Errorf("stopped after %s, want about %s", took, closeWait)
	}
	c.ExpectDisconnect()
	c.ExpectClosed()
}

func TestStopWhileConnecting(t *testing.T) {
	fb := bridgetest.NewFakeBroker(t)
	r := startSession(t, testUse(fb.URL(), gobridge.ModeEphemeral, nil))
	fb.Accept().ExpectConnect() // no answer
	r.stop()
}

func TestRefusedConnectIsRetriedSlowlyAndTold(t *testing.T) {
	t.Parallel()
	fb := bridgetest.NewFakeBroker(t)
	r := startSession(t, testUse(fb.URL(), gobridge.ModePersistent, nil))
	c := fb.Accept()
	c.Handshake(&packets.Connack{ReasonCode: 0x86})
	eventually(t, "the refusal is told", func() bool {
		h := r.Health()
		return len(h.Reasons) == 1 && strings.Contains(h.Reasons[0], "broker refuses the connection") &&
			strings.Contains(h.LastError, "0x86")
	})
	r.wantValue(t, 1, metric.MQTTConnectFailures, "NOT_AUTHORIZED")
	time.Sleep(300 * time.Millisecond) // many times reconnect_delay
	if n := fb.Connections(); n != 1 {
		t.Errorf("%d attempts, want 1", n)
	}
}

func TestUnreachableBrokerIsRetried(t *testing.T) {
	fb := bridgetest.NewFakeBroker(t)
	proxy := bridgetest.NewProxy(t, fb.Addr())
	proxy.Refuse(true)
	r := startSession(t, testUse(proxy.URL(), gobridge.ModePersistent, nil))
	eventually(t, "attempts fail", func() bool { return r.value(metric.MQTTConnectFailures, "CONNECTION_LOST") >= 2 })
	if h := r.Health(); h.State != "connecting" || h.LastError == "" || h.ServiceLevel != gobridge.LevelNone {
		t.Errorf("health: %+v", h)
	}
	proxy.Refuse(false)
	t.Cleanup(fb.CutAll)
	fb.Accept().Handshake(nil)
	r.awaitReady(t)
	if h := r.Health(); h.LastError != "" || h.State != "ready" {
		t.Errorf("health after the connect: %+v", h)
	}
}

func TestConnectTimeoutCoversTheWholeConnect(t *testing.T) {
	t.Parallel()
	fb := bridgetest.NewFakeBroker(t)
	r := startSession(t, testUse(fb.URL(), gobridge.ModePersistent, nil, func(s *SessionSettings, _ *SenderSettings) {
		s.ConnectTimeout = 600 * time.Millisecond
	}))
	began := time.Now()
	c := fb.Accept() // silent
	c.ExpectConnect()
	c.ExpectClosed()
	if took := time.Since(began); took < 500*time.Millisecond {
		t.Errorf("given up after %s", took)
	}
	eventually(t, "counted", func() bool { return r.value(metric.MQTTConnectFailures, "TIMEOUT") >= 1 })
	c = fb.Accept()
	c.Handshake(nil)
	t.Cleanup(fb.CutAll)
	r.awaitReady(t)
	time.Sleep(700 * time.Millisecond) // the timeout must not end a connection that stands
	if !r.Health().Connected {
		t.Error("connect_timeout ended a connection that stood")
	}
}

// A broker that accepts and closes at once must not be hammered (D9).
//
// Covers: S1-812
func TestConnectionsThatEndAtOnceAreBackedOff(t *testing.T) {
	t.Parallel()
	fb := bridgetest.NewFakeBroker(t)
	fb.Auto(bridgetest.AutoConfig{Connack: func(c *bridgetest.FakeConn, _ *packets.Connect, _ *packets.Connack) {
		time.AfterFunc(5*time.Millisecond, c.Close)
	}})
	r := startSession(t, testUse(fb.URL(), gobridge.ModePersistent, nil, func(s *SessionSettings, _ *SenderSettings) {
		s.ReconnectDelay = 50 * time.Millisecond
	}))
	time.Sleep(1500 * time.Millisecond)
	// The waits double below 50 ms, 100 ms, ...: six of them take 1.6 s on average.
	if n := fb.Connections(); n < 3 || n > 15 {
		t.Errorf("%d connects in 1.5 s, want a few", n)
	}
	if n := r.value(metric.MQTTSessionTakeover, metric.TakeoverInferred); n == 0 {
		t.Error("flapping connections are not taken for a takeover")
	}
}

// Covers: S1-812
func TestReportedTakeoverIsCountedAndBackedOff(t *testing.T) {
	t.Parallel()
	r, fb, c := sendOnly(t, gobridge.ModePersistent, nil, func(s *SessionSettings, _ *SenderSettings) {
		s.ReconnectMaxDelay = 400 * time.Millisecond
	})
	began := time.Now()
	c.Disconnect(packets.DisconnectSessionTakenOver)
	fb.Accept().Handshake(nil)
	if waited := time.Since(began); waited < 400*time.Millisecond {
		t.Errorf("reconnected after %s, want at least reconnect_max_delay", waited)
	}
	r.awaitAvailable(t)
	r.wantValue(t, 1, metric.MQTTSessionTakeover, metric.TakeoverReported)
	r.wantValue(t, 1, metric.MQTTReconnects)
}

func TestDisconnectReasonIsTold(t *testing.T) {
	r, fb, c := sendOnly(t, gobridge.ModePersistent, nil)
	c.Disconnect(packets.DisconnectQuotaExceeded)
	fb.Accept()
	eventually(t, "reason is told", func() bool { return strings.Contains(r.Health().LastError, "0x97") })
}

// Covers: S1-302, S1-528, S1-529, S1-530, G02
func TestLostResumeIsSignalled(t *testing.T) {
	r, fb, c := receiving(t, gobridge.ModePersistent)
	r.wantValue(t, 0, metric.MQTTSessionResumeLost) // not on a cold start
	c.Reset()
	c = fb.Accept()
	c.Handshake(present())
	r.awaitReady(t)
	r.wantValue(t, 0, metric.MQTTSessionResumeLost)
	c.Reset()
	c = fb.Accept()
	c.Handshake(nil)
	sub := c.ExpectSubscribe()
	r.wantValue(t, 1, metric.MQTTSessionResumeLost)
	if h := r.Health(); !strings.Contains(h.LastError, "no longer had the session") {
		t.Errorf("last error %q", h.LastError)
	}
	c.Grant(sub)
	r.awaitReady(t)
	if h := r.Health(); h.LastError != "" {
		t.Errorf("last error after the reconcile: %q", h.LastError)
	}
}

func keepAlive(n gobridge.Seconds) func(*SessionSettings, *SenderSettings) {
	return func(s *SessionSettings, _ *SenderSettings) { s.KeepAlive = new(n) }
}

func TestSilentBrokerIsGivenUpWithinOneAndAHalfKeepAlives(t *testing.T) {
	t.Parallel()
	r, _, c := sendOnly(t, gobridge.ModePersistent, nil, keepAlive(1))
	c.WithholdPings(true)
	began := time.Now()
	c.ExpectClosed()
	if took := time.Since(began); took < 1200*time.Millisecond || took > 5*time.Second {
		t.Errorf("given up after %s, want 1.5 s", took)
	}
	eventually(t, "told", func() bool { return strings.Contains(r.Health().LastError, "keep-alive") })
}

func TestIdleConnectionStaysUp(t *testing.T) {
	t.Parallel()
	r, fb, _ := sendOnly(t, gobridge.ModePersistent, nil, keepAlive(2))
	time.Sleep(7 * time.Second)
	pings := 0
	for _, rec := range fb.Records() {
		if rec.Packet.Type == packets.PINGREQ {
			pings++
		}
	}
	if pings < 2 || pings > 4 {
		t.Errorf("%d PINGREQ in 7 s of silence, want 3", pings)
	}
	if fb.Connections() != 1 || !r.Health().Connected {
		t.Error("the connection did not stay up")
	}
}

// The route does not take anything: the reader still sees PINGRESP.
//
// Covers: S1-601, S1-608
func TestStalledRouteDoesNotEndTheConnection(t *testing.T) {
	t.Parallel()
	r, fb, c := receiving(t, gobridge.ModePersistent, keepAlive(2))
	to := newRoute()
	to.room = 0
	r.receiveInto(t, to)
	for id := range uint16(192) {
		c.Send(publish(id+1, 1, "x"))
	}
	time.Sleep(6 * time.Second) // twice what a silent broker is given
	if fb.Connections() != 1 || !r.Health().Connected {
		t.Error("the connection did not stay up")
	}
	to.mu.Lock()
	to.room = -1
	to.mu.Unlock()
	r.Receiver().Resume()
	for _, d := range to.wait(t, 192) {
		d.Ack()
	}
	r.Receiver().Flush()
	for id := range uint16(192) {
		expectPuback(t, c, id+1)
	}
}

func TestServerKeepAliveIsHonoured(t *testing.T) {
	t.Parallel()
	_, _, c := sendOnly(t, gobridge.ModePersistent, &packets.Connack{Properties: &packets.Properties{ServerKeepAlive: new(uint16(1))}}, keepAlive(60))
	c.WithholdPings(true)
	c.ExpectClosed() // within 10 s; by the session's own keep-alive it would take 90
}

func TestLowerSessionExpiryIsWarnedAboutOnce(t *testing.T) {
	var log strings.Builder
	s := &session{set: &SessionSettings{SessionExpiryInterval: 3600}, durable: true, log: slog.New(slog.NewTextHandler(&log, nil))}
	for _, granted := range []*uint32{nil, new(uint32(3600)), new(uint32(5)), new(uint32(5)), new(uint32(7200)), new(uint32(6))} {
		s.checkExpiry(&packets.Connack{Properties: &packets.Properties{SessionExpiryInterval: granted}})
	}
	if got := strings.Count(log.String(), "\n"); got != 2 || !strings.Contains(log.String(), "session_expiry_interval=5s") {
		t.Errorf("log:\n%s", log.String())
	}
}

func TestStartAndStopLeaveNothing(t *testing.T) {
	fb := bridgetest.NewFakeBroker(t)
	fb.Auto(bridgetest.AutoConfig{})
	for i := range 12 {
		r := startSession(t, testUse(fb.URL(), gobridge.ModePersistent, topics(1, "in/#")))
		r.receive(t)
		time.Sleep(time.Duration(i) * time.Millisecond)
		r.stop()
		if h := r.Health(); h.State != "closed" || h.Connected {
			t.Errorf("after %d ms: %+v", i, h)
		}
	}
}

// The same session over each kind of connection, both ways, through a reconnect.
func TestMessagesPassOverEveryScheme(t *testing.T) {
	t.Parallel()
	certs := bridgetest.NewCerts(t)
	plain := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{Websocket: true})
	secure := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{TLS: certs, RequireClientCert: true, Websocket: true})
	for _, url := range []string{plain.URL(), plain.WebsocketURL(), secure.URL(), secure.WebsocketURL()} {
		t.Run(strings.SplitN(url, ":", 2)[0], func(t *testing.T) {
			r := startSession(t, testUse(url, gobridge.ModePersistent, topics(1, "out/#"), func(s *SessionSettings, _ *SenderSettings) {
				s.NoLocal = new(false)
				if strings.HasPrefix(url, "ssl") || strings.HasPrefix(url, "wss") {
					s.TLS.CACertFile, s.TLS.CertFile, s.TLS.KeyFile = certs.CAFile, certs.Client.CertFile, certs.Client.KeyFile
				}
			}))
			to, _ := r.receive(t)
			r.awaitReady(t)
			r.awaitAvailable(t)
			const n = 200
			o := newOutcomes()
			for i := range n {
				r.send(t, o, 1, fmt.Sprint(i))
				if i == n/2 {
					r.recycle("test")
					eventually(t, "link is back", func() bool { return r.value(metric.MQTTReconnects) == 1 && r.Sender("out").Available() == nil })
				}
			}
			o.wait(t, n)
			seen := map[string]bool{}
			eventually(t, "all arrived", func() bool {
				to.mu.Lock()
				defer to.mu.Unlock()
				for _, d := range to.got {
					seen[string(d.Envelope.Payload)] = true
					d.Ack()
				}
				r.Receiver().Flush()
				return len(seen) == n
			})
		})
	}
}
