package admin

import (
	"html/template"
	"net/http"

	"github.com/gobridge/gobridge"
)

// Liveness is the body of /livez.
type Liveness struct {
	Live   bool   `json:"live"`
	Reason string `json:"reason,omitempty"`
}

func livez(b Bridge) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if err := b.Live(); err != nil {
			writeJSON(w, http.StatusServiceUnavailable, Liveness{Reason: err.Error()})
			return
		}
		writeJSON(w, http.StatusOK, Liveness{Live: true})
	}
}

// Readiness is the body of /readyz.
type Readiness struct {
	Ready bool `json:"ready"`
	// Level is the level that was asked for.
	Level gobridge.ServiceLevel `json:"level"`
	// Role is that of [gobridge.BridgeHealth].
	Role    string            `json:"role,omitempty"`
	Reasons []gobridge.Reason `json:"reasons"`
}

func readyz(b Bridge) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		level := gobridge.ServiceLevel(r.URL.Query().Get("level"))
		switch level {
		case "":
			level = gobridge.LevelFull
		case gobridge.LevelConnected, gobridge.LevelSubscribed, gobridge.LevelFull:
		default:
			writeJSON(w, http.StatusBadRequest, Error{
				Error: "unknown level " + string(level),
				Hint:  "levels: connected, subscribed, full; without one: full",
			})
			return
		}
		reasons, role := b.Ready(level), b.Health().Role
		if len(reasons) > 0 {
			writeJSON(w, http.StatusServiceUnavailable, Readiness{Level: level, Role: role, Reasons: reasons})
			return
		}
		writeJSON(w, http.StatusOK, Readiness{Ready: true, Level: level, Role: role, Reasons: []gobridge.Reason{}})
	}
}

// deephealth always answers 200: the status codes for probes are those of
// /readyz, and whoever asks for details wants them most when something is wrong.
func deephealth(b Bridge) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		h := b.Health()
		if h.Sessions == nil {
			h.Sessions = []gobridge.SessionStatus{}
		}
		if h.Routes == nil {
			h.Routes = []gobridge.RouteHealth{}
		}
		writeJSON(w, http.StatusOK, h)
	}
}

var indexPage = template.Must(template.New("index").Parse(`<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="color-scheme" content="light dark">
<meta name="viewport" content="width=device-width">
<title>GoBridge {{.}}</title>
<h1>GoBridge {{.}}</h1>
<ul>
<li><a href="/livez">/livez</a>: does the process work
<li><a href="/readyz">/readyz</a>: does the bridge do its whole job, and if not, why
  (<a href="/readyz?level=connected">connected</a>, <a href="/readyz?level=subscribed">subscribed</a>)
<li><a href="/metrics">/metrics</a>: Prometheus metrics
<li><a href="/api/v1/monitor/deephealth">/api/v1/monitor/deephealth</a>: sessions and routes in detail
<li><a href="/api/v1/monitor/topology">/api/v1/monitor/topology</a>: what is connected to what
</ul>
</html>
`))

func index(b Bridge) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		// An error here is a client that went away.
		_ = indexPage.Execute(w, b.Health().BridgeID)
	}
}
