package bridgetest

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// startSelf runs the test binary as a child in one of the modes of TestMain.
func startSelf(t *testing.T, mode string) *Process {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+mode)
	p := StartCommand(t, cmd)
	p.WaitOutput("ready", 10*time.Second)
	return p
}

func TestProcessTermReturnsTheExitCode(t *testing.T) {
	p := startSelf(t, "polite")
	if now, peak := p.RSS(); now < 1<<20 || peak < now/2 {
		t.Errorf("RSS %d, peak %d bytes", now, peak)
	}
	if cpu := p.CPUTime(); cpu < 0 || cpu > time.Minute {
		t.Errorf("CPU time %v", cpu)
	}
	if code := p.Term(10 * time.Second); code != 3 {
		t.Errorf("exit code %d, want 3", code)
	}
	if p.Stdout() != "ready\n" || p.Stderr() != "bye\n" {
		t.Errorf("stdout %q, stderr %q", p.Stdout(), p.Stderr())
	}
	p.Kill9() // of a process that has ended: nothing
}

func TestProcessKill9EndsAtOnce(t *testing.T) {
	p := startSelf(t, "stubborn")
	p.Kill9()
	if code := p.Wait(time.Second); code != -1 {
		t.Errorf("exit code %d, want -1 for a signal", code)
	}
}

func TestProcessThatIgnoresTermFailsTheTest(t *testing.T) {
	p := startSelf(t, "stubborn")
	r := record(t, func(tb testing.TB) {
		p.t = tb
		p.Term(50 * time.Millisecond)
	})
	p.t = t
	if !strings.Contains(r.failed, "still runs after 50ms") {
		t.Errorf("failed with %q", r.failed)
	}
	select {
	case <-p.Exited():
	default:
		t.Error("the process was left running")
	}
}

func TestWaitReadyPollsUntil200(t *testing.T) {
	var asked atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" || r.URL.Query().Get("level") != "subscribed" || asked.Add(1) < 3 {
			http.Error(w, `{"reason":"not yet"}`, http.StatusServiceUnavailable)
		}
	}))
	defer srv.Close()
	WaitReady(t, srv.URL, "subscribed", 10*time.Second)
	if asked.Load() != 3 {
		t.Errorf("asked %d times, want 3", asked.Load())
	}
	r := record(t, func(tb testing.TB) { WaitReady(tb, srv.URL, "full", 50*time.Millisecond) })
	if !strings.Contains(r.failed, "not yet") {
		t.Errorf("failed with %q, want the last answer", r.failed)
	}
}

func TestBuildBinaryBuildsTheCommandOfTheModule(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module example.com/m\n\ngo 1.26\n")
	write("cmd/gobridge/main.go", "package main\n\nfunc main() { println(\"built\") }\n")
	t.Chdir(dir)
	t.Setenv("TMPDIR", t.TempDir())
	path, err := buildBinary()
	if err != nil {
		t.Fatal(err)
	}
	p := StartProcess(t, path)
	if code := p.Wait(10 * time.Second); code != 0 || p.Stderr() != "built\n" {
		t.Errorf("exit code %d, stderr %q", code, p.Stderr())
	}
	write("cmd/gobridge/main.go", "package main\n\nfunc main() { broken }\n")
	if _, err := buildBinary(); err == nil || !strings.Contains(err.Error(), "undefined: broken") {
		t.Errorf("a broken program: %v", err)
	}
}

func TestEmbeddedBrokerPassesMessages(t *testing.T) {
	b := StartEmbedded(t)
	sub := MustConnect(t, ClientConfig{Addr: b.Addr(), ClientID: "sub", CleanStart: true})
	subscribe(t, sub, packets.SubOptions{Topic: "t/#", QoS: 1})
	pub := MustConnect(t, ClientConfig{Addr: b.Addr(), ClientID: "pub", CleanStart: true})
	if ack, err := pub.Publish(t.Context(), &packets.Publish{Topic: "t/1", QoS: 1, Payload: []byte("x")}); err != nil || ack.Reason >= 0x80 {
		t.Fatalf("ack %+v, %v", ack, err)
	}
	if got := sub.MustReceive(t, 5*time.Second); string(got.Payload) != "x" || got.Topic != "t/1" {
		t.Errorf("got %q on %s", got.Payload, got.Topic)
	}
	b.Stop()
	b.Stop()
	select {
	case <-sub.Done():
	case <-time.After(5 * time.Second):
		t.Error("the subscriber outlives the broker")
	}
}
