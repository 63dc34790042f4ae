package mqtt

// recoveryPhase is how far the recovery of a session has come.
type recoveryPhase uint8

const (
	// recoveryIdle: nothing is to be recovered.
	recoveryIdle recoveryPhase = iota
	// recoveryQueued: asked for; the spacing and the gate are awaited.
	recoveryQueued
	// recoveryDraining: it owns the gate; what the route still holds is awaited.
	recoveryDraining
	// recoveryLeaving: drained; the end of the connection is awaited.
	recoveryLeaving
	// recoveryConnecting: the CONNACK of the next connection is awaited.
	recoveryConnecting
	// recoveryResuming: the broker still has the session; the reconcile of this very
	// connection is awaited.
	recoveryResuming
	// recoveryFailed: the instance is dead.
	recoveryFailed
	// recoveryClosed: the session was closed in good order.
	recoveryClosed
)

func (p recoveryPhase) String() string {
	return [...]string{"idle", "queued", "draining", "leaving", "connecting", "resuming", "failed", "closed"}[p]
}

// drainPhase is the state of the settlement barrier of one generation: it is started
// at most once, by its one owner, and everybody else joins it.
type drainPhase uint8

const (
	drainNotStarted drainPhase = iota
	drainInProgress
	drainFinished
)

// recoveryEvent is something that happened to a recovery.
type recoveryEvent struct {
	kind recoveryEventKind
	// epoch is the number of the connection that CONNACK, reconciled and
	// reconcile failed are about.
	epoch int
}

type recoveryEventKind uint8

const (
	// recoverQueue: a delivery is left to the broker, which must send it again.
	recoverQueue recoveryEventKind = iota
	// recoverGate: the worker owns the session's gate.
	recoverGate
	// recoverDrained and recoverDrainFailed: the settlement barrier has ended.
	recoverDrained
	recoverDrainFailed
	// recoverDisconnected: a connection has gone, for whatever reason, or there was none.
	recoverDisconnected
	// recoverPresent and recoverAbsent: a CONNACK, with and without Session Present.
	recoverPresent
	recoverAbsent
	// recoverReconciled and recoverReconcileFailed: a reconcile has ended, whoever ran it.
	recoverReconciled
	recoverReconcileFailed
	// recoverForgo: the connection ends for a reason that makes a queued recovery moot.
	recoverForgo
	// recoverCancel: a step was given up. recoverDeadline: the time is over.
	recoverCancel
	recoverDeadline
	// recoverClose: the session is being closed in good order.
	recoverClose

	recoveryEventKinds
)

func (k recoveryEventKind) String() string {
	return [...]string{
		"queue", "gate", "drained", "drain failed", "disconnected", "session present", "session absent",
		"reconciled", "reconcile failed", "forgo", "cancel", "deadline", "close",
	}[k]
}

// recoveryEffects is the set of things to do after an event.
type recoveryEffects uint8

const (
	// recoveryWork: an attempt is wanted.
	recoveryWork recoveryEffects = 1 << iota
	// recoveryCount: a recycle has begun and is counted.
	recoveryCount
	// recoveryDrain: whoever gets it owns the settlement barrier.
	recoveryDrain
	// recoveryDisconnect: the connection is to be ended now.
	recoveryDisconnect
	// recoveryComplete: the attempt has succeeded.
	recoveryComplete
	// recoveryTerminal: the instance has died. It comes once.
	recoveryTerminal
)

func (fx recoveryEffects) has(e recoveryEffects) bool { return fx&e != 0 }

// recoveryState is the settlement recovery of one session instance: one reconnect
// that makes the broker send again what was received and given back unacknowledged,
// since MQTT cannot give back one message. It is a value, and step is a pure function:
// the rules stand here, waiting and working elsewhere (recover.go).
//
//   - Requests before the disconnect are one. Later ones are about the next connection
//     and queue the next attempt.
//   - From the request to the completion a CONNACK without Session Present is the end:
//     what was left unacknowledged is lost.
//   - A request names no connection. The attempt takes its target from the CONNACK that
//     follows its own disconnect, and only the reconcile of that connection completes it;
//     reconciles before it neither complete nor fail it.
//   - A request that has not begun is moot when the session stands still for a permanent
//     cause, is ended or is thrown away: that ends the connection as well.
//   - There is one way to fail, taken once.
//
// The zero value is idle.
type recoveryState struct {
	phase recoveryPhase
	drain drainPhase
	// target is the epoch of the connection that must be reconciled, 0 before the CONNACK.
	target int
	// again: one more attempt is wanted after this one.
	again bool
}

// armed reports whether the session must be resumed by the next connection.
func (r recoveryState) armed() bool {
	return r.phase != recoveryIdle && r.phase != recoveryFailed && r.phase != recoveryClosed
}

// owning reports whether the recovery owns the gate, and the connection with it.
func (r recoveryState) owning() bool { return r.armed() && r.phase != recoveryQueued }

// step returns the state after an event and what is to be done.
func (r recoveryState) step(e recoveryEvent) (recoveryState, recoveryEffects) {
	switch {
	case r.phase == recoveryClosed:
		return r, 0
	case r.phase == recoveryFailed:
		// Only its barrier still matters: the instance disconnects when it has ended.
		if r.drain == drainInProgress && (e.kind == recoverDrained || e.kind == recoverDrainFailed) {
			r.drain = drainFinished
			return r, recoveryDisconnect
		}
		return r, 0
	case e.kind == recoverClose:
		return recoveryState{phase: recoveryClosed}, 0
	case e.kind == recoverQueue:
		return r.queue()
	case r.phase == recoveryIdle:
		return r, 0
	case e.kind == recoverAbsent, e.kind == recoverCancel, e.kind == recoverDeadline:
		return r.fail()
	}
	switch r.phase {
	case recoveryQueued:
		switch e.kind {
		case recoverGate:
			r.phase, r.drain = recoveryDraining, drainInProgress
			return r, recoveryCount | recoveryDrain
		case recoverForgo:
			return recoveryState{}, 0
		}
	case recoveryDraining:
		switch e.kind {
		case recoverDrained:
			r.phase, r.drain = recoveryLeaving, drainFinished
			return r, recoveryDisconnect
		case recoverDrainFailed:
			r.drain = drainFinished
			return r.fail()
		}
	case recoveryLeaving:
		if e.kind == recoverDisconnected {
			r.phase = recoveryConnecting
		}
	case recoveryConnecting:
		if e.kind == recoverPresent {
			r.phase, r.target = recoveryResuming, e.epoch
		}
	case recoveryResuming:
		return r.resume(e)
	}
	return r, 0
}

// queue takes a request.
func (r recoveryState) queue() (recoveryState, recoveryEffects) {
	switch r.phase {
	case recoveryIdle:
		r.phase = recoveryQueued
		return r, recoveryWork
	case recoveryConnecting, recoveryResuming:
		r.again = true
	}
	return r, 0
}

// resume takes an event about the connection that the attempt has made.
func (r recoveryState) resume(e recoveryEvent) (recoveryState, recoveryEffects) {
	switch e.kind {
	case recoverDisconnected, recoverPresent: // the evidence was about a connection that is gone
		return r.fail()
	case recoverReconcileFailed:
		if e.epoch == r.target {
			return r.fail()
		}
	case recoverReconciled:
		if e.epoch != r.target {
			return r, 0
		}
		if r.again {
			return recoveryState{phase: recoveryQueued}, recoveryComplete | recoveryWork
		}
		return recoveryState{}, recoveryComplete
	}
	return r, 0
}

// fail is the one terminal transition. Whoever makes it owns the settlement barrier
// if nobody has started it, waits for it while it is under way, and disconnects at
// once where it has ended.
func (r recoveryState) fail() (recoveryState, recoveryEffects) {
	failed, fx := recoveryState{phase: recoveryFailed, drain: r.drain}, recoveryTerminal
	switch r.drain {
	case drainNotStarted:
		failed.drain = drainInProgress
		fx |= recoveryDrain
	case drainFinished:
		fx |= recoveryDisconnect
	}
	return failed, fx
}
