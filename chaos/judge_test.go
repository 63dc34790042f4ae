package chaos

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/bridgetest"
)

// brokerMemory is how long before its kill -9 a broker may have taken what it then
// forgets: it saves every second, and the machine may be busy.
const brokerMemory = 5 * time.Second

// evidence is everything that the judge knows of one stream on one way.
type evidence struct {
	plan    *plan
	route   *routePlan
	stream  *stream
	way     way
	ledger  bridgetest.Ledger
	sentAt  func(i int) time.Time
	arrived *arrived                  // nil when nothing did
	dead    map[int]gobridge.Category // dead letters by number
	calm    time.Time                 // from then on nothing disturbs anything
	faults  []happening
	// jumped: the source's broker itself did not keep to the order: mosquitto 2.0.11
	// lets a new message pass those that it has queued.
	jumped bool
}

// verdict is what became of one message, and by which row of the matrix that is
// allowed.
type verdict struct {
	row  string // "" for a violation
	what string
}

// judge tells what became of message i.
func (e *evidence) judge(i int) verdict {
	category, dead := e.dead[i]
	n := 0
	if e.arrived != nil {
		n = e.arrived.count[i]
	}
	switch {
	case n > 0:
		return e.delivered(i)
	case dead:
		return e.deadLettered(category)
	}
	return e.missing(i)
}

// delivered finds the row by which a message that arrived was kept.
func (e *evidence) delivered(i int) verdict {
	if !e.disturbed(e.sentAt(i), e.arrived.first[i]) {
		return verdict{"calm", "delivered"}
	}
	v := verdict{"", "delivered"}
	switch qos := e.plan.qos(e.stream); {
	case qos == 0 && e.route.outbox || e.route.ephemeral && e.route.outbox:
		v.row = "G07"
	case qos == 0:
		v.row = "G04"
	case !e.route.outbox:
		v.row = "G01"
	case e.plan.volatile:
		v.row = "G08"
	case e.stream.ids == none:
		v.row = "G09"
	default:
		v.row = "G05 G06"
	}
	return v
}

// disturbed reports whether a fault was there at some time between two.
func (e *evidence) disturbed(from, to time.Time) bool {
	return slices.ContainsFunc(e.faults, func(h happening) bool { return h.began.Before(to) && from.Before(h.ended) })
}

// deadLettered finds the row of a dead letter. A message without a fault of its own
// must not be one.
func (e *evidence) deadLettered(c gobridge.Category) verdict {
	what := "dead letter (" + string(c) + ")"
	var row string
	switch {
	case c == gobridge.CategoryExpired && e.stream.leaf == expiring:
		row = "G15"
	case c == gobridge.CategoryPermanent && (e.stream.leaf == refused || e.stream.leaf == sometimes):
		row = "G15"
	case e.stream.leaf != poison:
	case c == gobridge.CategoryPoison && e.route.outbox:
		row = "G12"
	case c == gobridge.CategoryPoison:
		row = "G13"
	case c == gobridge.CategoryUnstableIdentity:
		row = "G14"
	case c == gobridge.CategoryRetryUnsupported && (e.plan.qos(e.stream) == 0 || e.route.ephemeral):
		row = "G14"
	}
	if row == "" {
		what += " without a fault of its own"
	} else if e.route.outbox {
		row += " G18"
	}
	return verdict{row, what}
}

// missing finds the row that allows the loss of a message.
func (e *evidence) missing(i int) verdict {
	at := e.sentAt(i)
	calm := !e.calm.IsZero() && at.After(e.calm)
	loss := func(row, why string) verdict { return verdict{row, "lost: " + why} }
	switch qos := e.plan.qos(e.stream); {
	case slices.Contains(e.ledger.Open, i):
		return loss("outside", "the source has not taken it")
	case e.ledger.Refused[i] != 0:
		return loss("outside", "the source refused it")
	case at.IsZero():
		return loss("outside", "it was never sent")
	case e.stream.ids == reused && e.route.outbox && e.collapsed(i):
		return loss("G10", "another message has its id")
	case e.stream.leaf == expiring:
		return loss("G11", "expired at the source, or dropped by on_expired")
	case e.route.dropFailed && (e.stream.leaf == refused || e.stream.leaf == poison || e.stream.leaf == sometimes):
		return loss("G15", "dropped by on_permanent_failure")
	case calm && qos > 0:
		return loss("", "nothing happened after it was sent")
	case qos == 0 && e.stream.leaf != plain && e.stream.leaf != besides:
		return loss("G17", "QoS 0 with a fault of its own")
	case (qos == 0 || e.route.ephemeral) && e.route.outbox:
		return loss("G07", "QoS 0 or an ephemeral session")
	case qos == 0:
		return loss("G04", "QoS 0")
	case e.route.outbox && e.plan.volatile:
		return loss("G08", "the outbox is in memory")
	case e.route.share && e.unshared(at):
		return loss("G11", "its broker forgot the shared subscription")
	case e.forgotten(at):
		return loss("G11", "its broker was killed")
	}
	return loss("", "nothing allows that")
}

// collapsed reports whether another message of i's id arrived or became a dead letter.
func (e *evidence) collapsed(i int) bool {
	for j := range e.ledger.Sent {
		if j == i || e.stream.group(j) != e.stream.group(i) {
			continue
		}
		if _, dead := e.dead[j]; dead || e.arrived != nil && e.arrived.count[j] > 0 {
			return true
		}
	}
	return false
}

// forgotten reports whether the source was killed so soon after at that it may not
// have saved what it took.
func (e *evidence) forgotten(at time.Time) bool {
	return slices.ContainsFunc(e.faults, func(h happening) bool {
		return h.kind == sourceKilled && at.Before(h.ended) && h.began.Sub(at) < brokerMemory
	})
}

// unshared reports whether the source was started again before at: mosquitto 2.0.11
// then has forgotten the shared subscriptions of the sessions that it kept, until the
// bridge subscribes again. A QoS 2 message may be routed a moment after it was sent.
func (e *evidence) unshared(at time.Time) bool {
	return slices.ContainsFunc(e.faults, func(h happening) bool {
		return (h.kind == sourceKilled || h.kind == sourceRestarted) && h.began.Add(-time.Second).Before(at)
	})
}

// outOfOrder returns messages whose first arrival came after that of a later one, as
// far as the order is promised (decision E1): one binding, direct_hold, no failures of
// its own. What the publisher had to send again proves nothing.
func (e *evidence) outOfOrder() (late []int, judged bool) {
	if e.arrived == nil || e.jumped || e.route.outbox || len(e.route.bindings) > 1 || e.route.ephemeral || e.plan.qos(e.stream) == 0 || e.stream.leaf != plain {
		return nil, false
	}
	highest := -1
	for _, i := range e.arrived.order {
		if slices.Contains(e.ledger.Resent, i) {
			continue
		}
		if i < highest {
			late = append(late, i)
		}
		highest = max(highest, i)
	}
	return late, true
}

var sending = regexp.MustCompile(`Sending PUBLISH to source-[^ ]+ \(d0, q[12], r0, m([0-9]+), '([^']+)'`)

// jumps returns the topics whose messages a broker sent in another order than it had
// got them, by its log: it gives them their packet identifiers when they come.
func jumps(log string) map[string]bool {
	jumped := map[string]bool{}
	last := map[string]int{}
	for _, m := range sending.FindAllStringSubmatch(log, -1) {
		id, _ := strconv.Atoi(m[1])
		jumped[m[2]] = jumped[m[2]] || id < last[m[2]]
		last[m[2]] = max(last[m[2]], id)
	}
	return jumped
}

// tally counts what a run has seen.
type tally struct {
	rounds, unjudged                 int
	messages, deliveries, duplicates int
	ordered                          int // streams whose order was judged
	load                             time.Duration
	faults                           map[kind]int
	rows                             map[string]int
}

func newTally() *tally { return &tally{faults: map[kind]int{}, rows: map[string]int{}} }

// count takes the verdict of one stream into the tally and returns what is wrong.
func (e *evidence) count(t *tally) (violations []string) {
	wrong := map[string][]int{}
	for i := range e.ledger.Sent {
		t.messages++
		v := e.judge(i)
		if v.row == "" {
			wrong[v.what] = append(wrong[v.what], i)
			continue
		}
		for row := range strings.FieldsSeq(v.row) {
			t.rows[row]++
		}
	}
	if e.arrived != nil {
		for _, n := range e.arrived.count {
			t.deliveries++
			t.duplicates += n - 1
			if n > 1 {
				t.rows["G19"]++
			}
		}
	}
	if late, judged := e.outOfOrder(); judged {
		t.ordered++
		if len(late) > 0 {
			wrong["out of order"] = late
		}
	}
	for what, ids := range wrong {
		violations = append(violations, fmt.Sprintf("%s to %s (QoS %d, %v): %d messages %s: %s",
			e.way.topic, e.way.binding, e.stream.qos, e.stream.ids, len(ids), what, e.list(ids)))
	}
	slices.Sort(violations)
	return violations
}

// list names messages with the times at which they were sent.
func (e *evidence) list(ids []int) string {
	var b strings.Builder
	for n, i := range ids {
		if n == 20 {
			b.WriteString(" ...")
			break
		}
		fmt.Fprintf(&b, " %d (sent %s)", i, e.sentAt(i).Format("15:04:05.000"))
	}
	return b.String()
}
