package bridgetest

import (
	"bufio"
	"cmp"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha512"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// MosquittoConfig describes a mosquitto broker. The zero value is a persistent
// broker on 127.0.0.1 that accepts everybody and never drops a queued message.
type MosquittoConfig struct {
	Volatile             bool // no persistence: a restart forgets everything
	MaxQueuedMessages    int  // per client; defaults to 1,000,000. What comes after it is acknowledged and dropped
	MaxInflightMessages  int  // Receive Maximum announced, and send window towards clients that announce none (a client's own replaces it, larger or smaller); defaults to 1,000
	MaxPacketSize        int  // bytes, announced as Maximum Packet Size; 0 for none
	MessageSizeLimit     int  // bytes of payload, not announced: larger ones are answered 0x83; 0 for none
	Users                map[string]string
	ACL                  string        // text of an acl_file
	TLS                  *Certs        // TLS on every listener
	RequireClientCert    bool          // with TLS
	UseIdentityAsUser    bool          // with RequireClientCert: the common name is the user name
	Websocket            bool          // one more listener that speaks MQTT over websocket
	Extra                []string      // further lines of mosquitto.conf: global ones, or of the MQTT listener
	StartTimeout         time.Duration // defaults to 10 s
	LogPublishes         bool          // log every packet; slow
	AllowAnonymousAsWell bool          // with Users: a client without credentials is accepted
}

// Mosquitto is a running mosquitto broker. Its methods may be called from any
// goroutine, one at a time.
type Mosquitto struct {
	t      testing.TB
	cfg    MosquittoConfig
	binary string
	dir    string
	port   int
	wsPort int

	mu      sync.Mutex
	process *Process // nil while stopped
	earlier strings.Builder
}

// RequireMosquitto returns the path of the mosquitto program. Without one the test
// is skipped with a message that begins with "NOT RUN:", or fails when
// GOBRIDGE_REQUIRE_MOSQUITTO is 1.
func RequireMosquitto(t testing.TB) string {
	t.Helper()
	dirs := append(filepath.SplitList(os.Getenv("PATH")), "/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin")
	return requireMosquitto(t, dirs)
}

func requireMosquitto(t testing.TB, dirs []string) string {
	t.Helper()
	for _, dir := range dirs {
		if path, err := exec.LookPath(filepath.Join(dir, "mosquitto")); err == nil {
			return path
		}
	}
	const missing = "NOT RUN: mosquitto is not installed (apt-get install mosquitto, or brew install mosquitto); this test needs a real broker"
	if os.Getenv("GOBRIDGE_REQUIRE_MOSQUITTO") == "1" {
		t.Fatal(missing)
	}
	t.Skip(missing)
	return ""
}

// StartMosquitto starts a broker with its own files and random ports, waits until it
// answers a CONNECT and stops it in the test's Cleanup. It ends the test when the
// broker does not come up.
func StartMosquitto(t testing.TB, cfg MosquittoConfig) *Mosquitto {
	t.Helper()
	m := &Mosquitto{t: t, cfg: cfg, binary: RequireMosquitto(t), dir: t.TempDir()}
	t.Cleanup(func() {
		m.end(os.Kill)
		if t.Failed() {
			t.Logf("mosquitto on %s logged:\n%s", m.Addr(), tail(m.Log()))
		}
	})
	// Between the choice of a port and the broker's bind somebody else may take it.
	var err error
	for range 5 {
		m.port, m.wsPort = freePort(t), freePort(t)
		if err = m.writeConfig(); err != nil {
			t.Fatalf("configure mosquitto: %v", err)
		}
		if err = m.launch(); err == nil || !errors.Is(err, errPortTaken) {
			break
		}
	}
	if err != nil {
		t.Fatalf("start mosquitto: %v\n%s", err, tail(m.Log()))
	}
	return m
}

// Addr returns host:port of the MQTT listener.
func (m *Mosquitto) Addr() string { return fmt.Sprintf("127.0.0.1:%d", m.port) }

// URL returns the MQTT listener as tcp:// or, with TLS, ssl:// URL.
func (m *Mosquitto) URL() string {
	if m.cfg.TLS != nil {
		return "ssl://" + m.Addr()
	}
	return "tcp://" + m.Addr()
}

// WebsocketURL returns the websocket listener as ws:// or, with TLS, wss:// URL.
func (m *Mosquitto) WebsocketURL() string {
	if m.cfg.TLS != nil {
		return fmt.Sprintf("wss://127.0.0.1:%d", m.wsPort)
	}
	return fmt.Sprintf("ws://127.0.0.1:%d", m.wsPort)
}

// PID returns the process id of the running broker, 0 while it is stopped.
func (m *Mosquitto) PID() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.process == nil {
		return 0
	}
	return m.process.PID()
}

// Log returns what the broker has logged, over all its starts.
func (m *Mosquitto) Log() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.process == nil {
		return m.earlier.String()
	}
	return m.earlier.String() + m.process.Stderr()
}

// Process returns the running broker as a process (for its memory and CPU time), nil
// while it is stopped.
func (m *Mosquitto) Process() *Process {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.process
}

// Stop ends the broker with SIGTERM: it saves all sessions and queued messages.
func (m *Mosquitto) Stop() {
	m.t.Helper()
	m.end(syscall.SIGTERM)
}

// Kill ends the broker with SIGKILL: what it took since the last autosave (up to a
// second) is gone, sessions included.
func (m *Mosquitto) Kill() {
	m.t.Helper()
	m.end(os.Kill)
}

// Start starts the broker again on the same port with the state it saved.
func (m *Mosquitto) Start() {
	m.t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	err := m.launch()
	for errors.Is(err, errPortTaken) && time.Now().Before(deadline) {
		time.Sleep(20 * time.Millisecond) // the port is being given back
		err = m.launch()
	}
	if err != nil {
		m.t.Errorf("start mosquitto on %s again: %v\n%s", m.Addr(), err, tail(m.Log()))
	}
}

// Restart is Stop and Start.
func (m *Mosquitto) Restart() {
	m.t.Helper()
	m.Stop()
	m.Start()
}

// Pause stops the broker in its tracks (SIGSTOP): connections stay open and nobody
// answers.
func (m *Mosquitto) Pause() {
	m.t.Helper()
	if p := m.running("pause"); p != nil {
		freeze(p)
	}
}

// Resume lets a paused broker go on.
func (m *Mosquitto) Resume() {
	m.t.Helper()
	if p := m.running("resume"); p != nil {
		thaw(p)
	}
}

// SetUsers replaces the users of a broker that was started with some. A running one
// reloads them at once and ends the connections whose password is not right any more.
func (m *Mosquitto) SetUsers(users map[string]string) {
	m.t.Helper()
	m.cfg.Users = users
	if err := m.writeUsers(); err != nil {
		m.t.Fatalf("set the users of mosquitto on %s: %v", m.Addr(), err)
	}
	p := m.Process()
	if p == nil {
		return
	}
	const reloaded = "Reloading config."
	before := strings.Count(m.Log(), reloaded)
	p.Signal(syscall.SIGHUP)
	for deadline := time.Now().Add(10 * time.Second); strings.Count(m.Log(), reloaded) == before; {
		if time.Now().After(deadline) {
			m.t.Fatalf("mosquitto on %s did not reload its users", m.Addr())
		}
		time.Sleep(time.Millisecond) // its log is all that tells
	}
}

// running returns the process of the broker; without one what is to be done fails the
// test.
func (m *Mosquitto) running(what string) *Process {
	m.t.Helper()
	p := m.Process()
	if p == nil {
		m.t.Errorf("%s of mosquitto on %s: it is stopped", what, m.Addr())
	}
	return p
}

func (m *Mosquitto) end(sig os.Signal) {
	m.t.Helper()
	m.mu.Lock()
	p := m.process
	m.mu.Unlock()
	if p == nil {
		return
	}
	p.Signal(sig)
	thaw(p) // a paused process acts on SIGTERM only when it goes on
	p.Wait(20 * time.Second)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.earlier.WriteString(p.Stderr())
	m.process = nil
}

var errPortTaken = errors.New("port is taken")

// launch starts the program and waits for an answer to CONNECT.
func (m *Mosquitto) launch() error {
	cmd := exec.Command(m.binary, "-c", filepath.Join(m.dir, "mosquitto.conf"))
	p, err := startChild(m.t, cmd)
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.process = p
	m.mu.Unlock()
	deadline := time.Now().Add(cmp.Or(m.cfg.StartTimeout, 10*time.Second))
	for {
		err := m.probe()
		select {
		case <-p.Exited():
			taken := strings.Contains(p.Stderr(), "Address already in use")
			m.end(os.Kill)
			if taken {
				return errPortTaken
			}
			return fmt.Errorf("it ended with exit code %d", p.cmd.ProcessState.ExitCode())
		default:
		}
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			m.end(os.Kill)
			return fmt.Errorf("no answer to CONNECT on %s: %w", m.Addr(), err)
		}
		time.Sleep(5 * time.Millisecond) // nothing tells when a foreign process listens
	}
}

// probe is nil when the broker answered a CONNECT, with whatever reason code.
func (m *Mosquitto) probe() error {
	conn, err := net.DialTimeout("tcp", m.Addr(), time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
	if m.cfg.TLS != nil {
		conn = tls.Client(conn, m.cfg.TLS.ClientTLS(m.cfg.TLS.Client))
	}
	connect := &packets.Connect{ProtocolName: "MQTT", ProtocolVersion: 5, CleanStart: true, Properties: &packets.Properties{}}
	if _, err := connect.WriteTo(conn); err != nil {
		return err
	}
	answer, err := readPacket(bufio.NewReader(conn))
	if err != nil {
		return err
	}
	if answer.Type != packets.CONNACK {
		return fmt.Errorf("CONNECT was answered with %s", answer.PacketType())
	}
	_, err = (&packets.Disconnect{}).WriteTo(conn)
	return err
}

func (m *Mosquitto) writeConfig() error {
	cfg := m.cfg
	lines := []string{
		"user root",
		"log_dest stderr",
		"log_timestamp_format %H:%M:%S",
		"connection_messages true",
		fmt.Sprintf("max_inflight_messages %d", cmp.Or(cfg.MaxInflightMessages, 1000)),
		fmt.Sprintf("max_queued_messages %d", cmp.Or(cfg.MaxQueuedMessages, 1_000_000)),
		"max_queued_bytes 0",
		fmt.Sprintf("allow_anonymous %t", len(cfg.Users) == 0 || cfg.AllowAnonymousAsWell),
	}
	for _, kind := range []string{"error", "warning", "notice", "information"} {
		lines = append(lines, "log_type "+kind)
	}
	if cfg.LogPublishes {
		lines = append(lines, "log_type debug")
	}
	if !cfg.Volatile {
		lines = append(lines, "persistence true", "persistence_location "+m.dir+"/", "autosave_interval 1")
	}
	if cfg.MaxPacketSize > 0 {
		lines = append(lines, fmt.Sprintf("max_packet_size %d", cfg.MaxPacketSize))
	}
	if cfg.MessageSizeLimit > 0 {
		lines = append(lines, fmt.Sprintf("message_size_limit %d", cfg.MessageSizeLimit))
	}
	if len(cfg.Users) > 0 {
		lines = append(lines, "password_file "+m.usersFile())
		if err := m.writeUsers(); err != nil {
			return err
		}
	}
	if cfg.ACL != "" {
		if err := m.addFile(&lines, "acl_file", cfg.ACL); err != nil {
			return err
		}
	}
	lines = append(append(lines, m.listener(m.port)...), cfg.Extra...)
	if cfg.Websocket {
		lines = append(append(lines, m.listener(m.wsPort)...), "protocol websockets")
	}
	return os.WriteFile(filepath.Join(m.dir, "mosquitto.conf"), []byte(strings.Join(lines, "\n")+"\n"), 0o600)
}

func (m *Mosquitto) usersFile() string { return filepath.Join(m.dir, "password_file") }

func (m *Mosquitto) writeUsers() error {
	var users strings.Builder
	for name, password := range m.cfg.Users {
		hash, err := passwordHash(password)
		if err != nil {
			return err
		}
		fmt.Fprintf(&users, "%s:%s\n", name, hash)
	}
	return os.WriteFile(m.usersFile(), []byte(users.String()), 0o600)
}

// addFile writes the file behind a config key.
func (m *Mosquitto) addFile(lines *[]string, key, content string) error {
	path := filepath.Join(m.dir, key)
	*lines = append(*lines, key+" "+path)
	return os.WriteFile(path, []byte(content), 0o600)
}

func (m *Mosquitto) listener(port int) []string {
	lines := []string{fmt.Sprintf("listener %d 127.0.0.1", port)}
	if certs := m.cfg.TLS; certs != nil {
		lines = append(lines, "cafile "+certs.CAFile, "certfile "+certs.Server.CertFile, "keyfile "+certs.Server.KeyFile)
		lines = append(lines, fmt.Sprintf("require_certificate %t", m.cfg.RequireClientCert))
		lines = append(lines, fmt.Sprintf("use_identity_as_username %t", m.cfg.UseIdentityAsUser))
	}
	return lines
}

// passwordHash returns a line of a mosquitto password file: PBKDF2 with SHA-512.
func passwordHash(password string) (string, error) {
	const rounds = 101
	salt := make([]byte, 12)
	_, _ = rand.Read(salt) // never fails
	hash, err := pbkdf2.Key(sha512.New, password, salt, rounds, sha512.Size)
	if err != nil {
		return "", fmt.Errorf("hash password: %w", err)
	}
	text := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("$7$%d$%s$%s", rounds, text(salt), text(hash)), nil
}

// freePort returns a port that nobody listens on, below the range from which the
// kernel takes source ports: a client that redials a stopped broker in that range can
// be connected to itself (TCP simultaneous open) and keep the port from the broker.
func freePort(t testing.TB) int {
	t.Helper()
	for range 100 {
		port := 12000 + mathrand.IntN(20000)
		ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		_ = ln.Close()
		return port
	}
	t.Fatal("no free port between 12000 and 32000 on 127.0.0.1 in 100 tries")
	return 0
}
