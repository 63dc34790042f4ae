package chaos

import (
	"testing"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/bridgetest"
)

// The judge knows a loss that no row allows from one that a row does.
func TestJudgeAllowsWhatTheMatrixAllows(t *testing.T) {
	t.Parallel()
	start := time.Now()
	killed := func(k kind, from, to time.Duration) []happening {
		return []happening{{&fault{kind: k}, start.Add(from), start.Add(to)}}
	}
	for name, c := range map[string]struct {
		change func(e *evidence)
		want   string
	}{
		"lost":                {func(*evidence) {}, ""},
		"arrived undisturbed": {func(e *evidence) { e.arrive(start.Add(time.Second), 1) }, "calm"},
		"arrived through a fault": {func(e *evidence) {
			e.arrive(start.Add(3*time.Second), 1)
			e.faults = killed(bridgeKilled, 1*time.Second, 2*time.Second)
		}, "G01"},
		"lost in a killed bridge":   {func(e *evidence) { e.faults = killed(bridgeKilled, 1*time.Second, 2*time.Second) }, ""},
		"lost in a killed source":   {func(e *evidence) { e.faults = killed(sourceKilled, 1*time.Second, 2*time.Second) }, "G11"},
		"killed long after":         {func(e *evidence) { e.faults = killed(sourceKilled, time.Minute, 2*time.Minute) }, ""},
		"QoS 0 lost":                {func(e *evidence) { e.stream.qos = 0 }, "G04"},
		"QoS 0 lost before Persist": {func(e *evidence) { e.stream.qos, e.route.outbox = 0, true }, "G07"},
		"ephemeral":                 {func(e *evidence) { e.route.ephemeral, e.route.outbox = true, true }, "G07"},
		"ephemeral, lost in calm":   {func(e *evidence) { e.route.ephemeral, e.route.outbox, e.calm = true, true, start.Add(-time.Second) }, ""},
		"outbox in memory":          {func(e *evidence) { e.route.outbox, e.plan.volatile = true, true }, "G08"},
		"lost from the outbox":      {func(e *evidence) { e.route.outbox = true }, ""},
		"collapsed": {func(e *evidence) {
			e.route.outbox, e.stream.ids = true, reused
			e.arrive(start, 0)
		}, "G10"},
		"collapsed without an outbox": {func(e *evidence) { e.stream.ids = reused; e.arrive(start, 0) }, ""},
		"id of another group":         {func(e *evidence) { e.route.outbox, e.stream.ids = true, reused; e.arrive(start, 3) }, ""},
		"not taken by the source":     {func(e *evidence) { e.ledger.Open = []int{1} }, "outside"},
		"dead without a fault":        {func(e *evidence) { e.dead[1] = gobridge.CategoryPermanent }, ""},
		"refused and dead":            {func(e *evidence) { e.stream.leaf = refused; e.dead[1] = gobridge.CategoryPermanent }, "G15"},
		"refused and lost":            {func(e *evidence) { e.stream.leaf = refused }, ""},
		"refused and dropped":         {func(e *evidence) { e.stream.leaf = refused; e.route.dropFailed = true }, "G15"},
		"poison":                      {func(e *evidence) { e.stream.leaf = poison; e.dead[1] = gobridge.CategoryPoison }, "G13"},
		"poison in the outbox": {func(e *evidence) {
			e.stream.leaf, e.route.outbox = poison, true
			e.dead[1] = gobridge.CategoryPoison
		}, "G12 G18"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &routePlan{id: "r0", filterQoS: 2, sendQoS: "1", bindings: []int{0}}
			s := &stream{leaf: plain, qos: 1, ids: unique}
			e := &evidence{
				plan: &plan{routes: []routePlan{*r}}, route: r, stream: s, dead: map[int]gobridge.Category{},
				ledger: bridgetest.Ledger{Sent: 4}, sentAt: func(int) time.Time { return start },
				arrived: &arrived{count: map[int]int{}, first: map[int]time.Time{}},
			}
			c.change(e)
			if v := e.judge(1); v.row != c.want {
				t.Errorf("row %q (%s), want %q", v.row, v.what, c.want)
			}
		})
	}
}

func (e *evidence) arrive(at time.Time, i int) {
	e.arrived.count[i]++
	e.arrived.first[i] = at
	e.arrived.order = append(e.arrived.order, i)
}

func TestOrderIsJudgedByFirstArrivals(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		order, resent []int
		jumped        bool
		late          int
	}{
		"in order":                    {order: []int{0, 1, 2, 3}},
		"late":                        {order: []int{0, 2, 1, 3}, late: 1},
		"sent again by its publisher": {order: []int{0, 2, 1, 3}, resent: []int{1}},
		"jumped at the source":        {order: []int{0, 2, 1, 3}, jumped: true},
	} {
		r := &routePlan{id: "r0", filterQoS: 1, bindings: []int{0}}
		e := &evidence{
			plan: &plan{routes: []routePlan{*r}}, route: r, stream: &stream{leaf: plain, qos: 1}, jumped: c.jumped,
			ledger: bridgetest.Ledger{Sent: 4, Resent: c.resent}, arrived: &arrived{order: c.order},
		}
		if late, judged := e.outOfOrder(); len(late) != c.late || judged == c.jumped {
			t.Errorf("%s: late %v, judged %t", name, late, judged)
		}
	}
}

func TestJumpsAreReadFromTheLog(t *testing.T) {
	t.Parallel()
	const log = `10:00:00: Sending PUBLISH to source-r0 (d0, q1, r0, m8, 'in/r0/plain', ... (60 bytes))
10:00:00: Sending PUBLISH to source-r1 (d0, q1, r0, m9, 'in/r1/plain', ... (60 bytes))
10:00:01: Sending PUBLISH to source-r0 (d0, q1, r0, m7, 'in/r0/plain', ... (60 bytes))
10:00:01: Sending PUBLISH to source-r1 (d1, q1, r0, m8, 'in/r1/plain', ... (60 bytes))
10:00:01: Sending PUBLISH to source-r1 (d0, q2, r0, m10, 'in/r1/plain', ... (60 bytes))
`
	if j := jumps(log); !j["in/r0/plain"] || j["in/r1/plain"] {
		t.Errorf("jumped: %v, want in/r0/plain", j)
	}
}
