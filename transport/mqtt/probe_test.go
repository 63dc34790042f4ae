package mqtt

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/google/go-cmp/cmp"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/bridgetest"
)

func probed(t *testing.T, use *gobridge.SessionUse, source gobridge.Credentials) []gobridge.ProbeStep {
	t.Helper()
	check(use, func(path, what, _ string) { t.Errorf("check: %s: %s", path, what) })
	return probe(t.Context(), use, gobridge.Env{Logger: testLogger(t), Credentials: source})
}

// states are the steps with their states, in order.
func states(steps []gobridge.ProbeStep) []string {
	var all []string
	for _, s := range steps {
		all = append(all, s.Step+" "+s.State)
	}
	return all
}

func last(steps []gobridge.ProbeStep) gobridge.ProbeStep { return steps[len(steps)-1] }

func TestProbeTakesEveryStepAndLeavesNothing(t *testing.T) {
	t.Parallel()
	certs := bridgetest.NewCerts(t) // for an hour
	m := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{TLS: certs, Users: map[string]string{"edge": "hunter2"}, Websocket: true})
	source := newRotating(gobridge.Credential{Username: "edge", Password: gobridge.NewSecret("hunter2"), CA: string(certs.CAPEM)}, nil)
	use := testUse("", gobridge.ModePersistent, topics(1, "a/#"), func(s *SessionSettings, _ *SenderSettings) {
		s.BrokerURLs = []string{strings.Replace(m.URL(), "127.0.0.1", "localhost", 1), m.WebsocketURL()}
	})
	steps := probed(t, use, source)
	want := []string{
		"credential ok",
		"dns ok", "tcp ok", "tls warning", "login ok", "limits ok",
		"tcp ok", "tls warning", "websocket ok", "login ok", "limits ok",
	}
	if diff := cmp.Diff(want, states(steps)); diff != "" {
		t.Fatalf("steps (-want +got):\n%s\n%+v", diff, steps)
	}
	for step, text := range map[int]string{0: `user name "edge", a password`, 3: "TLS 1.3, CN=", 4: "client-check-", 5: "receive maximum "} {
		if !strings.Contains(steps[step].Detail, text) {
			t.Errorf("step %d says %q, want %q", step, steps[step].Detail, text)
		}
	}
	if !strings.Contains(steps[3].Detail, "expires in 0 days") {
		t.Errorf("no expiry in %q", steps[3].Detail)
	}
	if log := m.Log(); strings.Contains(log, " as client ") || !strings.Contains(log, " as client-check-") {
		t.Errorf("it logged in as the session itself:\n%s", log)
	}
}

func TestProbeNamesWhatFails(t *testing.T) {
	t.Parallel()
	certs := bridgetest.NewCerts(t)
	hidden := bridgetest.NewFakeBroker(t)
	hidden.Auto(bridgetest.AutoConfig{Connack: func(_ *bridgetest.FakeConn, _ *packets.Connect, ca *packets.Connack) { ca.ReasonCode = 0x86 }})
	weak := bridgetest.NewFakeBroker(t)
	weak.Auto(bridgetest.AutoConfig{Connack: func(_ *bridgetest.FakeConn, _ *packets.Connect, ca *packets.Connack) {
		ca.Properties = &packets.Properties{MaximumQOS: new(byte(0))}
	}})
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := free.Addr().String()
	free.Close()
	for name, c := range map[string]struct {
		url        string
		step       string
		text, hint string
	}{
		"no listener":   {"tcp://" + nobody, "tcp", "connection refused", "is the broker running"},
		"no such host":  {"tcp://nowhere.invalid:1883", "dns", "nowhere.invalid", "host name"},
		"authority":     {"tls://" + serve(t, certs.ServerTLS(false), echo), "tls", "authority that is not trusted", "tls.ca_cert_file"},
		"no TLS":        {"tls://" + hidden.Addr(), "tls", "TLS", "TLS port"},
		"refused":       {hidden.URL(), "login", "0x86", "set username and password"},
		"no MQTT":       {"tcp://" + serve(t, nil, func(nc net.Conn) { io.WriteString(nc, "220 mail.example.com ESMTP\r\n"); nc.Close() }), "login", "", "MQTT"},
		"quality":       {weak.URL(), "limits", "maximum QoS 0", "needs QoS 1"},
		"websocket 404": {"ws://" + serve(t, nil, func(nc net.Conn) { io.WriteString(nc, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n") }), "websocket", "404", "path"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			step := last(probed(t, testUse(c.url, gobridge.ModePersistent, topics(1, "a/#")), nil))
			if step.Step != c.step || step.State != gobridge.ProbeFailed || !strings.Contains(step.Detail, c.text) || !strings.Contains(step.Hint, c.hint) {
				t.Errorf("got %+v, want %s to fail with %q (%q)", step, c.step, c.text, c.hint)
			}
		})
	}
}

func TestProbeWithoutACredentialConnectsNowhere(t *testing.T) {
	t.Parallel()
	fb := bridgetest.NewFakeBroker(t)
	use := testUse(fb.URL(), gobridge.ModePersistent, nil, func(s *SessionSettings, _ *SenderSettings) { s.AllowPlaintextCredentials = true })
	steps := probed(t, use, newRotating(gobridge.Credential{}, errors.New("no such file")))
	if len(steps) != 1 || steps[0].Step != "credential" || steps[0].State != gobridge.ProbeFailed || !strings.Contains(steps[0].Detail, "no such file") {
		t.Errorf("got %+v", steps)
	}
	if n := fb.Connections(); n != 0 {
		t.Errorf("%d connections", n)
	}
}

// Brokers answer 0x87 to a wrong password as well: the hint is about the login that was
// tried, in the check and in what a session says of itself.
func TestRefusedLoginNamesWhatWasTried(t *testing.T) {
	t.Parallel()
	certs := bridgetest.NewCerts(t)
	m := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{Users: map[string]string{"edge": "hunter2"}, TLS: certs})
	for name, c := range map[string]struct {
		url  string
		cred gobridge.Credential
		hint string
	}{
		"wrong password":   {m.URL(), password("wrong"), "check username and password"},
		"certificate only": {m.URL(), gobridge.Credential{Cert: string(certs.Client.CertPEM), Key: gobridge.NewSecret(string(certs.Client.KeyPEM))}, "by client certificate alone"},
		"anonymous":        {m.URL(), gobridge.Credential{}, "the login is anonymous"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			use := testUse(c.url, gobridge.ModePersistent, nil, func(s *SessionSettings, _ *SenderSettings) { s.TLS.CACertFile = certs.CAFile })
			if step := last(probed(t, use, newRotating(c.cred, nil))); step.Step != "login" || !strings.Contains(step.Hint, c.hint) {
				t.Errorf("check: got %+v, want the hint %q", step, c.hint)
			}
			r := startWith(t, use, gobridge.Env{Credentials: newRotating(c.cred, nil)})
			eventually(t, "the session says it", func() bool { return strings.Contains(r.Health().LastError, c.hint) })
		})
	}
}

// TLS 1.3 refuses a client after the client's handshake: the CONNECT may meet the close
// before anybody has read the alert that says why.
func TestProbeReadsTheAlertBehindABrokenWrite(t *testing.T) {
	t.Parallel()
	certs := bridgetest.NewCerts(t)
	gone := make(chan struct{})
	address := serve(t, nil, func(nc net.Conn) {
		if err := tls.Server(nc, certs.ServerTLS(true)).Handshake(); err == nil {
			t.Error("the broker accepted a client without a certificate")
		}
		nc.(*net.TCPConn).SetLinger(0) // a reset, as where it has not read everything
		nc.Close()
		close(gone)
	})
	cfg, err := buildTLS(&TLSSettings{CACertFile: certs.CAFile}, gobridge.Credential{})
	if err != nil {
		t.Fatal(err)
	}
	nc, err := dial(t.Context(), mustURL(t, "tls://"+address), cfg, testDialTimeout)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	<-gone
	use := testUse("tls://"+address, gobridge.ModePersistent, nil)
	check(use, func(path, what, _ string) { t.Errorf("check: %s: %s", path, what) })
	p := &prober{set: sessionSettings(use.Session), login: &login{}}
	_, _, err = p.connect(nc)
	if e := MapError(err); e.Code != gobridge.CodeNotAuthorized || !strings.Contains(e.Op, "requires a client certificate") {
		t.Errorf("got %v", e)
	}
}

// A source that never changes is not promised to be read again.
func TestNoCredentialSaysWhenItIsReadAgain(t *testing.T) {
	t.Parallel()
	watched, fixed := newRotating(gobridge.Credential{}, errors.New("not there")), newRotating(gobridge.Credential{}, errors.New("not there"))
	fixed.changed = nil
	for want, source := range map[string]gobridge.Credentials{"read again as soon as it changes": watched, "read at start only": fixed} {
		step := last(probed(t, testUse("tls://127.0.0.1:1", gobridge.ModePersistent, nil), source))
		if step.Step != "credential" || !strings.Contains(step.Hint, want) {
			t.Errorf("got %+v, want the hint %q", step, want)
		}
	}
}

func TestProbeEndsWithItsContext(t *testing.T) {
	t.Parallel()
	fb := bridgetest.NewFakeBroker(t) // answers nothing
	use := testUse(fb.URL(), gobridge.ModePersistent, nil)
	check(use, func(path, what, _ string) { t.Errorf("check: %s: %s", path, what) })
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	began := time.Now()
	step := last(probe(ctx, use, gobridge.Env{Logger: testLogger(t)}))
	if step.Step != "login" || step.State != gobridge.ProbeFailed {
		t.Errorf("got %+v", step)
	}
	if took := time.Since(began); took > probeTimeout/2 {
		t.Errorf("it took %v", took)
	}
}
