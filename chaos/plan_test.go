package chaos

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// plan is one round: the bridge, what is sent through it and what happens to it.
// Everything in it follows from the seed.
type plan struct {
	seed     uint64
	load     time.Duration // how long faults may begin
	dests    int           // destination brokers
	volatile bool          // the outbox is in memory
	routes   []routePlan
	faults   []fault
}

// routePlan is one route from the source broker to a binding or several.
type routePlan struct {
	id         string
	outbox     bool // shared_outbox, else direct_hold
	ephemeral  bool // the session at the source
	share      bool // $share
	filterQoS  byte // of the subscription
	sendQoS    string
	destMode   string // session_mode at the destinations
	bindings   []int  // destination broker of each
	dropFailed bool   // on_permanent_failure: drop
	dropOld    bool   // on_expired: drop
	inFlight   int
	depth      int // max_outbox_depth
	streams    []stream
}

// stream is messages of one kind on one topic of a route, numbered from 0.
type stream struct {
	route int // index
	leaf  leaf
	qos   byte // of the publisher's packets
	ids   identity
	rate  float64 // messages a second
}

// leaf is the kind of a stream, and the last level of its topic.
type leaf string

const (
	plain     leaf = "plain"
	besides   leaf = "besides"   // plain, at another QoS
	refused   leaf = "refused"   // the destination never takes it
	sometimes leaf = "sometimes" // the destination refuses it now and then
	poison    leaf = "poison"    // the destination answers each try with a failure that may pass
	expiring  leaf = "expiring"  // with a message expiry of a second
)

// identity says which ids the producer gives.
type identity int

const (
	none identity = iota
	unique
	reused // one id for every three messages
)

func (i identity) String() string { return [...]string{"no ids", "unique ids", "reused ids"}[i] }

// fault is something that happens to one part from at for as long as it lasts.
type fault struct {
	kind   kind
	dest   int // where the kind is about a destination
	at     time.Duration
	lasts  time.Duration
	choice int // 0 to 99, for what the kind leaves open
}

type kind string

const (
	bridgeKilled    kind = "bridge killed, its power lost"
	bridgeTerm      kind = "bridge stopped"
	bridgePaused    kind = "bridge paused"
	sourceRestarted kind = "source restarted"
	sourceKilled    kind = "source killed"
	sourcePaused    kind = "source paused"
	sourceRotated   kind = "credential of the source rotated"
	destRestarted   kind = "destination restarted"
	destPaused      kind = "destination paused"
	destRefuses     kind = "destination refuses a topic"
	destRotated     kind = "credential of a destination rotated"
	sourceCut       kind = "source link cut"
	sourceHole      kind = "source link a black hole"
	sourceStall     kind = "source link stalled"
	destCut         kind = "destination link cut"
	destHole        kind = "destination link a black hole"
	destStall       kind = "destination link stalled"
	destSlow        kind = "destination slow"
	destCrashed     kind = "destination crashed by itself"
	diskFull        kind = "disk full"
	diskBroken      kind = "disk refuses writes"
)

// lane is a part to which one thing happens at a time.
type lane struct {
	kinds []laneKind
	dest  int
	pause time.Duration // the mean between two faults
}

// laneKind is a kind with its weight and the longest time that it lasts.
type laneKind struct {
	kind
	weight  int
	longest time.Duration
}

const ms = time.Millisecond

func lanes(dests int) []lane {
	all := []lane{
		{pause: 4 * time.Second, kinds: []laneKind{{bridgeKilled, 5, 800 * ms}, {bridgeTerm, 2, 300 * ms}, {bridgePaused, 2, 3500 * ms}}},
		{pause: 5 * time.Second, kinds: []laneKind{{sourceRestarted, 3, 1500 * ms}, {sourceKilled, 1, 800 * ms}, {sourcePaused, 1, 3500 * ms}, {sourceRotated, 2, 0}}},
		{pause: 3 * time.Second, kinds: []laneKind{{sourceCut, 4, 0}, {sourceHole, 1, 3500 * ms}, {sourceStall, 1, 2 * time.Second}}},
		{pause: 6 * time.Second, kinds: []laneKind{{diskFull, 1, 3 * time.Second}, {diskBroken, 1, 2 * time.Second}}},
	}
	for d := range dests {
		all = append(all,
			lane{dest: d, pause: 4 * time.Second, kinds: []laneKind{{destRestarted, 3, 2 * time.Second}, {destPaused, 1, 3500 * ms}, {destRefuses, 3, 3 * time.Second}, {destRotated, 1, 0}}},
			lane{dest: d, pause: 3 * time.Second, kinds: []laneKind{{destCut, 4, 0}, {destHole, 1, 3500 * ms}, {destStall, 1, 2 * time.Second}, {destSlow, 2, 3 * time.Second}}},
		)
	}
	return all
}

// newPlan makes the plan of a seed.
func newPlan(seed uint64, load time.Duration) *plan {
	r := rand.New(rand.NewPCG(seed, 0xc4a05))
	p := &plan{seed: seed, load: load, dests: 1 + r.IntN(2), volatile: r.IntN(6) == 0}
	for i := range 1 + r.IntN(4) {
		p.routes = append(p.routes, p.newRoute(r, i))
	}
	for _, l := range lanes(p.dests) {
		p.faults = append(p.faults, l.schedule(r, load)...)
	}
	slices.SortStableFunc(p.faults, func(a, b fault) int { return cmp.Compare(a.at, b.at) })
	return p
}

func (p *plan) newRoute(r *rand.Rand, i int) routePlan {
	route := routePlan{
		id: fmt.Sprintf("r%d", i), outbox: r.IntN(2) == 0, ephemeral: r.IntN(6) == 0, share: r.IntN(5) == 0,
		filterQoS: byte(1 + r.IntN(2)), sendQoS: []string{"1", "1", "2", "preserve"}[r.IntN(4)],
		destMode:   []string{"persistent", "ephemeral"}[r.IntN(2)],
		dropFailed: r.IntN(5) == 0, dropOld: r.IntN(2) == 0,
		inFlight: []int{16, 192, 1000}[r.IntN(3)], depth: []int{100, 10_000}[r.IntN(2)],
	}
	if route.ephemeral && !route.outbox {
		route.filterQoS = 0 // G03 refuses anything else
	}
	for range 1 + max(0, r.IntN(5)-2) { // one, mostly
		route.bindings = append(route.bindings, r.IntN(p.dests))
	}
	ids := func() identity { return []identity{none, unique, unique}[r.IntN(3)] }
	add := func(l leaf, qos byte, id identity, rate float64) {
		route.streams = append(route.streams, stream{i, l, qos, id, rate})
	}
	main := byte(1 + r.IntN(2))
	id := ids()
	if route.outbox && r.IntN(5) == 0 {
		id = reused
	}
	add(plain, main, id, float64(30+r.IntN(50)))
	if r.IntN(2) == 0 {
		add(besides, byte(r.IntN(3)), ids(), 20)
	}
	if r.IntN(3) == 0 {
		add(refused, byte(1+r.IntN(2)), ids(), 4)
	}
	if r.IntN(3) == 0 {
		add(sometimes, main, ids(), 8)
	}
	if r.IntN(2) == 0 {
		add(poison, byte(1+r.IntN(2)), ids(), 0.3)
	}
	if r.IntN(3) == 0 {
		add(expiring, main, ids(), 8)
	}
	return route
}

// schedule draws the faults of a lane.
func (l lane) schedule(r *rand.Rand, load time.Duration) (all []fault) {
	total := 0
	for _, k := range l.kinds {
		total += k.weight
	}
	for at := time.Second; ; {
		at += 200*ms + time.Duration(r.Int64N(int64(2*l.pause)))
		n := r.IntN(total)
		i := 0
		for n >= l.kinds[i].weight {
			n -= l.kinds[i].weight
			i++
		}
		f := fault{kind: l.kinds[i].kind, dest: l.dest, at: at, choice: r.IntN(100)}
		if longest := l.kinds[i].longest; longest > 0 {
			f.lasts = 50*ms + time.Duration(r.Int64N(int64(longest)))
		}
		if at += f.lasts; at > load {
			return all
		}
		all = append(all, f)
	}
}

// topic is where a stream is published.
func (p *plan) topic(s *stream) string { return "in/" + p.routes[s.route].id + "/" + string(s.leaf) }

// qos is the QoS with which a stream's messages reach the bridge.
func (p *plan) qos(s *stream) byte { return min(s.qos, p.routes[s.route].filterQoS) }

// bindingID names a binding in config, topics and dead letters.
func (r *routePlan) bindingID(i int) string { return fmt.Sprintf("%s-b%d", r.id, i) }

// String describes the plan, a line for each route and fault.
func (p *plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d, load %v: %d destinations, outbox in memory %t\n", p.seed, p.load, p.dests, p.volatile)
	for i := range p.routes {
		r := &p.routes[i]
		fmt.Fprintf(&b, "  %s: outbox %t, source session ephemeral %t, share %t, filter QoS %d, send QoS %s over %s sessions to destinations %v, drop failed %t, drop expired %t, max_in_flight %d, max_outbox_depth %d\n",
			r.id, r.outbox, r.ephemeral, r.share, r.filterQoS, r.sendQoS, r.destMode, r.bindings, r.dropFailed, r.dropOld, r.inFlight, r.depth)
		for _, s := range r.streams {
			fmt.Fprintf(&b, "    %s: QoS %d, %v, %g/s\n", s.leaf, s.qos, s.ids, s.rate)
		}
	}
	for _, f := range p.faults {
		fmt.Fprintf(&b, "  %6.2fs %s\n", f.at.Seconds(), f)
	}
	return b.String()
}

// String names the fault with its part.
func (f fault) String() string {
	text := string(f.kind)
	if strings.Contains(text, "destination") {
		text += fmt.Sprintf(" (%d)", f.dest)
	}
	if f.lasts > 0 {
		text += fmt.Sprintf(" for %v", f.lasts.Round(ms))
	}
	return text
}
