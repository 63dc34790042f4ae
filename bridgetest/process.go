package bridgetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Process is a child process whose output is kept. It is killed in the Cleanup of
// the test that started it, and its output is logged if that test failed.
type Process struct {
	t      testing.TB
	name   string
	cmd    *exec.Cmd
	stdout output
	stderr output
	exited chan struct{} // closed after Wait returned
}

// output is a buffer that may be read while the child writes to it.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(b)
}

// String returns what was written so far.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// StartProcess starts bin with args. It ends the test when the program cannot start.
func StartProcess(t testing.TB, bin string, args ...string) *Process {
	t.Helper()
	return StartCommand(t, exec.Command(bin, args...))
}

// StartCommand is StartProcess for a command with its own directory or environment.
// It takes over Stdout and Stderr of cmd.
func StartCommand(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p, err := startChild(t, cmd)
	if err != nil {
		t.Fatalf("start %s: %v", cmd.Path, err)
	}
	t.Cleanup(func() {
		p.Kill9()
		if t.Failed() {
			t.Logf("%s (pid %d) wrote to stderr:\n%s", p.name, p.PID(), tail(p.Stderr()))
		}
	})
	return p
}

func startChild(t testing.TB, cmd *exec.Cmd) (*Process, error) {
	p := &Process{t: t, name: filepath.Base(cmd.Path), cmd: cmd, exited: make(chan struct{})}
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = &p.stdout, &p.stderr, childAttributes()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.exited)
		_ = cmd.Wait() // the result stays in cmd.ProcessState
	}()
	return p, nil
}

// tail returns the last 8 KiB of text.
func tail(text string) string { return text[max(0, len(text)-8<<10):] }

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Stdout returns what the process wrote to standard output so far.
func (p *Process) Stdout() string { return p.stdout.String() }

// Stderr returns what the process wrote to standard error so far.
func (p *Process) Stderr() string { return p.stderr.String() }

// Exited is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Signal sends a signal; to a process that has ended it does nothing.
func (p *Process) Signal(sig os.Signal) {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Errorf("signal %v to %s (pid %d): %v", sig, p.name, p.PID(), err)
	}
}

// Kill9 kills the process as kill -9 does and waits until it is gone.
func (p *Process) Kill9() {
	p.Signal(os.Kill)
	<-p.exited
}

// Term sends SIGTERM and returns the exit code as [Process.Wait] does.
func (p *Process) Term(timeout time.Duration) int {
	p.t.Helper()
	p.Signal(syscall.SIGTERM)
	return p.Wait(timeout)
}

// Wait returns the exit code: -1 when a signal ended the process. A process that
// does not end within timeout fails the test and is killed.
func (p *Process) Wait(timeout time.Duration) int {
	p.t.Helper()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-p.exited:
	case <-timer.C:
		p.t.Errorf("%s (pid %d) still runs after %v", p.name, p.PID(), timeout)
		p.Kill9()
	}
	return p.cmd.ProcessState.ExitCode()
}

// WaitOutput waits until the process has written text to standard output or error.
// It ends the test after timeout or when the process ended without it.
func (p *Process) WaitOutput(text string, timeout time.Duration) {
	p.t.Helper()
	written := func() bool { return strings.Contains(p.Stdout(), text) || strings.Contains(p.Stderr(), text) }
	ctx, cancel := context.WithTimeout(p.t.Context(), timeout)
	defer cancel()
	for !written() {
		select {
		case <-p.exited:
			if !written() {
				p.t.Fatalf("%s ended with exit code %d before it wrote %q:\n%s", p.name, p.cmd.ProcessState.ExitCode(), text, tail(p.Stderr()))
			}
		case <-ctx.Done():
			p.t.Fatalf("%s did not write %q within %v:\n%s", p.name, text, timeout, tail(p.Stderr()))
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// RSS returns the resident memory of the process and its peak, in bytes (VmRSS and
// VmHWM of /proc). It needs Linux and a living process; otherwise the test ends.
func (p *Process) RSS() (now, peak int64) {
	p.t.Helper()
	file := fmt.Sprintf("/proc/%d/status", p.PID())
	status, err := os.ReadFile(file)
	if err != nil {
		p.t.Fatalf("read memory of %s: %v", p.name, err)
	}
	kilobytes := func(key string) int64 {
		for line := range strings.Lines(string(status)) {
			if rest, ok := strings.CutPrefix(line, key+":"); ok {
				n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
				if err != nil {
					p.t.Fatalf("%s: %s: %v", file, key, err)
				}
				return n * 1024
			}
		}
		p.t.Fatalf("%s has no %s: the process has ended", file, key)
		return 0
	}
	return kilobytes("VmRSS"), kilobytes("VmHWM")
}

// CPUTime returns the processor time the process has used, user and system
// together, in steps of 10 ms (/proc/PID/stat). It needs Linux and a living process.
func (p *Process) CPUTime() time.Duration {
	p.t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
	if err != nil {
		p.t.Fatalf("read CPU time of %s: %v", p.name, err)
	}
	// Fields are counted after the command name, which may hold spaces: utime and
	// stime are the 12th and 13th, in ticks of USER_HZ, which is 100 on Linux.
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	var ticks int64
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			p.t.Fatalf("CPU time of %s: %v", p.name, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// WaitReady polls GET baseURL/readyz until it answers 200. level is connected,
// subscribed, full or "" (the endpoint's own default). It ends the test after timeout
// with the last answer.
func WaitReady(t testing.TB, baseURL, level string, timeout time.Duration) {
	t.Helper()
	target := baseURL + "/readyz"
	if level != "" {
		target += "?level=" + url.QueryEscape(level)
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	transport := &http.Transport{DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	last := "no answer"
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
		if err != nil {
			t.Fatalf("GET %s: %v", target, err)
		}
		if resp, err := client.Do(req); err == nil {
			body, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return
			}
			last = resp.Status + " " + string(body)
		} else if ctx.Err() == nil {
			last = err.Error()
		}
		select {
		case <-ctx.Done():
			t.Fatalf("GET %s is not 200 within %v: %s", target, timeout, last)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

var built struct {
	once sync.Once
	path string
	err  error
}

// BuildBinary builds ./cmd/gobridge of the module that holds the working directory,
// once in a test binary, and returns the path. GOBRIDGE_TEST_RACE=1 builds it with
// the race detector. It ends the test when the build fails.
func BuildBinary(t testing.TB) string {
	t.Helper()
	built.once.Do(func() { built.path, built.err = buildBinary() })
	if built.err != nil {
		t.Fatalf("build gobridge: %v", built.err)
	}
	return built.path
}

// buildBinary puts the program at a path that depends on the module alone, so that
// runs do not pile up files; the rename keeps a program in use by another test
// binary whole.
func buildBinary() (string, error) {
	gomod, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOMOD: %w", err)
	}
	root := filepath.Dir(strings.TrimSpace(string(gomod)))
	args := []string{"build"}
	if os.Getenv("GOBRIDGE_TEST_RACE") == "1" {
		args = append(args, "-race")
	}
	hash := fnv.New64a()
	_, _ = fmt.Fprint(hash, os.Getuid(), root, args)
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("gobridge-bridgetest-%x", hash.Sum64()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	path := filepath.Join(dir, "gobridge")
	if runtime.GOOS == "windows" {
		path += ".exe"
	}
	fresh := fmt.Sprintf("%s.%d", path, os.Getpid())
	build := exec.Command("go", append(args, "-o", fresh, "./cmd/gobridge")...)
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%v: %w\n%s", build.Args, err, out)
	}
	return path, os.Rename(fresh, path)
}
