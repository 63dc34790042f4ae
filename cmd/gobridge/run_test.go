package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gobridge/gobridge"
)

const patience = 20 * time.Second

// daemon is a gobridge process.
type daemon struct {
	cmd   *exec.Cmd
	lines chan string
	log   bytes.Buffer
}

// startDaemon runs this test binary as gobridge: testscript.Main goes by the name
// of the program.
func startDaemon(t *testing.T, cfg string) *daemon {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("needs SIGTERM")
	}
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "gobridge")
	if err := os.Symlink(self, program); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "gobridge.yaml"), []byte(cfg), 0o600); err != nil {
		t.Fatal(err)
	}
	d := &daemon{cmd: exec.CommandContext(t.Context(), program, "run"), lines: make(chan string, 1000)}
	d.cmd.Dir = dir
	d.cmd.Env = append(os.Environ(), "TEST_PASSWORD=S3cr3t!$@")
	stderr, err := d.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { // ends with the output of the process
		defer close(d.lines)
		scan := bufio.NewScanner(io.TeeReader(stderr, &d.log))
		for scan.Scan() {
			d.lines <- scan.Text()
		}
	}()
	return d
}

// await returns the first line from here on that holds text.
func (d *daemon) await(t *testing.T, text string) string {
	t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case line, ok := <-d.lines:
			if !ok {
				t.Fatalf("the process ended without %q:\n%s", text, &d.log)
			}
			if strings.Contains(line, text) {
				return line
			}
		case <-deadline:
			t.Fatalf("no line with %q in %v", text, patience)
		}
	}
}

// wait returns the exit code and the whole log.
func (d *daemon) wait() (int, string) {
	for range d.lines {
	}
	_ = d.cmd.Wait()
	return d.cmd.ProcessState.ExitCode(), d.log.String()
}

// closedPort is an address at which nobody listens.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func runConfig(listen, broker string) string {
	return fmt.Sprintf(`bridge: { id: plant-7 }
log: { format: json, level: debug }
http: { listen: %q }
sessions:
  - { id: edge, transport: mqtt, options: { session: { broker_url: "tcp://%s", username: u, password: "${TEST_PASSWORD}", allow_plaintext_credentials: true } } }
  - { id: cloud, transport: mqtt, options: { session: { broker_url: "tcp://%s" } } }
routes:
  - id: up
    receiver: { session_id: edge, topics: [ { topic: "a/#" } ] }
    bindings: [ { sender: { session_id: cloud }, address: "b/{topic}" } ]
    policy: { allow_cycle: true }
`, listen, broker, broker)
}

func TestRunAnswersWhileItsBrokersAreAwayAndStopsOnSIGTERM(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, runConfig("127.0.0.1:0", closedPort(t)))
	var up struct{ Addr string }
	if err := json.Unmarshal([]byte(d.await(t, "http listener up")), &up); err != nil || up.Addr == "" {
		t.Fatalf("no address: %v", err)
	}
	resp, err := http.Get("http://" + up.Addr + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("readyz answers %s", resp.Status)
	}
	var out, errs bytes.Buffer
	if code := execute([]string{"status", "--json", "--url", "http://" + up.Addr}, &out, &errs); code != exitFailed {
		t.Errorf("status: exit code %d, stderr %s", code, &errs)
	}
	http.DefaultClient.CloseIdleConnections()
	var h gobridge.BridgeHealth
	if err := json.Unmarshal(out.Bytes(), &h); err != nil || h.BridgeID != "plant-7" || h.Ready || len(h.Sessions) != 2 {
		t.Errorf("status prints %s: %v", &out, err)
	}
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	code, log := d.wait()
	if code != exitOK {
		t.Errorf("exit code %d:\n%s", code, log)
	}
	if strings.Contains(log, "S3cr3t") {
		t.Errorf("a secret in the log:\n%s", log)
	}
	for line := range strings.Lines(log) {
		if !json.Valid([]byte(line)) {
			t.Errorf("no JSON: %s", line)
		}
	}
}

func TestRunWithATakenPortDoesNotStart(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	d := startDaemon(t, runConfig(l.Addr().String(), closedPort(t)))
	code, log := d.wait()
	if code != exitFailed || !strings.Contains(log, `"msg":"exiting","err":"http.listen: `) {
		t.Errorf("exit code %d, want %d and a line about http.listen:\n%s", code, exitFailed, log)
	}
}

func TestTheFirstSignalDrainsTheSecondStopsNow(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("needs SIGTERM")
	}
	exited := make(chan int, 1)
	ctx, done := untilSignal(t.Context(), slog.New(slog.DiscardHandler), func(code int) { exited <- code })
	defer done()
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if err := self.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ctx.Done():
	case <-time.After(patience):
		t.Fatal("the first signal does not end the context")
	}
	if cause := context.Cause(ctx).Error(); cause != "signal: terminated" {
		t.Errorf("cause %q", cause)
	}
	select {
	case code := <-exited:
		t.Fatalf("the first signal exits with %d", code)
	default:
	}
	if err := self.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case code := <-exited:
		if code != exitUnsettled {
			t.Errorf("exit code %d, want %d", code, exitUnsettled)
		}
	case <-time.After(patience):
		t.Fatal("the second signal does not exit")
	}
}

func TestLogLevelsOfTheConfigAreKnown(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"debug", "info", "warn", "error"} {
		var l slog.Level
		if err := l.UnmarshalText([]byte(level)); err != nil || !strings.EqualFold(l.String(), level) {
			t.Errorf("level %s: %v, %v", level, l, err)
		}
	}
}
