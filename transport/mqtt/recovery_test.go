package mqtt

import (
	"fmt"
	"strings"
	"testing"
)

// recoveryDepth is how many events the exploration goes deep.
const recoveryDepth = 8

// recoveryStep is step, or a mutated copy of it.
type recoveryStep func(recoveryState, recoveryEvent) (recoveryState, recoveryEffects)

// recoveryWitness is what an outside observer remembers of the events and effects so
// far. The rules are judged by it, never by the state under test.
type recoveryWitness struct {
	epoch      int  // of the latest CONNACK
	wanted     bool // a request is not answered by a completed attempt yet
	later      bool // a request came after the disconnect of the attempt
	began      bool // the attempt has been counted
	drainBegan bool // in this generation
	drainEnded bool
	left       bool // the attempt has asked for its disconnect
	gone       bool // and the connection has gone since
	evidence   int  // epoch of the first CONNACK since, with the session
	dead       bool
	deadLeft   bool // the disconnect of the dead instance has been asked for
	closed     bool
}

// observe checks the rules (docs/rules.md) for one step and returns what is remembered
// after it.
//
//	R1  Nothing happens after close; it is never a failure.
//	R2  An instance dies once and stays dead; it then asks for nothing but the disconnect
//	    after its barrier.
//	R3  From a request to its completion a CONNACK without the session kills at once, and
//	    so do cancel, deadline and a failed barrier; without a request nothing kills.
//	R4  A recycle is counted once for each attempt, when the gate is owned.
//	R5  The settlement barrier is begun at most once in a generation: by the attempt that
//	    owns the gate, or by a death before that.
//	R6  A disconnect is asked for only after the barrier has ended, and once for an attempt; a dead
//	    instance asks for it as soon as its barrier has ended, once.
//	R7  Only the reconcile of the connection whose CONNACK, with the session, followed the
//	    attempt's own disconnect completes it.
//	R8  No request is lost: while the instance lives, one that no completed attempt answers is
//	    pending, until the attempt is forgone before it has begun.
//	R9  A target is published for that connection alone, never before.
//	R10 Work is asked for exactly when an attempt becomes pending.
func (w recoveryWitness) observe(before, after recoveryState, e recoveryEvent, fx recoveryEffects) (recoveryWitness, string) {
	if w.closed {
		if before != after || fx != 0 {
			return w, "R1: something happened after close"
		}
		return w, ""
	}
	ended := e.kind == recoverDrained || e.kind == recoverDrainFailed
	if w.dead {
		if after.phase != recoveryFailed {
			return w, "R2: a dead instance came back"
		}
		barrier := ended && w.drainBegan && !w.drainEnded
		switch {
		case fx&^recoveryDisconnect != 0:
			return w, "R2: a dead instance asked for more than its disconnect"
		case fx.has(recoveryDisconnect) && w.deadLeft:
			return w, "R6: a dead instance disconnects twice"
		case fx.has(recoveryDisconnect) != barrier:
			return w, "R6: a dead instance disconnects exactly when its barrier has ended"
		}
		w.drainEnded = w.drainEnded || barrier
		w.deadLeft = w.deadLeft || fx.has(recoveryDisconnect)
		return w, ""
	}

	wantedBefore := w.wanted
	absent := false
	switch e.kind {
	case recoverQueue:
		w.wanted = true
		if w.gone {
			w.later = true
		}
	case recoverPresent, recoverAbsent:
		w.epoch, absent = e.epoch, e.kind == recoverAbsent
		if w.gone && w.evidence == 0 && !absent {
			w.evidence = e.epoch
		}
	case recoverClose:
		w.closed = true
		if after.phase != recoveryClosed || fx != 0 {
			return w, "R1: close is not the end, or asks for something"
		}
		return w, ""
	case recoverForgo:
		if !w.began {
			w.wanted = false
		}
	case recoverDisconnected:
		w.gone = w.gone || w.left
	}
	barrierEnds := ended && w.drainBegan && !w.drainEnded
	w.drainEnded = w.drainEnded || barrierEnds

	mustDie := wantedBefore && (absent || e.kind == recoverCancel || e.kind == recoverDeadline ||
		e.kind == recoverDrainFailed && barrierEnds)
	dies := fx.has(recoveryTerminal)
	switch {
	case dies != (after.phase == recoveryFailed):
		return w, "R2: the terminal effect and the failed state belong together"
	case mustDie && !dies:
		return w, "R3: this kills, and it lives"
	case dies && !wantedBefore:
		return w, "R3: died without a recovery"
	}
	if fx.has(recoveryCount) {
		if w.began || e.kind != recoverGate || !wantedBefore {
			return w, "R4: a recycle counted twice, or not when the gate was won"
		}
		w.began = true
	} else if e.kind == recoverGate && wantedBefore && !w.began {
		return w, "R4: a recycle that began was not counted"
	}
	if fx.has(recoveryDrain) {
		if w.drainBegan || !fx.has(recoveryCount) && !dies {
			return w, "R5: the barrier begins twice, or without an owner"
		}
		w.drainBegan = true
	} else if dies && !w.drainBegan {
		return w, "R5: a death before the barrier begins it"
	}
	if fx.has(recoveryDisconnect) {
		switch {
		case !w.drainEnded:
			return w, "R6: a disconnect before the barrier has ended"
		case w.left && !dies:
			return w, "R6: an attempt disconnects twice"
		}
		w.left = w.left || !dies
		w.deadLeft = dies
	} else if dies && w.drainEnded {
		return w, "R6: a death after the barrier disconnects at once"
	}
	if dies {
		if after.target != 0 || after.again {
			return w, "R2: a dead attempt is not cleared"
		}
		w.dead = true
		return w, ""
	}
	if want := w.evidence; after.target != want && !fx.has(recoveryComplete) {
		return w, fmt.Sprintf("R9: target %d, want %d", after.target, want)
	}
	completed := fx.has(recoveryComplete)
	if completed {
		if e.kind != recoverReconciled || w.evidence == 0 || e.epoch != w.evidence {
			return w, "R7: completed without its own evidence"
		}
		later := w.later
		w = recoveryWitness{epoch: w.epoch, wanted: later}
	} else if e.kind == recoverReconciled && w.evidence != 0 && e.epoch == w.evidence {
		return w, "R7: its own reconcile did not complete it"
	}
	if pending := after.phase != recoveryIdle; pending != w.wanted {
		return w, fmt.Sprintf("R8: wanted %t, state %s", w.wanted, after.phase)
	}
	if becomes := w.wanted && (!wantedBefore || completed); becomes != fx.has(recoveryWork) {
		return w, "R10: work is not asked for when an attempt becomes pending"
	}
	return w, ""
}

// exploration is the result of exploring all sequences of events.
type exploration struct {
	states    map[recoveryState]bool
	nodes     int // pairs of state and witness
	steps     int
	violation string // the first, with the events that lead to it
}

// explore follows every sequence of events to the given depth, breadth first. Two
// sequences that lead to the same state and the same witness have the same future, so
// only one of them is followed.
func explore(step recoveryStep, depth int) exploration {
	type node struct {
		r recoveryState
		w recoveryWitness
	}
	type path struct {
		node
		events string
	}
	found := exploration{states: map[recoveryState]bool{{}: true}}
	seen := map[node]bool{{}: true}
	level := []path{{}}
	for range depth {
		var next []path
		for _, p := range level {
			for kind := range recoveryEventKinds {
				for _, epoch := range epochsOf(kind, p.w.epoch) {
					e := recoveryEvent{kind: kind, epoch: epoch}
					r, fx := step(p.r, e)
					found.steps++
					w, violated := p.w.observe(p.r, r, e, fx)
					events := p.events + fmt.Sprintf(" %s(%d)", kind, epoch)
					if violated != "" {
						found.violation = violated + ":" + events
						return found
					}
					found.states[r] = true
					if n := (node{r, w}); !seen[n] {
						seen[n] = true
						next = append(next, path{n, events})
					}
				}
			}
		}
		level = next
	}
	found.nodes = len(seen)
	return found
}

// epochsOf lists the epochs that an event can be about: a CONNACK begins the next
// connection; a reconcile may be of the current one or of one that is gone.
func epochsOf(kind recoveryEventKind, current int) []int {
	switch kind {
	case recoverPresent, recoverAbsent:
		return []int{current + 1}
	case recoverReconciled, recoverReconcileFailed:
		return []int{current, current - 1}
	}
	return []int{0}
}

// Covers: S2-302, S2-303, S2-304, S2-317, S2-318, S2-319, S2-320, S2-322, S2-323, S2-324, S2-406
func TestRecoveryKeepsItsRulesInEverySequenceOfEvents(t *testing.T) {
	found := explore(recoveryState.step, recoveryDepth)
	if found.violation != "" {
		t.Fatal(found.violation)
	}
	shapes := map[recoveryState]bool{} // apart from the number of the target
	for r := range found.states {
		r.target = min(r.target, 1)
		shapes[r] = true
	}
	t.Logf("depth %d: %d states (%d without the epochs), %d with what led to them, %d steps",
		recoveryDepth, len(found.states), len(shapes), found.nodes, found.steps)
	// The exploration must reach the ends that matter.
	for _, want := range []recoveryState{
		{phase: recoveryResuming, drain: drainFinished, target: 1, again: true},
		{phase: recoveryFailed, drain: drainInProgress},
		{phase: recoveryFailed, drain: drainFinished},
		{phase: recoveryClosed},
	} {
		if !shapes[want] {
			t.Errorf("state %+v was not reached", want)
		}
	}
}

// A step function with a fault in it must break a rule within the same depth, or the
// exploration proves nothing.
func TestExplorationCatchesPlantedFaults(t *testing.T) {
	tests := []struct {
		name   string
		faulty recoveryStep
		rule   string
	}{
		{"evidence of another connection is accepted", func(r recoveryState, e recoveryEvent) (recoveryState, recoveryEffects) {
			if r.phase == recoveryResuming && e.kind == recoverReconciled {
				e.epoch = r.target
			}
			return r.step(e)
		}, "R7"},
		{"Session Present is enforced only once the gate is owned", func(r recoveryState, e recoveryEvent) (recoveryState, recoveryEffects) {
			if r.phase == recoveryQueued && e.kind == recoverAbsent {
				return r, 0
			}
			return r.step(e)
		}, "R3"},
		{"a death during the drain begins a second one", func(r recoveryState, e recoveryEvent) (recoveryState, recoveryEffects) {
			next, fx := r.step(e)
			if fx.has(recoveryTerminal) && r.drain == drainInProgress {
				fx |= recoveryDrain
			}
			return next, fx
		}, "R5"},
		{"a dead instance dies again", func(r recoveryState, e recoveryEvent) (recoveryState, recoveryEffects) {
			if r.phase == recoveryFailed && e.kind == recoverDeadline {
				return r, recoveryTerminal
			}
			return r.step(e)
		}, "R2"},
		{"the target is the connection at the time of the gate", func(r recoveryState, e recoveryEvent) (recoveryState, recoveryEffects) {
			next, fx := r.step(e)
			if r.phase == recoveryDraining && e.kind == recoverPresent {
				next.target = e.epoch
			}
			return next, fx
		}, "R9"},
		{"a request after the disconnect is forgotten", func(r recoveryState, e recoveryEvent) (recoveryState, recoveryEffects) {
			next, fx := r.step(e)
			next.again = false
			return next, fx
		}, "R8"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := explore(tt.faulty, recoveryDepth).violation
			if !strings.HasPrefix(got, tt.rule+":") {
				t.Errorf("violation %q, want one of %s", got, tt.rule)
			}
			t.Log(got)
		})
	}
}
