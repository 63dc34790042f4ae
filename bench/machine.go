package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
)

// machine is where a measurement was made. The load tells whether it had the machine
// to itself.
type machine struct {
	CPU     string `json:"cpu"`
	Cores   int    `json:"cores"`
	Kernel  string `json:"kernel"`
	LoadAvg string `json:"load_average_at_start"` // 1, 5 and 15 minutes
}

// String returns the machine in words.
func (m machine) String() string {
	return fmt.Sprintf("%s, %d cores, %s, load average at the start %s", m.CPU, m.Cores, m.Kernel, m.LoadAvg)
}

// thisMachine reads /proc; what it cannot read is "unknown".
func thisMachine() machine {
	m := machine{CPU: "unknown CPU", Cores: runtime.NumCPU(), Kernel: runtime.GOOS, LoadAvg: "unknown"}
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		m.CPU = cpuModel(string(text))
	}
	if text, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = "Linux " + strings.TrimSpace(string(text))
	}
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		if fields := strings.Fields(string(text)); len(fields) >= 3 {
			m.LoadAvg = strings.Join(fields[:3], " ")
		}
	}
	return m
}

// cpuModel finds the first model name in the text of /proc/cpuinfo, which ARM does
// not have.
func cpuModel(cpuinfo string) string {
	for line := range strings.Lines(cpuinfo) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH + " CPU"
}

// versions asks the programs what they are.
func (p *programs) versions(ctx context.Context) ([]string, error) {
	texts := []string{runtime.Version()}
	if p.mosquitto != "" {
		// mosquitto -h exits with 3 after its version and its help.
		out, _ := exec.CommandContext(ctx, p.mosquitto, "-h").Output()
		first, _, _ := strings.Cut(string(out), "\n")
		texts = append(texts, strings.TrimSpace(first))
	}
	if p.gobridge != "" {
		out, err := exec.CommandContext(ctx, p.gobridge, "version").Output()
		if err != nil {
			return nil, fmt.Errorf("%s version: %w", p.gobridge, err)
		}
		texts = append(texts, strings.TrimSpace(string(out)))
	}
	return texts, nil
}

// sizes returns the size of the programs in MiB.
func (p *programs) sizes() (map[kind]float64, error) {
	sizes := map[kind]float64{}
	for k, path := range map[kind]string{ofMosquitto: p.mosquitto, ofGobridge: p.gobridge} {
		if path == "" {
			continue
		}
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		sizes[k] = mib(info.Size())
	}
	return sizes, nil
}
