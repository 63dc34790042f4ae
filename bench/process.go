package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is a child whose output goes to a log file. One goroutine uses it.
type process struct {
	name   string
	cmd    *exec.Cmd
	log    string        // file with stdout and stderr
	exited chan struct{} // closed after Wait returned
}

// startProcess starts bin in dir. The caller ends it with stop.
func startProcess(name, dir, bin string, args ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(dir, name+".log"), exited: make(chan struct{})}
	out, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer out.Close() // the child has its own descriptor
	p.cmd = exec.Command(bin, args...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr, p.cmd.SysProcAttr = dir, out, out, childAttributes()
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		defer close(p.exited)
		_ = p.cmd.Wait() // the result stays in ProcessState
	}()
	return p, nil
}

// stop ends the process with SIGTERM, or with SIGKILL after 10 s, and waits until it
// is gone. An exit code other than 0 is an error with the end of the log.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", p.name, err)
	}
	timer := time.NewTimer(10 * time.Second)
	defer timer.Stop()
	select {
	case <-p.exited:
	case <-timer.C:
		_ = p.cmd.Process.Kill() // it may have ended just now
		<-p.exited
		return fmt.Errorf("%s ignored SIGTERM for 10 s: %s", p.name, p.tail())
	}
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("%s ended with %s: %s", p.name, p.cmd.ProcessState, p.tail())
	}
	return nil
}

// tail returns the last 1,000 bytes of the log.
func (p *process) tail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-1000):])
}

// pid is the process id.
func (p *process) pid() int { return p.cmd.Process.Pid }

// cpuTime returns the processor time, user and system, that the living threads of a
// process have used. A thread that ends takes its time with it; neither mosquitto nor
// the Go runtime ends threads under load.
func cpuTime(pid int) (time.Duration, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		return 0, err
	}
	var total time.Duration
	for _, file := range files {
		text, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // the thread has ended
		}
		if err != nil {
			return 0, err
		}
		d, err := parseSchedstat(string(text))
		if err != nil {
			return 0, fmt.Errorf("%s: %w", file, err)
		}
		total += d
	}
	if total == 0 {
		return 0, fmt.Errorf("no CPU time in /proc/%d/task/*/schedstat (it needs Linux and a living process)", pid)
	}
	return total, nil
}

// memory returns the resident set now and its peak, in bytes.
func (p *process) memory() (now, peak int64, err error) {
	file := fmt.Sprintf("/proc/%d/status", p.pid())
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, 0, err
	}
	if now, err = parseStatus(string(text), "VmRSS"); err == nil {
		peak, err = parseStatus(string(text), "VmHWM")
	}
	if err != nil {
		return 0, 0, fmt.Errorf("%s: %w", file, err)
	}
	return now, peak, nil
}

// parseSchedstat reads the time on a processor out of a schedstat file: its first
// field, in nanoseconds.
func parseSchedstat(text string) (time.Duration, error) {
	first, _, _ := strings.Cut(strings.TrimSpace(text), " ")
	ns, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("schedstat %q: %w", text, err)
	}
	return time.Duration(ns), nil
}

// parseStatus reads a "key:  123 kB" line of /proc/PID/status, in bytes.
func parseStatus(text, key string) (int64, error) {
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, key+":")
		if !ok {
			continue
		}
		kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", key, err)
		}
		return kb * 1024, nil
	}
	return 0, fmt.Errorf("no %s: the process has ended", key)
}
