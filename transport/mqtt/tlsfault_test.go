package mqtt

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/bridgetest"
	"github.com/gobridge/gobridge/metric"
)

// Each fault has a name of its own, against a real listener.
func TestTLSFaultsAreNamedApart(t *testing.T) {
	t.Parallel()
	certs, strangers := bridgetest.NewCerts(t), bridgetest.NewCerts(t)
	trust := TLSSettings{CACertFile: certs.CAFile}
	with := func(name string, until time.Time, hosts ...string) *tls.Config {
		pair := certs.Issue(bridgetest.CertConfig{Name: name, Hosts: hosts, NotAfter: until})
		return serverOf(t, pair)
	}
	hour := time.Now().Add(time.Hour)
	mutual := certs.ServerTLS(true)
	mutual12 := mutual.Clone()
	mutual12.MaxVersion = tls.VersionTLS12
	old := certs.ServerTLS(false)
	old.MaxVersion = tls.VersionTLS12
	alpn := certs.ServerTLS(false)
	alpn.NextProtos = []string{"mqtt"}
	plain := func(nc net.Conn) { nc.Write([]byte("\x20\x02\x00\x00 not TLS")); nc.Close() }
	hangUp := func(nc net.Conn) {
		nc.Read(make([]byte, 1))
		nc.Close()
	}

	for name, c := range map[string]struct {
		server *tls.Config
		handle func(net.Conn)
		client TLSSettings
		code   gobridge.Code
		op     string
	}{
		"authority":             {certs.ServerTLS(false), echo, TLSSettings{CACertFile: strangers.CAFile}, gobridge.CodeUnavailable, "authority that is not trusted"},
		"host name":             {with("elsewhere", hour, "broker.example.com"), echo, trust, gobridge.CodeUnavailable, "another host name"},
		"expired":               {with("expired", time.Now().Add(-time.Hour), "127.0.0.1"), echo, trust, gobridge.CodeUnavailable, "has expired"},
		"not yet valid":         {with("early", time.Now().Add(5*time.Hour), "127.0.0.1"), echo, trust, gobridge.CodeUnavailable, "not valid yet"},
		"plain port, talkative": {nil, plain, trust, gobridge.CodeUnavailable, "does not speak TLS"},
		"plain port, silent":    {nil, hangUp, trust, gobridge.CodeUnavailable, "closed the connection during the TLS handshake"},
		"no client certificate": {mutual, echo, trust, gobridge.CodeNotAuthorized, "requires a client certificate"},
		"the same in TLS 1.2":   {mutual12, echo, trust, gobridge.CodeUnavailable, "broker refused the TLS handshake"}, // it has no alert for it
		"client certificate of another authority": {
			mutual, echo,
			TLSSettings{CACertFile: certs.CAFile, CertFile: strangers.Client.CertFile, KeyFile: strangers.Client.KeyFile},
			gobridge.CodeNotAuthorized, "does not accept the client certificate",
		},
		"version":  {old, echo, TLSSettings{CACertFile: certs.CAFile, MinVersion: "1.3"}, gobridge.CodeVersionMismatch, "no TLS version in common"},
		"protocol": {alpn, echo, TLSSettings{CACertFile: certs.CAFile, ALPN: []string{"x"}}, gobridge.CodeInvalidConfig, "no application protocol in common"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, err := buildTLS(&c.client, gobridge.Credential{})
			if err != nil {
				t.Fatal(err)
			}
			nc, err := dial(t.Context(), mustURL(t, "tls://"+serve(t, c.server, c.handle)), cfg, testDialTimeout)
			if err == nil { // TLS 1.3 tells of a client certificate after the handshake
				defer nc.Close()
				_, err = nc.Read(make([]byte, 1))
			}
			e := MapError(err)
			if e.Code != c.code || !e.Outage || e.Hint == "" || !strings.Contains(e.Op, c.op) {
				t.Errorf("got code %s, outage %v: %v; want %s, %q and a hint", e.Code, e.Outage, e, c.code, c.op)
			}
		})
	}
}

func serverOf(t *testing.T, pair bridgetest.KeyPair) *tls.Config {
	t.Helper()
	cert, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{cert}}
}

func TestWhatIsNoTLSFaultIsNotTakenForOne(t *testing.T) {
	t.Parallel()
	for _, err := range []error{
		&net.OpError{Op: "remote error", Err: net.ErrClosed},
		&net.OpError{Op: "read", Err: tls.AlertError(42)},
		x509.ErrUnsupportedAlgorithm,
	} {
		if e := tlsFault(err); e != nil {
			t.Errorf("%v is taken for %v", err, e)
		}
	}
}

// A real broker, through a whole session: the reason is in its health.
func TestMosquittoWithoutItsClientCertificateIsNamed(t *testing.T) {
	t.Parallel()
	certs := bridgetest.NewCerts(t)
	m := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{TLS: certs, RequireClientCert: true})
	r := startSession(t, testUse(m.URL(), gobridge.ModePersistent, nil, func(s *SessionSettings, _ *SenderSettings) {
		s.TLS.CACertFile = certs.CAFile
	}))
	eventually(t, "the reason is told", func() bool { return strings.Contains(r.Health().LastError, "client certificate") })
	if n := r.value(metric.MQTTConnectFailures, string(gobridge.CodeNotAuthorized)); n != 1 {
		t.Errorf("%d failures counted as NOT_AUTHORIZED: %s", n, r.Health().LastError)
	}
}
