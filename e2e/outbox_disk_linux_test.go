package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gobridge/gobridge/bridgetest"
)

// smallDisk mounts a file system of so many bytes, or skips the test.
func smallDisk(t *testing.T, size int) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		t.Skipf("NOT RUN: a small file system cannot be mounted (that needs root): %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

// fill writes a file that leaves about so many bytes free, and returns a function
// that removes it.
func fill(t *testing.T, dir string, leave int64) func() {
	t.Helper()
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		t.Fatalf("statfs %s: %v", dir, err)
	}
	ballast := filepath.Join(dir, "ballast")
	f, err := os.Create(ballast)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if n := int64(fs.Bavail)*fs.Bsize - leave; n > 0 {
		if err := syscall.Fallocate(int(f.Fd()), 0, 0, n); err != nil {
			t.Fatalf("fill %s: %v", dir, err)
		}
	}
	return func() {
		if err := os.Remove(ballast); err != nil {
			t.Errorf("make room: %v", err)
		}
	}
}

// A full disk stops the acknowledgements and nothing else: what is stored goes on to
// its destination, readiness says why, and room is noticed by itself.
func TestFullDiskHoldsTheSource(t *testing.T) {
	const free, size = 6 << 20, 4000
	n := pick(4000, 12_000)
	disk := smallDisk(t, 32<<20+3*n*size)
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{LogPublishes: true})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	cfg := viaOutbox(t, source.URL(), dest.URL())
	cfg.bridge["data_dir"] = filepath.Join(disk, "data")
	cfg.policy["max_outbox_depth"] = 50_000
	col := collect(t, dest.Addr(), "out/#")
	b := cfg.start(t)
	b.waitReady("")
	dest.Stop()
	b.waitNotReady("destination", patience)
	makeRoom := fill(t, disk, free)

	pub := bridgetest.StartPublisher(t, bridgetest.PublisherConfig{Addr: source.Addr(), Topic: "in/x", N: n, QoS: 1, PayloadSize: size})
	pub.Wait(t, time.Minute)
	var reason string
	b.eventually(patience, "readiness says that the disk is full", func() bool {
		_, r := b.ready()
		for _, why := range r.Reasons {
			if why.RouteID == "r" && strings.Contains(why.Reason, "full") && strings.Contains(why.Reason, "outbox") {
				reason = why.Reason
				return true
			}
		}
		return false
	})
	acked, _ := b.depth()
	t.Logf("%d of %d stored; reason: %s", acked, n, reason)
	if acked == 0 || acked == n {
		t.Fatalf("%d of %d stored on a full disk: the test proves nothing", acked, n)
	}
	expectAcked(t, source, acked)
	if status, body := b.get("/livez"); status != 200 {
		t.Errorf("/livez answers %d %s", status, body)
	}

	// Still full: what is stored is delivered.
	dest.Start()
	mustCount(t, col, acked, b, time.Minute)

	makeRoom()
	began := time.Now()
	r := finish(t, pub, col, n, b, time.Minute)
	t.Logf("%v; delivered and quiet %v after there was room", r, time.Since(began).Round(time.Millisecond))
	exactlyOnce(t, r)
	if r.OutOfOrder > 0 {
		t.Errorf("%d messages out of order, want 0", r.OutOfOrder)
	}
	b.waitDepth(0, patience)
	b.waitReady("")
	b.quietLosses()
	b.conservedSince(0)
	b.stop()
}

// A crash on a full disk, and a start on one: nothing acknowledged is lost.
func TestCrashOnFullDiskLosesNothing(t *testing.T) {
	const free, size = 6 << 20, 4000
	n := pick(3000, 12_000)
	disk := smallDisk(t, 32<<20+3*n*size)
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{LogPublishes: true})
	dest := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	cfg := viaOutbox(t, source.URL(), dest.URL())
	cfg.bridge["data_dir"] = filepath.Join(disk, "data")
	cfg.policy["max_outbox_depth"] = 50_000
	col := collect(t, dest.Addr(), "out/#")
	b := cfg.start(t)
	b.waitReady("")
	dest.Stop()
	b.waitNotReady("destination", patience)
	makeRoom := fill(t, disk, free)
	pub := bridgetest.StartPublisher(t, bridgetest.PublisherConfig{
		Addr: source.Addr(), Topic: "in/x", N: n, QoS: 1, PayloadSize: size, MessageIDs: true,
	})
	pub.Wait(t, time.Minute)
	b.eventually(patience, "a store that is full", func() bool {
		_, r := b.ready()
		return strings.Contains(fmt.Sprint(r.Reasons), "full")
	})
	acked, _ := b.depth()
	if acked == 0 || acked == n {
		t.Fatalf("%d of %d stored on a full disk: the test proves nothing", acked, n)
	}
	b.Kill9()
	// What a start needs of the disk may be missing: it may say so and end, and must
	// not harm what is there.
	p := cfg.spawn(t)
	started := within(5*time.Second, func() bool { return strings.Contains(p.Stderr(), "http listener up") || exited(p) })
	t.Logf("%d of %d stored; a start on the full disk decided %t, ended %t", acked, n, started, exited(p))
	p.Kill9()
	makeRoom()
	dest.Start()
	b = cfg.start(t)
	r := finish(t, pub, col, n, b, time.Minute)
	t.Log(r)
	exactlyOnce(t, r)
	b.waitDepth(0, patience)
	b.waitReady("")
	b.stop()
}

// exited tells whether a process has ended.
func exited(p *bridgetest.Process) bool {
	select {
	case <-p.Exited():
		return true
	default:
		return false
	}
}
