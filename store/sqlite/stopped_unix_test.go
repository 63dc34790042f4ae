//go:build unix

package sqlite

import (
	"context"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// SIGSTOP in the middle of renewals: the others can take the lease, unless the process
// was stopped in the microseconds of its transaction.
func TestLeaseOfAStoppedProcessCanBeTaken(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := startSharer(t, filepath.Join(dir, leaseFile), "hold", 0)
	p.WaitOutput("renewing", 20*time.Second)
	l := leasesIn(t, dir)()
	defer l.Close()
	for range 10 {
		p.Signal(syscall.SIGSTOP)
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		seen, err := l.Read(ctx, "k")
		if err == nil {
			_, err = l.Take(ctx, seen, "me", time.Second)
		}
		cancel()
		p.Signal(syscall.SIGCONT)
		if err == nil {
			if code := p.Wait(20 * time.Second); code == 0 || !strings.Contains(p.Stderr(), "another owner") {
				t.Errorf("the old owner ended with %d: %s", code, p.Stderr())
			}
			return
		}
		t.Logf("stopped inside of a transaction: %v", err)
		time.Sleep(20 * time.Millisecond) // so that the next stop meets another moment
	}
	t.Error("ten times in a row the stopped process kept the lock")
}
