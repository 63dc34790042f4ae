// Package admin serves the HTTP listener of a bridge: probes, metrics, the read-only
// monitor API and the admin API.
//
//	GET /livez                        200, or 503 when only a restart helps
//	GET /readyz[?level=LEVEL]         200 or 503, with a reason for each session and route
//	GET /metrics                      Prometheus text
//	GET /api/v1/monitor/deephealth    gobridge.BridgeHealth
//	GET /api/v1/monitor/topology      gobridge.Topology
//	GET /                             a page that links these
//	/api/v1/admin/...                 see API
//
// Everything but the admin API is open to whoever reaches the listener and holds no
// secret; the default listener is loopback. Errors are JSON: {"error": "...",
// "hint": "..."}.
package admin

import (
	"log/slog"
	"net/http"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/metric"
)

// Bridge is what the listener shows. The engine implements it; each method is a
// snapshot, safe for concurrent use and cheap enough for a probe every second.
type Bridge interface {
	// Live returns nil unless the process can no longer do its job without a restart.
	Live() error
	// Ready returns why the bridge is not at the level (connected, subscribed or
	// full); nothing means that it is.
	Ready(level gobridge.ServiceLevel) []gobridge.Reason
	Health() gobridge.BridgeHealth
	Topology() gobridge.Topology
}

// NewHandler returns the handler of the whole listener.
func NewHandler(b Bridge, api *API, metrics *metric.Registry, logger *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", livez(b))
	mux.HandleFunc("GET /readyz", readyz(b))
	mux.Handle("GET /metrics", metricsHandler(metrics, logger))
	mux.HandleFunc("GET /api/v1/monitor/deephealth", deephealth(b))
	mux.HandleFunc("GET /api/v1/monitor/topology", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, b.Topology())
	})
	mux.Handle("/api/v1/admin/", api)
	mux.HandleFunc("GET /{$}", index(b))
	return secure(jsonErrors(mux))
}

// secure sets the headers that every answer carries. Nothing here is worth
// caching, framing or reading from another origin.
func secure(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Security-Policy", "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		next.ServeHTTP(w, r)
	})
}
