package main

import (
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// stampSize is what a payload begins with: phase and sequence number (4 bytes each)
// and the time of sending (8 bytes, nanoseconds after epoch), big-endian.
const stampSize = 16

// epoch is the zero of all time stamps. One process sends and receives, so its
// monotonic clock serves both ends.
var epoch = time.Now()

// stamp writes the head of a payload.
func stamp(payload []byte, phase, seq uint32) {
	binary.BigEndian.PutUint32(payload, phase)
	binary.BigEndian.PutUint32(payload[4:], seq)
	binary.BigEndian.PutUint64(payload[8:], uint64(time.Since(epoch)))
}

// probePhase marks the messages that wait for a bridge to come up.
const probePhase = 0

// tally counts the messages 0 to n-1 of one phase as they arrive. Earlier phases are
// complete, so what still comes of them is a duplicate. It is safe for concurrent use.
type tally struct {
	phase uint32
	n     int
	done  chan struct{} // closed at the arrival of the last missing message

	mu         sync.Mutex
	seen       []uint64 // a bit a message
	received   int      // different messages
	duplicates int
	reordered  int // first arrivals after one with a higher number
	highest    int
	last       time.Time               // arrival of the last missing message
	latency    *hdrhistogram.Histogram // microseconds; nil where it is not measured
}

func newTally(phase uint32, n int, withLatency bool) *tally {
	t := &tally{phase: phase, n: n, done: make(chan struct{}), seen: make([]uint64, (n+63)/64), highest: -1}
	if withLatency {
		t.latency = hdrhistogram.New(1, 60_000_000, 3)
	}
	return t
}

// add counts one arrival.
func (t *tally) add(payload []byte) error {
	if len(payload) < stampSize {
		return fmt.Errorf("payload of %d bytes arrived, not sent by this program", len(payload))
	}
	phase, seq := binary.BigEndian.Uint32(payload), int(binary.BigEndian.Uint32(payload[4:]))
	if phase == probePhase && t.phase != probePhase {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	bit := uint64(1) << (seq % 64)
	switch {
	case phase > t.phase || phase == t.phase && seq >= t.n:
		return fmt.Errorf("message %d of phase %d arrived in phase %d of %d messages", seq, phase, t.phase, t.n)
	case phase < t.phase || t.seen[seq/64]&bit != 0:
		t.duplicates++
		return nil
	}
	t.seen[seq/64] |= bit
	if seq < t.highest {
		t.reordered++
	}
	t.highest = max(t.highest, seq)
	if t.latency != nil {
		took := time.Since(epoch) - time.Duration(binary.BigEndian.Uint64(payload[8:]))
		if err := t.latency.RecordValue(took.Microseconds()); err != nil {
			return fmt.Errorf("latency of %v: %w", took, err)
		}
	}
	if t.received++; t.received == t.n {
		t.last = time.Now()
		close(t.done)
	}
	return nil
}

// count returns how many different messages arrived, and how many came again or out
// of order.
func (t *tally) count() (received, duplicates, reordered int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.received, t.duplicates, t.reordered
}

// percentile returns a latency in milliseconds. The phase must be over.
func (t *tally) percentile(q float64) float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return float64(t.latency.ValueAtQuantile(q)) / 1000
}
