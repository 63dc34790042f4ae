package main

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
)

// limitMemory tells the runtime how much memory the cgroup of the process allows,
// so that it collects garbage harder instead of being killed. A GOMEMLIMIT in the
// environment wins. It returns the limit set, 0 for none.
func limitMemory(root string) int64 {
	if os.Getenv("GOMEMLIMIT") != "" {
		return 0
	}
	allowed := cgroupMemory(root)
	if allowed == 0 {
		return 0
	}
	// A tenth stays for what the runtime does not count: stacks of the kernel,
	// socket buffers, the binary itself.
	limit := allowed / 10 * 9
	debug.SetMemoryLimit(limit)
	return limit
}

// cgroupMemory returns the smallest memory limit of the process's cgroup and the
// groups around it, in bytes, 0 for none. It reads cgroup v2 and, where that is
// not mounted, v1. root is the root of the file system.
func cgroupMemory(root string) int64 {
	own, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return 0
	}
	smallest := int64(0)
	for line := range strings.Lines(string(own)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		base, file := "sys/fs/cgroup", "memory.max"
		if parts[1] == "memory" {
			base, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		} else if parts[1] != "" {
			continue
		}
		// In a container the path may name a group that is not visible there; the
		// limit then stands at the mount itself, which the walk ends with.
		for group := filepath.Clean("/" + parts[2]); ; group = filepath.Dir(group) {
			if n := readLimit(filepath.Join(root, base, group, file)); n > 0 && (smallest == 0 || n < smallest) {
				smallest = n
			}
			if group == "/" {
				break
			}
		}
	}
	return smallest
}

// unlimited is what v1 writes for no limit: nearly the largest int64.
const unlimited = 1 << 60

func readLimit(file string) int64 {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	if err != nil || n <= 0 || n >= unlimited {
		return 0
	}
	return n
}
