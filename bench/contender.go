package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// contender is one way from a source broker to a destination broker.
type contender struct {
	name string
	peer string // the contender to which this one is compared, round by round; "" for none

	// window is how many messages the bridge may hold unacknowledged: its
	// max_in_flight and receive_maximum, or mosquitto's max_inflight_messages. 0 is
	// the bridge's default.
	window int
	// outbox: delivery_mode shared_outbox.
	outbox bool

	kind kind
}

type kind int

const (
	direct      kind = iota // one broker, no bridge: the yardstick
	insideOne               // the source broker is mosquitto with a bridge in its config
	ofMosquitto             // a mosquitto process that only bridges
	ofGobridge              // a gobridge process
)

// separate says whether the bridge is a process of its own.
func (k kind) separate() bool { return k == ofMosquitto || k == ofGobridge }

// contenders is everything that can be measured, in the order of the report.
var contenders = []contender{
	{name: "direct", kind: direct},
	{name: "mosquitto-inside", kind: insideOne, window: brokerWindow},
	{name: "mosquitto-200", kind: ofMosquitto, window: 200},
	{name: "mosquitto-1000", kind: ofMosquitto, window: 1000},
	{name: "gobridge", kind: ofGobridge, peer: "mosquitto-200"},
	{name: "gobridge-1000", kind: ofGobridge, window: 1000, peer: "mosquitto-1000"},
	{name: "gobridge-outbox", kind: ofGobridge, outbox: true, peer: "gobridge"},
	{name: "gobridge-outbox-1000", kind: ofGobridge, window: 1000, outbox: true, peer: "gobridge-1000"},
}

// contenderNamed returns the contender of that name, which must exist.
func contenderNamed(name string) contender {
	return contenders[slices.IndexFunc(contenders, func(c contender) bool { return c.name == name })]
}

// peerOf returns the name of a contender's peer, or "".
func peerOf(name string) string { return contenderNamed(name).peer }

// maxSize is the largest payload, in bytes: what gobridge accepts with a window over
// the default (see gobridgeConfig).
const maxSize = 64 << 10

// brokerWindow is the max_inflight_messages of the brokers and the window of the fake
// ones.
const brokerWindow = 1000

// programs are the binaries under test and how brokers are configured.
type programs struct {
	mosquitto   string // path; "" when it is not installed
	gobridge    string // path; "" until it is built
	persistence bool   // of the two brokers
}

// launch starts the bridge of c in dir, from the broker at source to the one at sink
// (host:port).
func (p *programs) launch(c contender, dir, source, sink string) (*process, error) {
	if c.kind == ofGobridge {
		file := filepath.Join(dir, "gobridge.yaml")
		if err := os.WriteFile(file, []byte(gobridgeConfig(dir, source, sink, c.window, c.outbox)), 0o600); err != nil {
			return nil, err
		}
		return startProcess("bridge", dir, p.gobridge, "run", "-c", file)
	}
	port, err := freePort() // mosquitto wants a listener, used or not
	if err != nil {
		return nil, err
	}
	lines := mosquittoConfig(port, c.window)
	lines = append(lines, mosquittoConnection("source", source, "in")...)
	lines = append(lines, mosquittoConnection("sink", sink, "out")...)
	return p.startMosquitto("bridge", dir, lines)
}

// startBroker starts a mosquitto broker in dir and waits until it answers a CONNECT.
func (p *programs) startBroker(ctx context.Context, name, dir string, bridge ...string) (b *process, addr string, err error) {
	for range 5 { // between the choice of a port and the bind somebody may take it
		var port int
		if port, err = freePort(); err != nil {
			return nil, "", err
		}
		lines := mosquittoConfig(port, brokerWindow)
		if p.persistence {
			lines = append(lines, "persistence true", "persistence_location "+dir+"/", "persistence_file "+name+".db")
		}
		if b, err = p.startMosquitto(name, dir, append(lines, bridge...)); err != nil {
			return nil, "", err
		}
		addr = fmt.Sprintf("127.0.0.1:%d", port)
		if err = waitBroker(ctx, b, addr); err == nil {
			return b, addr, nil
		}
		err = errors.Join(err, b.stop())
		if ctx.Err() != nil {
			break
		}
	}
	return nil, "", err
}

func (p *programs) startMosquitto(name, dir string, lines []string) (*process, error) {
	file := filepath.Join(dir, name+".conf")
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		return nil, err
	}
	return startProcess(name, dir, p.mosquitto, "-c", file)
}

func waitBroker(ctx context.Context, b *process, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, handshakeLimit)
	defer cancel()
	for {
		l, err := dial(addr, "probe", stampSize, false)
		if err == nil {
			l.close()
			return nil
		}
		select {
		case <-b.exited:
			return fmt.Errorf("%s ended at its start: %s", b.name, b.tail())
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer: %w", b.name, err)
		case <-time.After(5 * time.Millisecond): // nothing tells when a foreign process listens
		}
	}
}

// mosquittoConfig holds the limits that keep mosquitto from dropping messages. user
// root only keeps a broker that root started able to use its directory.
func mosquittoConfig(port, window int) []string {
	return []string{
		"user root",
		"log_dest stderr", "log_type error", "log_type warning",
		"max_queued_messages 10000000", "max_queued_bytes 0",
		fmt.Sprintf("max_inflight_messages %d", window),
		fmt.Sprintf("listener %d 127.0.0.1", port),
		"allow_anonymous true",
	}
}

// mosquittoConnection is one bridge connection at QoS 1 over MQTT v5. mosquitto 2.0
// has no window of its own for bridges: max_inflight_messages of the process is it.
func mosquittoConnection(name, addr, direction string) []string {
	return []string{
		"connection " + name, "address " + addr, "bridge_protocol_version mqttv50",
		"cleansession false", "notifications false", "restart_timeout 1",
		fmt.Sprintf("topic %s %s 1", topic, direction),
	}
}

// gobridgeConfig is the shortest config for the job. A window over the default needs
// its share of the memory budget (P x 2 x window + 64 MiB and a little, where P is the
// largest payload + 128 KiB).
func gobridgeConfig(dir, source, sink string, window int, outbox bool) string {
	limits, policy := "", ""
	if window > 0 {
		limits = fmt.Sprintf(", receive_maximum: %d, max_payload_bytes: %d, ingress_memory_budget_bytes: %d",
			window, maxSize, window*2*(maxSize+(128<<10))+(68<<20))
		policy = fmt.Sprintf("\n    policy: { max_in_flight: %d }", window)
	}
	if outbox {
		policy += "\n    delivery_mode: shared_outbox"
	}
	return fmt.Sprintf(`bridge: { id: bench, data_dir: %q }
log: { level: warn }
http: { listen: "127.0.0.1:0" }
sessions:
  - { id: source, transport: mqtt, options: { session: { broker_url: "tcp://%s"%s } } }
  - { id: sink, transport: mqtt, options: { session: { broker_url: "tcp://%s" } } }
routes:
  - id: bench
    receiver: { session_id: source, topics: [ { topic: %s, qos: 1 } ] }
    bindings: [ { sender: { session_id: sink }, address: "{topic}" } ]%s
`, filepath.Join(dir, "data"), source, limits, sink, topic, policy)
}

// freePort returns a port that nobody listens on, below the range from which the
// kernel takes source ports: a client that redials a port in that range can be
// connected to itself.
func freePort() (int, error) {
	var last error
	for range 100 {
		port := 12000 + rand.IntN(20000)
		ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			last = err
			continue
		}
		return port, ln.Close()
	}
	return 0, fmt.Errorf("no free port from 12000 to 32000 in 100 tries: %w", last)
}

// findMosquitto returns the path of mosquitto, which many systems keep out of PATH,
// or "".
func findMosquitto() string {
	for _, dir := range append(filepath.SplitList(os.Getenv("PATH")), "/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin") {
		if path, err := exec.LookPath(filepath.Join(cmp.Or(dir, "."), "mosquitto")); err == nil {
			return path
		}
	}
	return ""
}

// buildGobridge builds the daemon of the module around the working directory as
// releases are built, into dir.
func buildGobridge(ctx context.Context, dir string) (string, error) {
	gomod, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOMOD: %w", err)
	}
	path := filepath.Join(dir, "gobridge")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", path, "./cmd/gobridge")
	build.Dir = filepath.Dir(strings.TrimSpace(string(gomod)))
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build ./cmd/gobridge: %w\n%s", err, out)
	}
	return path, nil
}
