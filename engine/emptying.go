package engine

import "github.com/gobridge/gobridge"

// mode says whether deliveries flow.
type mode uint8

const (
	flowing   mode = iota
	quiescing      // emptied for a new beginning of the source's session, then flowing again
	parting        // emptied because another process may own the source's session from here on
	draining       // emptied for the end of the process
)

// emptying is how far a route or an intake is with being emptied (B1); it stands
// under the mutex of its owner. What only waits is left to its source at once,
// uncharged. What is physically under way is awaited, and is left to its source too
// when it fails.
//
// A drain leaves everything. A quiesce leaves what the source delivers again, and
// asks it to by Retry. Whatever else there is stays where it is, across the new
// beginning of the session, and is not waited for, because nobody but this process
// has it: QoS 0, deliveries of ephemeral sessions, redrives. To part is to quiesce
// without asking the source, which ends, and with whatever came from it. What begins
// during something weaker takes its place.
type emptying struct {
	mode     mode
	quiesces int // under way
	awaited  int // what must come to its end
	// empty is closed once nothing is awaited.
	empty chan struct{}
}

func newEmptying() emptying { return emptying{empty: make(chan struct{})} }

// begin starts an emptying or joins the one under way; await follows.
func (e *emptying) begin(m mode) {
	select {
	case <-e.empty:
		e.empty = make(chan struct{})
	default:
	}
	e.mode = max(e.mode, m)
	if m != draining {
		e.quiesces++
	}
}

// await says how much is physically under way, and returns what is closed once it
// has come to its end.
func (e *emptying) await(n int) <-chan struct{} {
	e.awaited = n
	if n == 0 {
		close(e.empty)
	}
	return e.empty
}

// ended notes that something awaited has come to its end.
func (e *emptying) ended() {
	e.awaited--
	if e.awaited == 0 {
		close(e.empty)
	}
}

// quiesced ends what is no drain.
func (e *emptying) quiesced() {
	e.quiesces--
	if e.quiesces == 0 && e.mode != draining {
		e.mode = flowing
	}
}

// takes reports whether a delivery is among those that are left to their source.
func (e *emptying) takes(d *gobridge.Delivery) bool {
	return e.mode == draining || (d.Redeliverable || e.mode == parting) && d.Record == nil
}

// leaves reports whether a delivery is left to its source instead of being held or
// tried again; mark is why, empty where it was not marked.
func (e *emptying) leaves(mark string) bool { return e.mode == draining || mark != "" }

// awaits reports whether the end of a delivery with that mark is awaited.
func (e *emptying) awaits(mark string) bool { return e.mode != flowing && e.leaves(mark) }

// reasons says why nothing is taken.
func (e *emptying) reasons() []string {
	switch e.mode {
	case quiescing:
		return []string{"waits for a new beginning of the source's session"}
	case parting:
		return []string{"the ownership of the source's session is being given up"}
	case draining:
		return []string{"stopping"}
	}
	return nil
}
