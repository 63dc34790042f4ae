package admin

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/metric"
)

func handler(t *testing.T) http.Handler {
	t.Helper()
	return NewHandler(&fakeBridge{}, NewAPI(&fakeOperator{}, nil, testLogger(t)), metric.NewRegistry(), testLogger(t))
}

// serve runs a server until the returned stop is called, which gives Run's error.
func serve(t *testing.T, cfg Config, h http.Handler) (s *Server, stop func() error) {
	t.Helper()
	s, err := Listen(cfg, h, testLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	return s, func() error {
		cancel()
		return <-ended
	}
}

func TestServerServesUntilItsContextEnds(t *testing.T) {
	for range 5 {
		s, stop := serve(t, Config{Listen: "127.0.0.1:0"}, handler(t))
		client := &http.Client{Transport: &http.Transport{}}
		res, err := client.Get("http://" + s.Addr().String() + "/livez")
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != 200 || !strings.Contains(string(text), `"live": true`) {
			t.Errorf("GET /livez = %d %q %v", res.StatusCode, text, err)
		}
		if err := stop(); err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
		client.CloseIdleConnections()
		if conn, err := net.Dial("tcp", s.Addr().String()); err == nil {
			conn.Close()
			t.Error("the address is still served")
		}
	}
}

func TestServerWithAnEndedContextGivesTheAddressBack(t *testing.T) {
	s, err := Listen(Config{Listen: "127.0.0.1:0"}, handler(t), testLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Run(ctx); err != nil {
		t.Errorf("Run = %v, want nil", err)
	}
	again, err := net.Listen("tcp", s.Addr().String())
	if err != nil {
		t.Fatalf("the address is still taken: %v", err)
	}
	again.Close()
}

func TestServerFinishesTheOpenRequestBeforeItStops(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	s, stop := serve(t, Config{Listen: "127.0.0.1:0"}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(entered)
		<-release
		_, _ = io.WriteString(w, "done")
	}))
	answer := make(chan string, 1)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	go func() {
		res, err := client.Get("http://" + s.Addr().String())
		if err != nil {
			answer <- err.Error()
			return
		}
		defer res.Body.Close()
		text, _ := io.ReadAll(res.Body)
		answer <- string(text)
	}()
	<-entered
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	// The stop is under way once new connections are refused.
	for {
		conn, err := net.Dial("tcp", s.Addr().String())
		if err != nil {
			break
		}
		conn.Close()
	}
	close(release)
	if got := <-answer; got != "done" {
		t.Errorf("answer = %q, want done", got)
	}
	if err := <-stopped; err != nil {
		t.Errorf("Run = %v, want nil", err)
	}
}

func TestServerThatEndsByItselfReportsIt(t *testing.T) {
	s, err := Listen(Config{Listen: "127.0.0.1:0"}, handler(t), testLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	s.listener.Close()
	if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), s.Addr().String()) {
		t.Errorf("Run = %v, want an error that names the address", err)
	}
}

func TestListenErrorsAreOneLineWithAHint(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, c := range []struct {
		name string
		cfg  Config
		want []string
	}{
		{
			"address in use",
			Config{Listen: taken.Addr().String()},
			[]string{"http.listen: ", taken.Addr().String(), "address already in use", "another process listens there"},
		},
		{"no port", Config{Listen: "127.0.0.1"}, []string{"http.listen: ", "missing port", "127.0.0.1:8080"}},
		{"foreign address", Config{Listen: "192.0.2.1:0"}, []string{"http.listen: ", "192.0.2.1", "does not have that address"}},
		{
			"half a pair",
			Config{Listen: "127.0.0.1:0", CertFile: filepath.Join(t.TempDir(), "absent.pem")},
			[]string{"http.tls: ", "absent.pem", "cert_file and key_file"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Listen(c.cfg, handler(t), testLogger(t))
			if err == nil {
				t.Fatal("no error")
			}
			if e, ok := errors.AsType[*gobridge.Error](err); !ok || e.Code != gobridge.CodeInvalidConfig {
				t.Errorf("error %v has no code %s", err, gobridge.CodeInvalidConfig)
			}
			for _, part := range c.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q lacks %q", err, part)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q has more than one line", err)
			}
		})
	}
}

func TestServerSpeaksTLS(t *testing.T) {
	cfg, roots := certificate(t)
	s, stop := serve(t, cfg, handler(t))
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	res, err := client.Get("https://" + s.Addr().String() + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != 200 {
		t.Errorf("status = %d, want 200", res.StatusCode)
	}
	client.CloseIdleConnections()
	if err := stop(); err != nil {
		t.Errorf("Run = %v, want nil", err)
	}
}

// certificate writes a self-signed certificate for 127.0.0.1.
func certificate(t *testing.T) (Config, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cfg := Config{Listen: "127.0.0.1:0", CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem")}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
	for file, content := range map[string][]byte{cfg.CertFile: certPEM, cfg.KeyFile: keyPEM} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(certPEM)
	return cfg, roots
}
