package bridgetest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Ledger is the sending side of a [Report]: what a source sent of the messages 0 to
// Sent-1.
type Ledger struct {
	Sent     int
	Acked    int          // the source's broker took it
	Open     []int        // sent and neither acknowledged nor refused: these need not arrive
	Resent   []int        // sent more than once: a duplicate of these is not the bridge's doing
	Refused  map[int]byte // reason codes of 0x80 and more: these need not arrive
	Unrouted int          // acknowledged with 0x10 (no matching subscribers): the broker kept nothing
}

// Report compares what was sent with what arrived.
type Report struct {
	Ledger

	Received   int   // different messages
	Lost       []int // the source's broker took them and they did not arrive
	Duplicates int   // deliveries beyond the first, over all messages

	// Unexplained is the part of Duplicates that the publisher did not cause: all
	// further deliveries of messages that it sent once.
	Unexplained int

	// OutOfOrder counts first deliveries that came after one with a higher number
	// (the reordered packets of RFC 4737).
	OutOfOrder int

	// Foreign are the first payloads that carry no number of the ledger.
	Foreign      []string
	ForeignCount int

	// Redelivered counts deliveries that the collector's own broker repeated to it (DUP,
	// same packet id, same message) after a reconnect. They are not in Duplicates.
	Redelivered int

	// SessionsLost counts reconnects of the collector at which its broker had forgotten
	// the session: messages may be missing that the bridge did deliver. A verdict needs
	// zero.
	SessionsLost int
}

// String returns the figures on one line, with the first few lost numbers.
func (r Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "sent %d, acked %d, resent %d, received %d, lost %d, duplicates %d (unexplained %d), out of order %d",
		r.Sent, r.Acked, len(r.Resent), r.Received, len(r.Lost), r.Duplicates, r.Unexplained, r.OutOfOrder)
	if len(r.Lost) > 0 {
		fmt.Fprintf(&b, "; first lost %v", r.Lost[:min(10, len(r.Lost))])
	}
	for _, extra := range []struct {
		name  string
		count int
	}{
		{"open", len(r.Open)},
		{"refused", len(r.Refused)},
		{"unrouted", r.Unrouted},
		{"foreign", r.ForeignCount},
		{"redelivered to the collector", r.Redelivered},
		{"collector sessions lost", r.SessionsLost},
	} {
		if extra.count > 0 {
			fmt.Fprintf(&b, ", %s %d", extra.name, extra.count)
		}
	}
	return b.String()
}

// arrivals counts deliveries by sequence number.
type arrivals struct {
	count        map[int]int
	order        []int // first deliveries
	foreign      []string
	foreignCount int
}

// maxForeign is how many foreign payloads are kept.
const maxForeign = 10

func newArrivals() *arrivals { return &arrivals{count: make(map[int]int)} }

// add counts one delivery and reports whether it is the first of its number.
func (a *arrivals) add(payload []byte) bool {
	seq, err := sequence(payload)
	if err != nil {
		a.addForeign(string(payload))
		return false
	}
	a.count[seq]++
	if a.count[seq] > 1 {
		return false
	}
	a.order = append(a.order, seq)
	return true
}

func (a *arrivals) addForeign(payload string) {
	a.foreignCount++
	if len(a.foreign) < maxForeign {
		a.foreign = append(a.foreign, payload)
	}
}

// report judges the arrivals by the ledger.
func (a *arrivals) report(l Ledger) Report {
	r := Report{Ledger: l, Foreign: slices.Clone(a.foreign), ForeignCount: a.foreignCount}
	resent := make(map[int]bool)
	for _, seq := range l.Resent {
		resent[seq] = true
	}
	highest := -1
	for _, seq := range a.order {
		if seq >= l.Sent {
			continue
		}
		r.Received++
		if seq < highest {
			r.OutOfOrder++
		}
		highest = max(highest, seq)
	}
	for _, seq := range slices.Sorted(maps.Keys(a.count)) {
		n := a.count[seq]
		if seq >= l.Sent {
			r.ForeignCount += n
			if len(r.Foreign) < maxForeign {
				r.Foreign = append(r.Foreign, fmt.Sprint(seq))
			}
			continue
		}
		r.Duplicates += n - 1
		if !resent[seq] {
			r.Unexplained += n - 1
		}
	}
	excused := make(map[int]bool)
	for _, seq := range slices.Concat(l.Open, slices.Collect(maps.Keys(l.Refused))) {
		excused[seq] = true
	}
	for seq := range l.Sent {
		if a.count[seq] == 0 && !excused[seq] {
			r.Lost = append(r.Lost, seq)
		}
	}
	return r
}
