package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gobridge/gobridge/bridgetest"
)

const (
	// patience bounds waits for what should take a moment.
	patience = 20 * time.Second
	// sizeLimit is what a destination takes of a payload; more is refused with 0x83,
	// which may pass, see relay.
	sizeLimit = 2000
	checker   = "checker" // user name and password of the run itself
)

// end is a broker with the link that the bridge has to it.
type end struct {
	t      *testing.T
	broker *bridgetest.Mosquitto
	link   *bridgetest.Proxy
	acl    string // file, "" where the bridge may do everything
	login  string // credential file of the bridge
	logins int    // passwords so far
}

// newSource starts the source broker. It has no ACL: with one, mosquitto 2.0.11 drops
// what comes for a client between a reload that throws it out and its next login.
func newSource(t *testing.T) *end {
	t.Helper()
	return startEnd(t, &end{}, bridgetest.MosquittoConfig{LogPublishes: true})
}

func newDest(t *testing.T) *end {
	t.Helper()
	e := &end{t: t, acl: filepath.Join(t.TempDir(), "acl")}
	e.permit(true)
	e = startEnd(t, e, bridgetest.MosquittoConfig{LogPublishes: logDir() != "", MessageSizeLimit: sizeLimit, Extra: []string{"acl_file " + e.acl}})
	e.link.SetTarget(startRelay(t, e.broker.Addr()).ln.Addr().String())
	return e
}

func startEnd(t *testing.T, e *end, cfg bridgetest.MosquittoConfig) *end {
	t.Helper()
	e.t, e.login = t, filepath.Join(t.TempDir(), "login.json")
	e.writeLogin()
	cfg.Users = e.users()
	e.broker = bridgetest.StartMosquitto(t, cfg)
	e.link = bridgetest.NewProxy(t, e.broker.Addr())
	return e
}

func (e *end) password() string { return fmt.Sprintf("S3cr3t-%d", e.logins) }

func (e *end) users() map[string]string {
	return map[string]string{"bridge": e.password(), checker: checker}
}

func (e *end) writeLogin() {
	e.t.Helper()
	text := fmt.Sprintf(`{"username":"bridge","password":%q}`, e.password())
	err := os.WriteFile(e.login+".new", []byte(text), 0o600)
	if err == nil {
		err = os.Rename(e.login+".new", e.login)
	}
	if err != nil {
		e.t.Fatalf("write credential: %v", err)
	}
}

// rotate gives the bridge another password.
func (e *end) rotate() {
	e.logins++
	e.broker.SetUsers(e.users())
	e.writeLogin()
}

// permit says whether the bridge may publish what is taken sometimes.
func (e *end) permit(all bool) {
	e.t.Helper()
	var text strings.Builder
	text.WriteString("user " + checker + "\ntopic readwrite #\nuser bridge\ntopic read #\n")
	for _, l := range []leaf{plain, besides, poison, expiring, sometimes} {
		if all || l != sometimes {
			text.WriteString(fmt.Sprintf("topic write out/+/in/+/%s\n", l))
		}
	}
	if err := os.WriteFile(e.acl, []byte(text.String()), 0o644); err != nil {
		e.t.Fatalf("write ACL: %v", err)
	}
	if e.broker != nil && e.broker.Process() != nil {
		e.broker.Process().Signal(syscall.SIGHUP)
	}
}

// logDir is where a round leaves all that brokers and bridge have logged, "" for
// nowhere.
func logDir() string { return os.Getenv("CHAOS_LOG") }

// keepLogs writes the logs of the round, and what arrived first when. Those of brokers show every packet.
func (w *world) keepLogs(out *sink) {
	if logDir() == "" {
		return
	}
	logs := map[string]string{"arrivals": out.String(), "source": w.source.broker.Log(), "bridge": w.logs.String() + w.bridge.Stderr()}
	for i, d := range w.dests {
		logs[fmt.Sprintf("destination-%d", i)] = d.broker.Log()
	}
	for name, text := range logs {
		if err := os.WriteFile(filepath.Join(logDir(), name+".log"), []byte(text), 0o600); err != nil {
			w.t.Errorf("keep logs: %v", err)
		}
	}
}

// crashed reports whether the broker ended without being told to.
func (e *end) crashed() bool {
	p := e.broker.Process()
	if p == nil {
		return false
	}
	select {
	case <-p.Exited():
		return true
	default:
		return false
	}
}

// world is a round at work.
type world struct {
	t       *testing.T
	plan    *plan
	program string
	source  *end
	dests   []*end
	disk    string // directory that tells the disk of the bridge what to refuse
	config  string
	bridge  *bridgetest.Process
	lives   int
	logs    strings.Builder // of earlier lives
	// stopping: it was killed or told to stop; diskFailed: its disk refused writes in
	// this life, so that it may have ended by itself.
	stopping, diskFailed bool

	url string // of its HTTP listener, "" until it is known
	// depth is what was in the outbox of each route when this life of the bridge began;
	// nil when that is not known.
	depth  map[string]int
	faults []happening // so far
	said   []string    // violations by the bridge itself
}

func newWorld(t *testing.T, p *plan, program string) *world {
	t.Helper()
	w := &world{t: t, plan: p, program: program, source: newSource(t), disk: t.TempDir()}
	for range p.dests {
		w.dests = append(w.dests, newDest(t))
	}
	w.writeConfig()
	return w
}

// writeConfig writes the config file into a directory of its own.
func (w *world) writeConfig() {
	w.t.Helper()
	dir := w.t.TempDir()
	text, err := json.MarshalIndent(w.file(filepath.Join(dir, "data")), "", " ")
	if err != nil {
		w.t.Fatal(err)
	}
	w.config = filepath.Join(dir, "gobridge.json")
	if err := os.WriteFile(w.config, text, 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// doc is a mapping of the config file.
type doc map[string]any

func session(id, mode string, e *end) doc {
	return doc{
		"id": id, "transport": "mqtt", "session_mode": mode, "credentials_uri": "file://" + e.login,
		"options": doc{"session": doc{
			"broker_url": e.link.URL(), "client_id": id, "keep_alive": 2, "connect_timeout": "1s", "reconnect_timeout": "1s",
			"reconcile_timeout": "2s", "reconnect_delay": "10ms", "reconnect_max_delay": "300ms", "allow_plaintext_credentials": true,
			"max_payload_bytes": 8192,
		}},
	}
}

// file returns the config.
func (w *world) file(dataDir string) doc {
	sessions := []doc{}
	have := map[string]bool{}
	routes := []doc{}
	for i := range w.plan.routes {
		r := &w.plan.routes[i]
		mode := "persistent"
		if r.ephemeral {
			mode = "ephemeral"
		}
		sessions = append(sessions, session("source-"+r.id, mode, w.source))
		filter := "in/" + r.id + "/#"
		if r.share {
			filter = "$share/chaos/" + filter
		}
		bindings := []doc{}
		for n, d := range r.bindings {
			id := fmt.Sprintf("destination-%d-%s", d, r.destMode)
			if !have[id] {
				have[id] = true
				sessions = append(sessions, session(id, r.destMode, w.dests[d]))
			}
			bindings = append(bindings, doc{
				"id": r.bindingID(n), "address": "out/" + r.bindingID(n) + "/{topic}",
				"sender": doc{"session_id": id, "options": doc{"sender": doc{"qos": r.sendQoS}}},
			})
		}
		policy := doc{
			"max_in_flight": r.inFlight, "max_outbox_depth": r.depth, "send_timeout": "2s", "send_retry_budget": "2s",
			"max_replay_attempts": 2, "replay_budget": "2s", "backoff": doc{"initial_interval": "50ms", "max_interval": "200ms"},
		}
		if r.dropFailed {
			policy["on_permanent_failure"] = "drop"
		}
		if r.dropOld {
			policy["on_expired"] = "drop"
		}
		route := doc{
			"id": r.id, "bindings": bindings, "policy": policy,
			"receiver": doc{"session_id": "source-" + r.id, "topics": []doc{{"topic": filter, "qos": r.filterQoS}}},
		}
		if len(bindings) > 1 {
			route["dispatch_mode"] = "fan_out"
		}
		if r.outbox {
			route["delivery_mode"] = "shared_outbox"
		}
		routes = append(routes, route)
	}
	file := doc{
		"bridge":   doc{"id": "chaos", "data_dir": dataDir, "shutdown_timeout": "5s", "drain_timeout": "3s"},
		"http":     doc{"listen": "127.0.0.1:0"},
		"sessions": sessions, "routes": routes,
	}
	if w.plan.volatile {
		file["stores"] = doc{"outbox": doc{"type": "memory"}}
	}
	return file
}

// command returns a command of the bridge.
func (w *world) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, w.program, args...)
	cmd.Env = append(os.Environ(), "GOBRIDGE_CHAOS_DISK="+w.disk)
	return cmd
}

// start starts the bridge and waits for nothing.
func (w *world) start() {
	w.t.Helper()
	w.depth = w.stored()
	if w.bridge != nil {
		w.logs.WriteString(w.bridge.Stderr())
	}
	w.bridge = bridgetest.StartCommand(w.t, w.command(context.Background(), "run", "-c", w.config))
	w.lives++
	w.diskFailed = w.diskFails()
	w.url = ""
}

// stored returns how many records of each route the stopped bridge keeps, nil when
// its store cannot tell.
func (w *world) stored() map[string]int {
	depth := map[string]int{}
	if w.plan.volatile || w.lives == 0 {
		return depth
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	out, err := w.command(ctx, "outbox", "stats", "-c", w.config, "--json").Output()
	var status struct {
		Partitions []struct {
			BindingID string `json:"binding_id"`
			Depth     int    `json:"depth"`
		} `json:"partitions"`
	}
	if err != nil || json.Unmarshal(out, &status) != nil {
		return nil
	}
	for _, p := range status.Partitions {
		route, _, _ := strings.Cut(p.BindingID, "-")
		depth[route] += p.Depth
	}
	return depth
}

// exited tells whether the bridge has ended.
func (w *world) exited() bool {
	select {
	case <-w.bridge.Exited():
		return true
	default:
		return false
	}
}

// ended looks at what a bridge that has ended said, and at its exit code.
func (w *world) ended(how string, allowed ...int) {
	code := w.bridge.Wait(patience)
	if !slices.Contains(allowed, code) && !w.diskFailed {
		w.accuse("%s: exit code %d, want one of %v", how, code, allowed)
	}
	for line := range strings.Lines(w.bridge.Stderr()) {
		for _, bad := range []string{"panic:", "fatal error:", "DATA RACE", "level=ERROR msg=\"store was damaged", "salvaged"} {
			if strings.Contains(line, bad) {
				w.accuse("life %d wrote: %s", w.lives, strings.TrimSpace(line))
			}
		}
	}
}

func (w *world) accuse(format string, args ...any) {
	w.said = append(w.said, fmt.Sprintf(format, args...))
}

var listening = regexp.MustCompile(`http listener up".*addr"?[=:]"?([0-9.]+:[0-9]+)`)

// get fetches a path of the bridge. Status 0 is no answer.
func (w *world) get(path string) (status int, body string) {
	if w.url == "" {
		found := listening.FindStringSubmatch(w.bridge.Stderr())
		if found == nil {
			return 0, "the http listener is not up"
		}
		w.url = "http://" + found[1]
	}
	transport := &http.Transport{DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url+path, nil)
	if err != nil {
		return 0, err.Error()
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

// samples are the values of /metrics by series: name{labels}.
type samples map[string]float64

func (w *world) metrics() samples {
	s := make(samples)
	_, body := w.get("/metrics")
	for line := range strings.Lines(body) {
		line = strings.TrimSpace(line)
		i := strings.LastIndexByte(line, ' ')
		if i < 0 || line[0] == '#' {
			continue
		}
		if value, err := strconv.ParseFloat(line[i+1:], 64); err == nil {
			s[line[:i]] = value
		}
	}
	return s
}

// sum adds the series of a metric that have the label, written name="value"; "" is
// all.
func (s samples) sum(name, label string) (total float64) {
	for series, value := range s {
		got, labels, _ := strings.Cut(series, "{")
		if got == "gobridge_"+name && strings.Contains(labels, label) {
			total += value
		}
	}
	return total
}
