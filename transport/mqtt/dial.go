package mqtt

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/gorilla/websocket"
)

const (
	// keepAliveProbe is the idle time after which TCP probes the peer.
	keepAliveProbe = 30 * time.Second
	// websocketBuffer is the size of the frames a large write is cut into.
	websocketBuffer = 16 << 10
)

// dial opens a connection to a broker, TLS and websocket handshakes included,
// within timeout. The name is resolved anew each time. cfg is nil for a plain
// scheme; its server name defaults to the host of the URL. The error is a
// *dialError.
func dial(ctx context.Context, u *url.URL, cfg *tls.Config, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	nc, err := dialURL(ctx, u, cfg)
	if err != nil {
		return nil, &dialError{err}
	}
	return nc, nil
}

func dialURL(ctx context.Context, u *url.URL, cfg *tls.Config) (net.Conn, error) {
	s, ok := schemes[u.Scheme]
	if !ok {
		return nil, fmt.Errorf("dial broker: scheme %q is not known", u.Scheme)
	}
	if s.secure {
		cfg = namedFor(cfg, u)
	}
	port := u.Port()
	if port == "" {
		port = s.port
	}
	address := net.JoinHostPort(u.Hostname(), port)
	if s.websocket {
		return dialWebsocket(ctx, u, address, cfg)
	}
	nc, err := dialTCP(ctx, address)
	if err != nil || !s.secure {
		return nc, err
	}
	secured := tls.Client(nc, cfg)
	if err := secured.HandshakeContext(ctx); err != nil {
		nc.Close()
		return nil, &handshakeError{address, err}
	}
	return secured, nil
}

// namedFor is the configuration with the name to verify, by default the host of the
// URL.
func namedFor(cfg *tls.Config, u *url.URL) *tls.Config {
	if cfg == nil {
		cfg = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if cfg.ServerName == "" {
		cfg = cfg.Clone()
		cfg.ServerName = u.Hostname()
	}
	return cfg
}

// dialTCP tries all addresses of the name, two families at once and each for a part of
// the time: one that answers nothing does not use it up. It leaves Go's default in place that turns Nagle's algorithm off.
func dialTCP(ctx context.Context, address string) (net.Conn, error) {
	d := net.Dialer{KeepAlive: keepAliveProbe}
	return d.DialContext(ctx, "tcp", address)
}

// dialWebsocket opens an MQTT connection over a websocket (MQTT v5, 6).
func dialWebsocket(ctx context.Context, u *url.URL, address string, cfg *tls.Config) (net.Conn, error) {
	var release func() bool
	d := websocket.Dialer{
		TLSClientConfig: cfg,
		Subprotocols:    []string{"mqtt"},
		ReadBufferSize:  websocketBuffer,
		WriteBufferSize: websocketBuffer,
		NetDialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			nc, err := dialTCP(ctx, address)
			if err == nil {
				// The websocket library heeds a deadline during its handshake, not a
				// cancellation.
				release = context.AfterFunc(ctx, func() { nc.Close() })
			}
			return nc, err
		},
	}
	ws, resp, err := d.DialContext(ctx, u.String(), nil)
	if release != nil && !release() && err == nil {
		ws.Close()
		err = ctx.Err()
	}
	switch {
	case err == nil:
		return &websocketConn{Conn: ws}, nil
	case ctx.Err() != nil:
		return nil, fmt.Errorf("websocket handshake with %s: %w", address, ctx.Err())
	case errors.Is(err, websocket.ErrBadHandshake) && resp != nil:
		return nil, fmt.Errorf("websocket handshake with %s: answered %d %s: %w",
			address, resp.StatusCode, http.StatusText(resp.StatusCode), err)
	default:
		return nil, fmt.Errorf("websocket handshake with %s: %w", address, err)
	}
}

// errTextFrame: MQTT travels in binary frames alone [MQTT-6.0.0-1].
var errTextFrame = errors.New("websocket: the server sent a text frame, MQTT uses binary frames")

// websocketConn is the byte stream inside the binary frames of a websocket. One
// goroutine may read while another writes.
type websocketConn struct {
	*websocket.Conn
	frame io.Reader // the rest of the message being read, nil between two
}

func (c *websocketConn) Read(p []byte) (int, error) {
	for {
		if c.frame == nil {
			typ, frame, err := c.NextReader()
			if err != nil {
				return 0, err
			}
			if typ != websocket.BinaryMessage {
				return 0, errTextFrame
			}
			c.frame = frame
		}
		n, err := c.frame.Read(p)
		if err == io.EOF {
			c.frame, err = nil, nil
		}
		if n > 0 || err != nil || len(p) == 0 {
			return n, err
		}
	}
}

func (c *websocketConn) Write(p []byte) (int, error) {
	if err := c.WriteMessage(websocket.BinaryMessage, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (c *websocketConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}
