package admin

import (
	"encoding/json"
	"net/http"
)

// Error is the body of every answer that is not what was asked for.
type Error struct {
	Error string `json:"error"`
	Hint  string `json:"hint,omitempty"`
}

// writeJSON answers with v, indented for people who use curl.
func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		status = http.StatusInternalServerError
		body, _ = json.Marshal(Error{Error: "encode the answer: " + err.Error()})
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// The client may be gone; there is nobody left to tell.
	_, _ = w.Write(append(body, '\n'))
}

// jsonErrors puts the answers that mux gives by itself, 404 and 405, into the
// one shape of errors. The Allow header of the mux stays.
func jsonErrors(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h, pattern := mux.Handler(r)
		if pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		own := &statusRecorder{header: w.Header()}
		h.ServeHTTP(own, r)
		e := Error{Error: "no such path: " + r.URL.Path, Hint: "GET / lists the paths"}
		if own.status == http.StatusMethodNotAllowed {
			e = Error{Error: r.Method + " is not allowed on " + r.URL.Path, Hint: "allowed: " + w.Header().Get("Allow")}
		}
		writeJSON(w, own.status, e)
	})
}

// statusRecorder keeps the status and the headers of an answer and drops its body.
type statusRecorder struct {
	header http.Header
	status int
}

func (s *statusRecorder) Header() http.Header         { return s.header }
func (s *statusRecorder) WriteHeader(status int)      { s.status = status }
func (s *statusRecorder) Write(b []byte) (int, error) { return len(b), nil }
