package gobridge

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// hop is one route between two brokers, with sessions of its own unless it names
// those of an earlier route.
type hop struct {
	from, filter, to, address string
	allow                     bool
	receives, sends           string
}

// network builds a spec of hops; sessions are named <broker>-in-<n>, <broker>-out-<n>.
func network(hops ...hop) *Spec {
	s := &Spec{Bridge: BridgeSpec{ID: "b"}}
	known := map[string]bool{}
	session := func(id, broker, client string) string {
		if !known[id] {
			known[id] = true
			s.Sessions = append(s.Sessions, SessionSpec{ID: id, Transport: "test", Options: &testSession{Broker: broker, Client: client}})
		}
		return id
	}
	for i, h := range hops {
		in, out := h.receives, h.sends
		if in == "" {
			in = fmt.Sprint(h.from, "-in-", i)
		}
		if out == "" {
			out = fmt.Sprint(h.to, "-out-", i)
		}
		s.Routes = append(s.Routes, RouteSpec{
			ID:       fmt.Sprint("r", i),
			Receiver: &ReceiverSpec{SessionID: session(in, h.from, in), Topics: []TopicSpec{{Topic: h.filter}}},
			Bindings: []BindingSpec{{Sender: &SenderSpec{SessionID: session(out, h.to, out)}, Address: h.address}},
			Policy:   PolicySpec{AllowCycle: h.allow},
		})
	}
	return s
}

func TestCheckRefusesCycles(t *testing.T) {
	const hint = " (narrow a filter or an address of it, or write policy.allow_cycle: true in one of its routes)"
	for _, tc := range []struct {
		name string
		hops []hop
		want []string
	}{
		{"two ways on one tree", []hop{{from: "A", filter: "#", to: "B", address: "{topic}"}, {from: "B", filter: "#", to: "A", address: "{topic}"}}, []string{
			`routes[0]: messages would go in a circle: A -> route "r0" (# to {topic}) -> B -> route "r1" (# to {topic}) -> A` + hint,
		}},
		{"two ways on trees apart", []hop{{from: "A", filter: "up/#", to: "B", address: "{topic}"}, {from: "B", filter: "down/#", to: "A", address: "{topic}"}}, nil},
		{"permitted", []hop{{from: "A", filter: "#", to: "B", address: "{topic}"}, {from: "B", filter: "#", to: "A", address: "{topic}", allow: true}}, nil},
		{"one broker, onto itself", []hop{{from: "A", filter: "in/+", to: "A", address: "in/{topic[1]}"}}, []string{
			`routes[0]: messages would go in a circle: A -> route "r0" (in/+ to in/{topic[1]}) -> A` + hint,
		}},
		{"one broker, aside", []hop{{from: "A", filter: "in/+", to: "A", address: "out/{topic[1]}"}}, nil},
		{"a prefix leads out of the filter", []hop{{from: "A", filter: "a/#", to: "B", address: "x/{topic}"}, {from: "B", filter: "x/#", to: "A", address: "{topic}"}}, nil},
		{"a prefix taken off again", []hop{{from: "A", filter: "a/#", to: "B", address: "x/{topic}"}, {from: "B", filter: "x/#", to: "A", address: "{topic[1:]}"}}, []string{
			`routes[0]: messages would go in a circle: A -> route "r0" (a/# to x/{topic}) -> B -> route "r1" (x/# to {topic[1:]}) -> A` + hint,
		}},
		{"a prefix that grows on each round", []hop{{from: "A", filter: "#", to: "B", address: "x/{topic}"}, {from: "B", filter: "#", to: "A", address: "y/{topic}"}}, []string{
			`routes[0]: messages would go in a circle: A -> route "r0" (# to x/{topic}) -> B -> route "r1" (# to y/{topic}) -> A` + hint,
		}},
		{"ring of three", []hop{
			{from: "A", filter: "t/#", to: "B", address: "{topic}"},
			{from: "B", filter: "t/+/x", to: "C", address: "{topic}"},
			{from: "C", filter: "+/+/x", to: "A", address: "{topic}"},
		}, []string{
			`routes[0]: messages would go in a circle: A -> route "r0" (t/# to {topic}) -> B -> route "r1" (t/+/x to {topic}) -> C -> route "r2" (+/+/x to {topic}) -> A` + hint,
		}},
		{"a ring in pairs, but no topic comes round", []hop{
			{from: "A", filter: "a/#", to: "B", address: "{topic}"},
			{from: "B", filter: "#", to: "C", address: "{topic}"},
			{from: "C", filter: "c/#", to: "A", address: "a/{topic}"},
		}, nil},
		{"address from the payload can be anything", []hop{{from: "A", filter: "a", to: "A", address: "{payload:target}"}}, []string{
			`routes[0]: messages would go in a circle: A -> route "r0" (a to {payload:target}) -> A` + hint,
		}},
		{"brokers that share an endpoint", []hop{{from: "A,A2", filter: "#", to: "B", address: "{topic}"}, {from: "B", filter: "#", to: "A2", address: "{topic}"}}, []string{
			`routes[0]: messages would go in a circle: A -> route "r0" (# to {topic}) -> B -> route "r1" (# to {topic}) -> A2` + hint,
		}},
		{"No-Local on both sessions", []hop{
			{from: "A", filter: "#", to: "B", address: "{topic}", receives: "nolocal-a", sends: "nolocal-b"},
			{from: "B", filter: "#", to: "A", address: "{topic}", receives: "nolocal-b", sends: "nolocal-a"},
		}, nil},
		{"one session without No-Local", []hop{
			{from: "A", filter: "#", to: "B", address: "{topic}", receives: "both-a", sends: "both-b"},
			{from: "B", filter: "#", to: "A", address: "{topic}", receives: "both-b", sends: "both-a"},
		}, []string{
			`routes[0]: messages would go in a circle: A -> route "r0" (# to {topic}) -> B -> route "r1" (# to {topic}) -> A` + hint,
		}},
		{"No-Local does not help across sessions", []hop{
			{from: "A", filter: "#", to: "B", address: "{topic}", receives: "nolocal-a", sends: "nolocal-b"},
			{from: "B", filter: "#", to: "A", address: "{topic}", receives: "other-b", sends: "nolocal-a"},
		}, nil},
		{"No-Local on a session that only receives", []hop{
			{from: "A", filter: "#", to: "B", address: "{topic}", receives: "nolocal-1", sends: "x-1"},
			{from: "B", filter: "#", to: "A", address: "{topic}", receives: "nolocal-2", sends: "x-2"},
		}, []string{
			`routes[0]: messages would go in a circle: A -> route "r0" (# to {topic}) -> B -> route "r1" (# to {topic}) -> A` + hint,
		}},
		{"two circles are two faults", []hop{
			{from: "A", filter: "a/#", to: "B", address: "{topic}"},
			{from: "B", filter: "a/#", to: "A", address: "{topic}"},
			{from: "C", filter: "c/#", to: "D", address: "{topic}"},
			{from: "D", filter: "c/#", to: "C", address: "{topic}"},
		}, []string{
			`routes[0]: messages would go in a circle: A -> route "r0" (a/# to {topic}) -> B -> route "r1" (a/# to {topic}) -> A` + hint,
			`routes[2]: messages would go in a circle: C -> route "r2" (c/# to {topic}) -> D -> route "r3" (c/# to {topic}) -> C` + hint,
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, faults(network(tc.hops...).Check(testKinds()))); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
		})
	}
}

// A map that adds a level each time has endlessly many topics; the search must end
// and still find the circle.
func TestCycleSearchEndsOnGrowingTopics(t *testing.T) {
	hops := []hop{{from: "S", filter: "#", to: "A", address: "{topic}"}}
	for i := range 6 {
		hops = append(hops,
			hop{from: "A", filter: "#", to: "B", address: fmt.Sprint("p", i, "/{topic}")},
			hop{from: "B", filter: "#", to: "A", address: fmt.Sprint("q", i, "/{topic}")})
	}
	start := time.Now()
	got := faults(network(hops...).Check(testKinds()))
	if len(got) == 0 {
		t.Error("no circle found")
	}
	if d := time.Since(start); d > 20*time.Second {
		t.Errorf("the search took %v", d)
	}
}

// A wide network without a circle is searched completely.
func TestCycleSearchOfManyRoutesIsComplete(t *testing.T) {
	var hops []hop
	for i := range 150 {
		hops = append(hops,
			hop{from: "A", filter: fmt.Sprintf("up/%d/#", i), to: "B", address: "{topic}"},
			hop{from: "B", filter: fmt.Sprintf("down/%d/#", i), to: "A", address: "{topic}"})
	}
	problems := network(hops...).Check(testKinds())
	if got := faults(problems); got != nil {
		t.Error(got)
	}
	if diff := cmp.Diff([]string{memoryDLQ, memoryLedger}, warnings(problems)); diff != "" {
		t.Error(diff)
	}
}
