package admin

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/gobridge/gobridge"
)

// Bounds of one request, of an idle connection, and of the requests still open
// when the server stops.
const (
	headerTimeout  = 5 * time.Second
	readTimeout    = 10 * time.Second
	writeTimeout   = 30 * time.Second
	idleTimeout    = time.Minute
	stopTimeout    = 2 * time.Second
	maxHeaderBytes = 16 << 10
)

// Config says where to listen.
type Config struct {
	// Listen is host:port; port 0 picks a free one.
	Listen string
	// CertFile and KeyFile are PEM files; both or neither.
	CertFile string
	KeyFile  string
}

// Server is the HTTP listener of one bridge.
type Server struct {
	listener net.Listener
	tls      bool
	http     *http.Server
	logger   *slog.Logger
}

// Listen takes the address, so that whoever starts a bridge knows at once
// whether it can be watched. Run serves it and gives it back.
func Listen(cfg Config, handler http.Handler, logger *slog.Logger) (*Server, error) {
	var tlsConfig *tls.Config
	if cfg.CertFile != "" || cfg.KeyFile != "" {
		cert, err := tls.LoadX509KeyPair(cfg.CertFile, cfg.KeyFile)
		if err != nil {
			return nil, &gobridge.Error{
				Code: gobridge.CodeInvalidConfig, Class: gobridge.ClassPermanent, Op: "http.tls", Err: err,
				Hint: "cert_file and key_file belong together and hold PEM",
			}
		}
		tlsConfig = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	}
	listener, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, &gobridge.Error{
			Code: gobridge.CodeInvalidConfig, Class: gobridge.ClassPermanent, Op: "http.listen", Err: err,
			Hint: listenHint(err),
		}
	}
	return &Server{
		listener: listener,
		tls:      tlsConfig != nil,
		logger:   logger,
		http:     newHTTPServer(handler, tlsConfig, logger),
	}, nil
}

func newHTTPServer(handler http.Handler, tlsConfig *tls.Config, logger *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           handler,
		TLSConfig:         tlsConfig,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelWarn),
	}
}

func listenHint(err error) string {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return "another process listens there: stop it, or choose another port"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return "this machine does not have that address"
	case errors.Is(err, syscall.EACCES):
		return "ports below 1024 need more rights: choose another port"
	}
	return "listen is host:port, as 127.0.0.1:8080"
}

// Addr is the address taken, with the real port.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Run serves until ctx ends, then answers the requests that are open, for at most
// two seconds, and releases the address. It returns an error only when serving
// ended by itself. Called once.
func (s *Server) Run(ctx context.Context) error {
	ended := make(chan error, 1)
	go func() {
		if s.tls {
			ended <- s.http.ServeTLS(s.listener, "", "")
		} else {
			ended <- s.http.Serve(s.listener)
		}
	}()
	s.logger.Info("http listener up", "addr", s.Addr().String(), "tls", s.tls)
	select {
	case err := <-ended:
		_ = s.http.Close()
		return &gobridge.Error{
			Code: gobridge.CodeInternal, Class: gobridge.ClassTransient,
			Op: "serve http on " + s.Addr().String(), Err: err,
		}
	case <-ctx.Done():
	}
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if err := s.http.Shutdown(bound); err != nil {
		s.logger.Info("http requests cut off at shutdown", "addr", s.Addr().String())
		_ = s.http.Close()
	}
	<-ended
	return nil
}
