package mqtt

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/transport/mqtt/wire"
)

const testDialTimeout = 10 * time.Second

func mustURL(t *testing.T, raw string) *url.URL {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// serve accepts connections, with TLS when cfg is not nil, and hands each to
// handle. It returns the address.
func serve(t *testing.T, cfg *tls.Config, handle func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if cfg != nil {
		l = tls.NewListener(l, cfg)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer nc.Close()
				handle(nc)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	return l.Addr().String()
}

func echo(nc net.Conn) { io.Copy(nc, nc) }

// checkEcho fails the test unless what is written comes back.
func checkEcho(t *testing.T, nc net.Conn) {
	t.Helper()
	if err := nc.SetDeadline(time.Now().Add(testDialTimeout)); err != nil {
		t.Fatal(err)
	}
	sent := bytes.Repeat([]byte("0123456789"), 10_000)
	var wg sync.WaitGroup
	wg.Go(func() {
		if n, err := nc.Write(sent); n != len(sent) || err != nil {
			t.Errorf("wrote %d of %d bytes: %v", n, len(sent), err)
		}
	})
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(nc, got); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("what came back differs: %v", err)
	}
	wg.Wait()
}

func TestDialPlainSchemes(t *testing.T) {
	address := serve(t, nil, echo)
	for _, scheme := range []string{"tcp", "mqtt"} {
		nc, err := dial(t.Context(), mustURL(t, scheme+"://"+address), nil, testDialTimeout)
		if err != nil {
			t.Fatal(err)
		}
		checkEcho(t, nc)
		nc.Close()
	}
}

func TestDialTLS(t *testing.T) {
	server, stranger := newAuthority(t, "server-ca"), newAuthority(t, "stranger-ca")
	cert, key := server.issue("client")
	strangeCert, strangeKey := stranger.issue("client")

	mutual := server.serverConfig("127.0.0.1")
	mutual.ClientAuth = tls.RequireAndVerifyClientCert
	mutual.ClientCAs = x509.NewCertPool()
	mutual.ClientCAs.AddCert(server.cert)
	old := server.serverConfig("127.0.0.1")
	old.MaxVersion = tls.VersionTLS12
	alpn := server.serverConfig("127.0.0.1")
	alpn.NextProtos = []string{"mqtt"}

	unknownAuthority := func(err error) bool { var e x509.UnknownAuthorityError; return errors.As(err, &e) }
	wrongName := func(err error) bool { var e x509.HostnameError; return errors.As(err, &e) }
	refused := func(err error) bool { return err != nil }
	for _, tt := range []struct {
		name   string
		server *tls.Config
		client TLSSettings
		fails  func(error) bool // nil: works
	}{
		{"trusted authority", server.serverConfig("127.0.0.1"), TLSSettings{CACertFile: server.file}, nil},
		{"another authority", server.serverConfig("127.0.0.1"), TLSSettings{CACertFile: stranger.file}, unknownAuthority},
		{"authorities of the system", server.serverConfig("127.0.0.1"), TLSSettings{}, unknownAuthority},
		{"not verified", server.serverConfig("127.0.0.1"), TLSSettings{InsecureSkipVerify: true}, nil},
		{"another name", server.serverConfig("broker.example.com"), TLSSettings{CACertFile: server.file}, wrongName},
		{"server name", server.serverConfig("broker.example.com"), TLSSettings{CACertFile: server.file, ServerName: "broker.example.com"}, nil},
		{"client certificate", mutual, TLSSettings{CACertFile: server.file, CertFile: cert, KeyFile: key}, nil},
		{"no client certificate", mutual, TLSSettings{CACertFile: server.file}, refused},
		{"client certificate of another authority", mutual, TLSSettings{CACertFile: server.file, CertFile: strangeCert, KeyFile: strangeKey}, refused},
		{"version too low", old, TLSSettings{CACertFile: server.file, MinVersion: "1.3"}, refused},
		{"protocol", alpn, TLSSettings{CACertFile: server.file, ALPN: []string{"mqtt"}}, nil},
		{"another protocol", alpn, TLSSettings{CACertFile: server.file, ALPN: []string{"x-other"}}, refused},
	} {
		t.Run(tt.name, func(t *testing.T) {
			address := serve(t, tt.server, echo)
			cfg, err := buildTLS(&tt.client, gobridge.Credential{})
			if err != nil {
				t.Fatal(err)
			}
			for _, scheme := range []string{"ssl", "tls", "mqtts"} {
				nc, err := dial(t.Context(), mustURL(t, scheme+"://"+address), cfg, testDialTimeout)
				if err == nil && tt.fails != nil {
					// TLS 1.3 lets a client write before the server judged its certificate.
					_, err = nc.Read(make([]byte, 1))
					nc.Close()
				}
				switch {
				case tt.fails != nil:
					if !tt.fails(err) {
						t.Errorf("%s: got %v", scheme, err)
					}
				case err != nil:
					t.Errorf("%s: %v", scheme, err)
				default:
					if want := tt.client.ALPN; len(want) > 0 && nc.(*tls.Conn).ConnectionState().NegotiatedProtocol != want[0] {
						t.Errorf("%s: protocol %q was not negotiated", scheme, want[0])
					}
					checkEcho(t, nc)
					nc.Close()
				}
			}
		})
	}
}

// websocketServer echoes the frames it gets, each cut in two; ask is what it was
// asked for.
func websocketServer(t *testing.T, frameType int) (server *httptest.Server, ask chan *http.Request) {
	t.Helper()
	ask = make(chan *http.Request, 1)
	var wg sync.WaitGroup
	upgrader := websocket.Upgrader{Subprotocols: []string{"mqtt"}}
	server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		wg.Add(1) // the server does not wait for what becomes a websocket
		defer wg.Done()
		if r.URL.Path == "/elsewhere" {
			http.NotFound(w, r)
			return
		}
		ws, err := upgrader.Upgrade(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		ask <- r
		defer ws.Close()
		for {
			typ, b, err := ws.ReadMessage()
			if err != nil {
				return
			}
			if typ != websocket.BinaryMessage {
				t.Errorf("got a frame of type %d, want binary", typ)
			}
			half := len(b) / 2
			if ws.WriteMessage(frameType, b[:half]) != nil || ws.WriteMessage(frameType, b[half:]) != nil {
				return
			}
		}
	}))
	t.Cleanup(func() {
		server.Close()
		wg.Wait()
	})
	return server, ask
}

func TestDialWebsocket(t *testing.T) {
	a := newAuthority(t, "ca")
	for _, scheme := range []string{"ws", "wss"} {
		t.Run(scheme, func(t *testing.T) {
			server, ask := websocketServer(t, websocket.BinaryMessage)
			var cfg *tls.Config
			if scheme == "wss" {
				server.TLS = a.serverConfig("127.0.0.1")
				server.StartTLS()
				var err error
				if cfg, err = buildTLS(&TLSSettings{CACertFile: a.file}, gobridge.Credential{}); err != nil {
					t.Fatal(err)
				}
			} else {
				server.Start()
			}
			address := server.Listener.Addr().String()
			nc, err := dial(t.Context(), mustURL(t, scheme+"://"+address+"/mqtt/path?x=1"), cfg, testDialTimeout)
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			checkEcho(t, nc)
			r := <-ask
			if r.URL.Path != "/mqtt/path" || r.URL.RawQuery != "x=1" {
				t.Errorf("asked for %s", r.URL)
			}
			if got := r.Header.Get("Sec-Websocket-Protocol"); got != "mqtt" {
				t.Errorf("subprotocol %q, want mqtt", got)
			}
		})
	}
}

func TestDialWebsocketFailures(t *testing.T) {
	server, ask := websocketServer(t, websocket.TextMessage)
	server.Start()
	address := server.Listener.Addr().String()

	_, err := dial(t.Context(), mustURL(t, "ws://"+address+"/elsewhere"), nil, testDialTimeout)
	if err == nil || !strings.Contains(err.Error(), "404 Not Found") {
		t.Errorf("wrong path: got %v, want the status", err)
	}

	nc, err := dial(t.Context(), mustURL(t, "ws://"+address), nil, testDialTimeout)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	<-ask
	nc.Write([]byte("x"))
	if _, err := nc.Read(make([]byte, 10)); !errors.Is(err, errTextFrame) {
		t.Errorf("text frame: got %v", err)
	}
}

func TestDialCarriesAGuardConnOverWebsocketAndTLS(t *testing.T) {
	a := newAuthority(t, "ca")
	cfg, err := buildTLS(&TLSSettings{CACertFile: a.file}, gobridge.Credential{})
	if err != nil {
		t.Fatal(err)
	}
	server, _ := websocketServer(t, websocket.BinaryMessage)
	server.TLS = a.serverConfig("127.0.0.1")
	server.StartTLS()
	for _, raw := range []string{
		"tls://" + serve(t, a.serverConfig("127.0.0.1"), echo),
		"wss://" + server.Listener.Addr().String(),
	} {
		nc, err := dial(t.Context(), mustURL(t, raw), cfg, testDialTimeout)
		if err != nil {
			t.Fatal(err)
		}
		r := newRecorder()
		c := guard(t, nc, r, testMaxPacket)
		stream, want := conversation(t)
		c.append(func(dst []byte) []byte { return append(dst, stream...) })
		c.flush()
		for range want {
			if events, _ := r.seen(); len(events) == len(want) {
				break
			}
			packet := make([]byte, 2)
			if _, err := io.ReadFull(c, packet); err != nil {
				t.Fatal(err)
			}
			if _, err := io.CopyN(io.Discard, c, int64(packet[1])); err != nil {
				t.Fatal(err)
			}
			r.note("library " + wire.TypeName(packet[0]>>4))
		}
		events, _ := r.seen()
		if got, want := strings.Join(events, "\n"), strings.Join(want, "\n"); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", raw, got, want)
		}
		if err := c.Close(); err != nil {
			t.Errorf("%s: close: %v", raw, err)
		}
	}
}

func TestGuardConnCloseDoesNotWaitForATLSPeerThatDoesNotRead(t *testing.T) {
	t.Parallel()
	a := newAuthority(t, "ca")
	cfg, err := buildTLS(&TLSSettings{CACertFile: a.file}, gobridge.Credential{})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	address := serve(t, a.serverConfig("127.0.0.1"), func(nc net.Conn) {
		if err := nc.(*tls.Conn).Handshake(); err != nil {
			t.Error(err)
		}
		<-done
	})
	defer close(done)
	nc, err := dial(t.Context(), mustURL(t, "tls://"+address), cfg, testDialTimeout)
	if err != nil {
		t.Fatal(err)
	}
	c := guard(t, nc, newRecorder(), testMaxPacket)
	c.append(func(dst []byte) []byte { return append(dst, make([]byte, 16<<20)...) })
	c.flush()
	begin := time.Now()
	c.Close()
	if took := time.Since(begin); took > closeGrace+3*time.Second { // a TLS close in good order waits for 5 s
		t.Errorf("closing took %v", took)
	}
}

func TestDialIsBoundedByItsTimeoutAndContext(t *testing.T) {
	address := serve(t, nil, func(nc net.Conn) { io.Copy(io.Discard, nc) }) // accepts and says nothing
	for _, scheme := range []string{"tls", "ws", "wss"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			u := mustURL(t, scheme+"://"+address)
			begin := time.Now()
			_, err := dial(t.Context(), u, nil, 50*time.Millisecond)
			var timeout net.Error
			if !errors.As(err, &timeout) || !timeout.Timeout() {
				t.Errorf("got %v, want a timeout", err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(50*time.Millisecond, cancel)
			if _, err := dial(ctx, u, nil, testDialTimeout); !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, want a cancellation", err)
			}
			if took := time.Since(begin); took > testDialTimeout/2 {
				t.Errorf("took %v", took)
			}
		})
	}
}

func TestDialRefusedIsANetworkError(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	_, err = dial(t.Context(), mustURL(t, "tcp://"+address), nil, testDialTimeout)
	var op *net.OpError
	if !errors.As(err, &op) || !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("got %v, want a refused connection", err)
	}
	if _, err := dial(t.Context(), mustURL(t, "ftp://"+address), nil, testDialTimeout); err == nil {
		t.Error("an unknown scheme was dialled")
	}
}
