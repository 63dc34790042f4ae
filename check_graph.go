package gobridge

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxCycleSteps bounds the search for a cycle through one edge. The shortest cycles
// are found first; a map that adds a level on each round would otherwise be followed
// until the topic is full.
const maxCycleSteps = 1 << 14

// edge is one way of messages between brokers: what one filter of a route takes
// from its source, sent to one binding.
type edge struct {
	resolvedBinding
	from, to             *broker
	filter               string
	receives, sends      *use
	label, origin, where string
}

// broker is a node of the graph: sessions that share an endpoint are at one
// broker.
type broker struct {
	joined *broker
	name   string
}

func (b *broker) root() *broker {
	for b.joined != nil {
		b = b.joined
	}
	return b
}

// checkCycles refuses routes that lead a message back to where it was (E3). The
// graph has the brokers as nodes and the filters and address patterns of the routes
// as edges; a cycle is a sequence of edges along which some topic comes through.
// No-Local cuts the step from an edge into one that receives on the session that
// sent. Routes with allow_cycle are left out: they permit every cycle they are on.
func (c *checker) checkCycles() {
	edges := c.edges()
	next := make(map[*broker][]*edge)
	for _, e := range edges {
		next[e.from] = append(next[e.from], e)
	}
	var reported []string
	complete := true
	for _, e := range edges {
		cycle, whole := findCycle(e, next)
		complete = complete && whole
		if cycle == nil {
			continue
		}
		key, first := cycleKey(cycle)
		if slices.Contains(reported, key) {
			continue
		}
		reported = append(reported, key)
		c.fault(at("routes", first), "messages would go in a circle: "+describeCycle(cycle),
			"narrow a filter or an address of it, or write policy.allow_cycle: true in one of its routes")
	}
	if !complete && len(reported) == 0 {
		c.warn("routes", "the routes have too many ways to search all of them for a circle", "a message in a circle is stopped by policy.max_hops")
	}
}

// edges lists the ways of the routes that may not be on a cycle.
func (c *checker) edges() []*edge {
	brokers := c.brokers()
	var edges []*edge
	for _, b := range c.bindings {
		r := &c.spec.Routes[b.route]
		receives, sends := c.useOf(c.spec.Receivers[b.receiver].SessionID), c.useOf(c.spec.Senders[b.sender].SessionID)
		if r.Policy.AllowCycle || receives == nil || sends == nil {
			continue
		}
		from, to := brokers[receives], brokers[sends]
		if from == nil || to == nil {
			continue
		}
		for _, t := range c.spec.Receivers[b.receiver].Topics {
			if ValidateFilter(t.Topic) != nil {
				continue
			}
			_, filter, _ := SplitShare(t.Topic)
			edges = append(edges, &edge{
				resolvedBinding: b, from: from.root(), to: to.root(), filter: filter, receives: receives, sends: sends,
				label:  fmt.Sprintf("route %q (%s to %s)", r.ID, filter, b.template),
				origin: from.name, where: to.name,
			})
		}
	}
	return edges
}

// brokers gives each session the broker it connects to.
func (c *checker) brokers() map[*use]*broker {
	byEndpoint := make(map[string]*broker)
	bySession := make(map[*use]*broker)
	for i := range c.uses {
		u := &c.uses[i]
		if u.broken || u.kind == nil || u.kind.Endpoints == nil {
			continue
		}
		endpoints := u.kind.Endpoints(u.Session)
		if len(endpoints) == 0 {
			continue
		}
		b := &broker{name: endpoints[0]}
		bySession[u] = b
		for _, endpoint := range endpoints {
			key := u.Session.Transport + " " + endpoint
			other := byEndpoint[key]
			if other == nil {
				byEndpoint[key] = b
			} else if r, o := b.root(), other.root(); r != o {
				r.joined = o
			}
		}
	}
	return bySession
}

// state is an edge with the topics that reach it.
type state struct {
	edge  *edge
	topic string
	from  *state
	// returned says that the path came back to its first edge.
	returned bool
}

// findCycle searches, breadth first, for the shortest way of a message from e back
// to e that it can take again and again: everything that e takes comes back, or what
// came back once comes back a second time. whole is false when the search was given
// up.
func findCycle(e *edge, next map[*broker][]*edge) (cycle []*edge, whole bool) {
	type key struct {
		edge     *edge
		topic    string
		returned bool
	}
	seen := make(map[key]bool)
	steps := 0
	for queue := []*state{{edge: e, topic: e.filter}}; len(queue) > 0; queue = queue[1:] {
		s := queue[0]
		pattern, ok := s.edge.template.Pattern(s.topic)
		if !ok || len(pattern) > MaxTopicBytes {
			continue
		}
		for _, n := range next[s.edge.to] {
			if steps++; steps > maxCycleSteps {
				return nil, false
			}
			if cut(s.edge, n) {
				continue
			}
			topic, ok := IntersectFilters(pattern, n.filter)
			if !ok {
				continue
			}
			if n == e && (s.returned || topic == e.filter) {
				return s.lastRound(e), true
			}
			k := key{n, topic, s.returned || n == e}
			if seen[k] {
				continue
			}
			seen[k] = true
			queue = append(queue, &state{edge: n, topic: topic, from: s, returned: k.returned})
		}
	}
	return nil, true
}

// lastRound lists the edges of the path from where it last took e.
func (s *state) lastRound(e *edge) []*edge {
	edges := []*edge{s.edge}
	for ; s.edge != e; s = s.from {
		edges = append(edges, s.from.edge)
	}
	slices.Reverse(edges)
	return edges
}

// cut reports that the broker does not hand what e sent to n.
func cut(e, n *edge) bool {
	return e.sends == n.receives && e.sends.kind.NoLocal != nil && e.sends.kind.NoLocal(e.sends.Session)
}

// cycleKey names the set of routes of a cycle, and its first route.
func cycleKey(cycle []*edge) (key string, first int) {
	var routes []int
	for _, e := range cycle {
		routes = append(routes, e.route)
	}
	slices.Sort(routes)
	for _, r := range slices.Compact(routes) {
		key += strconv.Itoa(r) + " "
	}
	return key, routes[0]
}

func describeCycle(cycle []*edge) string {
	var b strings.Builder
	b.WriteString(cycle[0].origin)
	for _, e := range cycle {
		fmt.Fprintf(&b, " -> %s -> %s", e.label, e.where)
	}
	return b.String()
}
