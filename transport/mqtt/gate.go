package mqtt

import "context"

// gate lets one at a time change what a session has at its broker: its connection,
// its credentials, its subscriptions. Whoever comes in from outside acquires it with a
// context of its own; what runs inside never acquires it again.
type gate chan struct{}

func newGate() gate { return make(gate, 1) }

// acquire waits for its turn, and leaves promptly when ctx ends.
func (g gate) acquire(ctx context.Context) error {
	select {
	case g <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if ctx.Err() != nil { // both were ready
		g.release()
		return context.Cause(ctx)
	}
	return nil
}

func (g gate) release() { <-g }
