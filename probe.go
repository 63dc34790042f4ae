package gobridge

// The states of a [ProbeStep].
const (
	ProbeOK      = "ok"
	ProbeWarning = "warning"
	ProbeFailed  = "failed"
)

// ProbeStep is one thing that a probe of an endpoint tried. No text in it holds a
// secret.
type ProbeStep struct {
	// Endpoint is where, empty for what is the same at all of them.
	Endpoint string `json:"endpoint"`
	// Step is one word: credential, dns, tcp, tls, websocket, login, limits.
	Step string `json:"step"`
	// State is ok, warning or failed. After a failure the endpoint is left.
	State string `json:"state"`
	// Detail is what was found, Hint what to do about it.
	Detail string `json:"detail"`
	Hint   string `json:"hint,omitempty"`
	// TookMS is how long it took, in milliseconds.
	TookMS float64 `json:"took_ms"`
}
