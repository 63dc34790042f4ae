package chaos

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// diskFault is what tells the disk of the bridge.
var diskFault = map[kind]string{diskFull: "full", diskBroken: "broken"}

// step is the begin or the end of a fault.
type step struct {
	at    time.Duration
	fault *fault
	end   bool
}

// steps puts begins and ends in their order.
func steps(faults []fault) (all []step) {
	for i := range faults {
		f := &faults[i]
		all = append(all, step{at: f.at, fault: f})
		if f.lasts > 0 {
			all = append(all, step{at: f.at + f.lasts, fault: f, end: true})
		}
	}
	slices.SortStableFunc(all, func(a, b step) int { return cmp.Compare(a.at, b.at) })
	return all
}

// happening is what a fault came to.
type happening struct {
	*fault
	began, ended time.Time
}

// play takes the steps at their times. What takes longer than planned delays what
// comes after it.
func (w *world) play(began time.Time) {
	w.t.Helper()
	for _, s := range steps(w.plan.faults) {
		time.Sleep(time.Until(began.Add(s.at)))
		w.keepRunning()
		now := time.Now()
		if s.end {
			w.end(s.fault)
		} else {
			w.begin(s.fault)
			w.faults = append(w.faults, happening{fault: s.fault, began: now})
		}
		if s.end || s.fault.lasts == 0 {
			i := slices.IndexFunc(w.faults, func(h happening) bool { return h.fault == s.fault })
			w.faults[i].ended = time.Now()
		}
	}
	w.keepRunning()
}

// keepBrokersRunning starts brokers again that have crashed by themselves: mosquitto
// 2.0.11 sometimes does. What a destination took and forgot is nobody's to judge.
func (w *world) keepBrokersRunning() {
	for i, e := range append([]*end{w.source}, w.dests...) {
		if !e.crashed() {
			continue
		}
		began := time.Now()
		e.broker.Kill() // takes note that it is gone
		e.broker.Start()
		f := &fault{kind: sourceKilled}
		if i > 0 {
			f = &fault{kind: destCrashed, dest: i - 1}
		}
		w.faults = append(w.faults, happening{f, began, time.Now()})
	}
}

// keepRunning starts a bridge again that has ended by itself: it may do so on a disk
// that refuses writes.
func (w *world) keepRunning() {
	w.keepBrokersRunning()
	if w.stopping || !w.exited() || w.diskFails() {
		return
	}
	if !w.diskFailed {
		w.accuse("the bridge ended by itself; it wrote:\n%s", tail(w.bridge.Stderr()))
	}
	w.ended("by itself", 0)
	w.start()
}

func (w *world) diskFails() bool {
	for _, name := range diskFault {
		if _, err := os.Stat(filepath.Join(w.disk, name)); err == nil {
			return true
		}
	}
	return false
}

func (w *world) begin(f *fault) {
	dest := w.dests[f.dest]
	switch f.kind {
	case bridgeKilled:
		w.bridge.Kill9()
		w.stopping = true
		if f.choice < 50 { // shared memory is no file that anyone syncs
			index, _ := filepath.Glob(filepath.Join(filepath.Dir(w.config), "data", "*-shm"))
			for _, file := range index {
				_ = os.Remove(file)
			}
		}
	case bridgeTerm:
		w.bridge.Signal(syscall.SIGTERM)
		w.stopping = true
	case bridgePaused:
		w.bridge.Signal(syscall.SIGSTOP)
	case sourceRestarted:
		w.source.broker.Stop()
	case sourceKilled:
		w.source.broker.Kill()
	case sourcePaused:
		w.source.broker.Pause()
	case sourceRotated:
		w.source.rotate()
	case destRestarted:
		dest.broker.Stop()
	case destPaused:
		dest.broker.Pause()
	case destRefuses:
		dest.permit(false)
	case destRotated:
		dest.rotate()
	case sourceCut:
		w.source.link.Cut()
	case sourceHole:
		w.source.link.BlackHole(true)
	case sourceStall:
		w.source.link.Stall(true)
	case destCut:
		dest.link.Cut()
	case destHole:
		dest.link.BlackHole(true)
	case destStall:
		dest.link.Stall(true)
	case destSlow:
		dest.link.Delay(50*ms + time.Duration(f.choice)*2*ms)
	case diskFull, diskBroken:
		w.diskFailed = true
		w.refuse(diskFault[f.kind])
	}
}

func (w *world) end(f *fault) {
	dest := w.dests[f.dest]
	switch f.kind {
	case bridgeKilled:
		w.restart("killed", -1)
	case bridgeTerm:
		allowed := []int{0, 3}
		if !strings.Contains(w.bridge.Stderr(), "msg=starting") {
			allowed = append(allowed, -1) // it had not come to listen to signals
		}
		w.restart("after SIGTERM", allowed...)
	case bridgePaused:
		w.bridge.Signal(syscall.SIGCONT)
	case sourceRestarted, sourceKilled:
		w.source.broker.Start()
	case sourcePaused:
		w.source.broker.Resume()
	case destRestarted:
		dest.broker.Start()
	case destPaused:
		dest.broker.Resume()
	case destRefuses:
		dest.permit(true)
	case sourceHole:
		w.source.link.BlackHole(false)
	case sourceStall:
		w.source.link.Stall(false)
	case destHole:
		dest.link.BlackHole(false)
	case destStall:
		dest.link.Stall(false)
	case destSlow:
		dest.link.Delay(0)
	case diskFull, diskBroken:
		w.grant(diskFault[f.kind])
	}
}

// restart starts the bridge after it has ended.
func (w *world) restart(how string, allowed ...int) {
	w.ended(how, allowed...)
	w.stopping = false
	w.start()
}

func (w *world) refuse(what string) {
	if err := os.WriteFile(filepath.Join(w.disk, what), nil, 0o600); err != nil {
		w.t.Errorf("make the disk %s: %v", what, err)
	}
}

func (w *world) grant(what string) {
	if err := os.Remove(filepath.Join(w.disk, what)); err != nil {
		w.t.Errorf("let the disk work: %v", err)
	}
}

func tail(text string) string { return text[max(0, len(text)-2<<10):] }
