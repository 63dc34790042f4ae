package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/bridgetest"
)

// The names that config gives to what it describes.
const (
	sourceID = "bridge-source" // client ids
	destID   = "bridge-destination"
)

// patience bounds waits for what should take a moment.
const patience = 20 * time.Second

// doc is a mapping of a config file.
type doc map[string]any

// config describes a bridge with one route, r, from in/# at the source to
// out/{topic} at the destination. Tests change the maps before they start it.
type config struct {
	bridge, log   doc
	stores        doc
	source, dest  doc // options.session
	sourceSession doc // further keys of the sessions
	destSession   doc
	topics        []doc
	sender        doc // options.sender
	address       string
	policy        doc
}

// between returns the config of a bridge from one broker URL to another that
// reconnects quickly and keeps the other defaults.
func between(t *testing.T, source, dest string) *config {
	session := func(url, clientID string) doc {
		return doc{"broker_url": url, "client_id": clientID, "reconnect_delay": "50ms", "reconnect_max_delay": "500ms"}
	}
	return &config{
		bridge: doc{"id": "e2e", "data_dir": t.TempDir()}, log: doc{}, stores: doc{},
		source: session(source, sourceID), dest: session(dest, destID),
		sourceSession: doc{}, destSession: doc{},
		topics: []doc{{"topic": "in/#", "qos": 1}}, sender: doc{}, address: "out/{topic}", policy: doc{},
	}
}

// session returns one entry of sessions.
func session(id string, more, options doc) doc {
	s := doc{"id": id, "transport": "mqtt", "options": doc{"session": options}}
	maps.Copy(s, more)
	return s
}

// file returns the config as a document.
func (c *config) file() doc {
	return doc{
		"bridge": c.bridge, "log": c.log, "stores": c.stores, "http": doc{"listen": "127.0.0.1:0"},
		"sessions": []doc{session("source", c.sourceSession, c.source), session("destination", c.destSession, c.dest)},
		"routes": []doc{{
			"id":       "r",
			"receiver": doc{"id": "in", "session_id": "source", "topics": c.topics},
			"bindings": []doc{{
				"id": "b", "address": c.address,
				"sender": doc{"session_id": "destination", "options": doc{"sender": c.sender}},
			}},
			"policy": c.policy,
		}},
	}
}

// start writes the config and runs it.
func (c *config) start(t *testing.T, env ...string) *bridge {
	t.Helper()
	return run(t, write(t, c.file()), env...)
}

// write puts a config into a file. The bridge reads JSON as YAML.
func write(t *testing.T, file doc) string {
	t.Helper()
	text, err := json.MarshalIndent(file, "", "  ")
	if err != nil {
		t.Fatalf("write config: %v", err)
	}
	path := filepath.Join(t.TempDir(), "gobridge.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatalf("write config: %v", err)
	}
	return path
}

// bridge is a running daemon.
type bridge struct {
	*bridgetest.Process
	t   *testing.T
	url string // of its HTTP listener
}

var listening = regexp.MustCompile(`http listener up".*addr"?[=:]"?([0-9.]+:[0-9]+)`)

// run starts the daemon on a config file and waits for its HTTP listener. It ends the
// test when there is none.
func run(t *testing.T, file string, env ...string) *bridge {
	t.Helper()
	cmd := exec.Command(bridgetest.BuildBinary(t), "run", "-c", file)
	cmd.Dir = filepath.Dir(file) // the default data_dir is relative
	cmd.Env = append(os.Environ(), env...)
	b := &bridge{Process: bridgetest.StartCommand(t, cmd), t: t}
	b.WaitOutput("http listener up", patience)
	found := listening.FindStringSubmatch(b.Stderr())
	if found == nil {
		t.Fatalf("no address of the http listener in:\n%s", b.Stderr())
	}
	b.url = "http://" + found[1]
	return b
}

// command runs a subcommand of the daemon to its end and returns what it wrote.
func command(t *testing.T, env []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.Command(bridgetest.BuildBinary(t), args...)
	cmd.Env = append(os.Environ(), env...)
	p := bridgetest.StartCommand(t, cmd)
	code = p.Wait(patience)
	return p.Stdout(), p.Stderr(), code
}

// waitReady waits until the bridge is at a level; "" is full.
func (b *bridge) waitReady(level string) {
	b.t.Helper()
	bridgetest.WaitReady(b.t, b.url, level, patience)
}

// get fetches a path. A bridge that does not answer gives status 0.
func (b *bridge) get(path string) (status int, body string) {
	b.t.Helper()
	transport := &http.Transport{DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.url+path, nil)
	if err != nil {
		b.t.Fatalf("GET %s: %v", path, err)
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(text)
}

// health returns deephealth.
func (b *bridge) health() gobridge.BridgeHealth {
	b.t.Helper()
	status, body := b.get("/api/v1/monitor/deephealth")
	var h gobridge.BridgeHealth
	if err := json.Unmarshal([]byte(body), &h); err != nil || status != http.StatusOK {
		b.t.Fatalf("deephealth answers %d %s", status, body)
	}
	return h
}

// sessionHealth returns one session of deephealth.
func (b *bridge) sessionHealth(id string) gobridge.SessionStatus {
	b.t.Helper()
	for _, s := range b.health().Sessions {
		if s.ID == id {
			return s
		}
	}
	b.t.Fatalf("deephealth has no session %s", id)
	return gobridge.SessionStatus{}
}

// readiness is the body of /readyz.
type readiness struct {
	Ready   bool              `json:"ready"`
	Reasons []gobridge.Reason `json:"reasons"`
}

// ready asks /readyz at level full.
func (b *bridge) ready() (int, readiness) {
	b.t.Helper()
	status, body := b.get("/readyz")
	var r readiness
	if err := json.Unmarshal([]byte(body), &r); err != nil {
		b.t.Fatalf("/readyz answers %d %s", status, body)
	}
	return status, r
}

// waitNotReady waits until /readyz is 503 with a reason that names the session or
// route, and returns the reason and how long it took.
func (b *bridge) waitNotReady(id string, timeout time.Duration) (reason string, took time.Duration) {
	b.t.Helper()
	began := time.Now()
	var last readiness
	b.eventually(timeout, "/readyz names "+id, func() bool {
		var status int
		status, last = b.ready()
		if status != http.StatusServiceUnavailable || last.Ready {
			return false
		}
		for _, r := range last.Reasons {
			if (r.SessionID == id || r.RouteID == id) && r.Reason != "" {
				reason = r.Reason
				return true
			}
		}
		return false
	})
	return reason, time.Since(began)
}

// eventually polls what only the bridge itself can tell.
func (b *bridge) eventually(timeout time.Duration, what string, ok func() bool) {
	b.t.Helper()
	if !within(timeout, ok) {
		_, ready := b.ready()
		b.t.Fatalf("not within %v: %s; readiness: %+v", timeout, what, ready)
	}
}

// within polls ok until it is true.
func within(timeout time.Duration, ok func() bool) bool {
	deadline := time.Now().Add(timeout)
	for {
		if ok() {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// stop ends the bridge with SIGTERM and expects that it left nothing behind.
func (b *bridge) stop() {
	b.t.Helper()
	if code := b.Term(40 * time.Second); code != 0 {
		b.t.Errorf("exit code %d after SIGTERM, want 0", code)
	}
}

// logged returns the lines of the bridge's log that hold all of the texts.
func (b *bridge) logged(texts ...string) []string {
	var lines []string
	for line := range strings.Lines(b.Stderr()) {
		all := true
		for _, text := range texts {
			all = all && strings.Contains(line, text)
		}
		if all {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// settled waits until no session owes an acknowledgement.
func (b *bridge) settled() {
	b.t.Helper()
	b.eventually(patience, "no unsettled delivery", func() bool {
		for _, s := range b.health().Sessions {
			if s.UnsettledCount > 0 {
				return false
			}
		}
		return true
	})
}

// megabytes is for figures in the log.
func megabytes(bytes int64) string { return fmt.Sprintf("%.1f MB", float64(bytes)/1e6) }
