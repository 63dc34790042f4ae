package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestMemoryLimitIsTheSmallestOfTheCgroups(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		files map[string]string
		want  int64
	}{
		"no cgroup": {nil, 0},
		"v2 in a container": {map[string]string{
			"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "104857600\n",
		}, 104857600},
		"v2 slice around the service": {map[string]string{
			"proc/self/cgroup":                           "0::/a.slice/b.service\n",
			"sys/fs/cgroup/a.slice/memory.max":           "1000\n",
			"sys/fs/cgroup/a.slice/b.service/memory.max": "max\n",
		}, 1000},
		"v2 without a limit": {map[string]string{
			"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n",
		}, 0},
		"v2 path of the host": {map[string]string{
			"proc/self/cgroup": "0::/docker/0123\n", "sys/fs/cgroup/memory.max": "2000\n",
		}, 2000},
		"v1": {map[string]string{
			"proc/self/cgroup": "3:cpu,cpuacct:/x\n2:memory:/x\n0::/\n",
			"sys/fs/cgroup/memory/x/memory.limit_in_bytes": "3000\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":   "9223372036854771712\n",
		}, 3000},
		"nonsense": {map[string]string{
			"proc/self/cgroup": "x\n0::/\n", "sys/fs/cgroup/memory.max": "many\n",
		}, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			for file, text := range tt.files {
				path := filepath.Join(root, file)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if got := cgroupMemory(root); got != tt.want {
				t.Errorf("limit %d, want %d", got, tt.want)
			}
		})
	}
}
