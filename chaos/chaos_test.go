package chaos

import (
	"encoding/json"
	"fmt"
	"log"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/admin"
)

func TestMain(m *testing.M) {
	var err error
	if programs, err = os.MkdirTemp("", "chaos-"); err != nil {
		log.Fatal(err)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(programs)
		os.Exit(code)
	}))
}

const (
	steadySeed = 1
	// calmTail is how long the load goes on after the last fault.
	calmTail = 4 * time.Second
	// settling bounds the wait for everything to arrive once nothing happens any more.
	settling = 45 * time.Second
)

// duration reads a duration from the environment.
func duration(t *testing.T, name string, otherwise time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return d
}

// firstSeed is CHAOS_SEED: a number, or fresh for a random one. Without it it is the
// same every time, so that a change is judged by what it changes.
func firstSeed(t *testing.T) uint64 {
	t.Helper()
	switch text := os.Getenv("CHAOS_SEED"); text {
	case "":
		return steadySeed
	case "fresh":
		return rand.Uint64N(1_000_000_000)
	default:
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("CHAOS_SEED: %v", err)
		}
		return n
	}
}

// A bridge of a random shape keeps the promises of the guarantee matrix through random
// faults. CHAOS_DURATION is the time under faults (default 15s), in rounds of
// CHAOS_ROUND at most (default 20s); round i has the seed firstSeed+i. CHAOS_PLANT
// names a bug that the run has to find.
func TestPromisesHoldInChaos(t *testing.T) {
	total := duration(t, "CHAOS_DURATION", 15*time.Second)
	round := min(total, duration(t, "CHAOS_ROUND", 20*time.Second))
	seed := firstSeed(t)
	plant := os.Getenv("CHAOS_PLANT")
	program := build(t, plant)
	began := time.Now()
	sum := newTally()
	for ; sum.load < total; seed++ {
		var violations []string
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			p := newPlan(seed, round)
			var faults []happening
			violations, faults = play(t, p, program, sum)
			if len(violations) == 0 || plant != "" {
				return
			}
			t.Errorf("the round broke promises; again with: make chaos SEED=%d DURATION=%v\n%s\nwhat happened:\n%s\nviolations:\n%s",
				seed, round, p, timeline(faults), strings.Join(violations, "\n"))
		})
		sum.load += round
		if len(violations) > 0 && plant != "" {
			t.Logf("seed %d: the planted bug %s was found after %v:\n%s", seed, plant, time.Since(began).Round(time.Second), strings.Join(violations, "\n"))
			return
		}
		if t.Failed() {
			break
		}
	}
	t.Log(sum)
	if plant != "" {
		t.Errorf("the planted bug %s was not found", plant)
	}
	for _, missing := range sum.floors() {
		t.Error(missing)
	}
}

// play runs one round and returns what was wrong.
func play(t *testing.T, p *plan, program string, sum *tally) (violations []string, faults []happening) {
	w := newWorld(t, p, program)
	out := startSink(t, w)
	w.start()
	if !w.await(patience, "subscribed") {
		t.Fatalf("the bridge does not start: %s\n%s\n%s", w.readiness(), p, tail(w.bridge.Stderr()))
	}
	var senders []*sender
	for i := range p.routes {
		for s := range p.routes[i].streams {
			senders = append(senders, startSender(t, w, &p.routes[i].streams[s], p.load+calmTail))
		}
	}
	w.play(time.Now())
	calm := time.Time{}
	if w.await(settling, "full") {
		calm = time.Now().Add(time.Second)
	} else {
		w.accuse("not ready %v after the last fault: %s", settling, w.readiness())
	}
	for _, s := range senders {
		s.wait(t, time.Minute, w.keepRunning)
	}
	evidences := w.settle(senders, out, calm)
	w.conserved()
	for _, c := range out.collectors {
		if r := c.Report(senders[0].ledger()); r.SessionsLost > 0 {
			t.Fatalf("a destination has forgotten the session of the run itself: nothing can be judged")
		}
	}
	w.bridge.Signal(os.Interrupt)
	w.ended("at the end", 0)
	w.keepLogs(out)
	faults = w.faults
	if slices.ContainsFunc(faults, func(h happening) bool { return h.kind == destCrashed }) {
		sum.unjudged++
		t.Logf("not judged: a destination's broker crashed by itself")
		return nil, faults
	}
	sum.rounds++
	for _, h := range faults {
		sum.faults[h.kind]++
	}
	violations = w.said
	jumped := jumps(w.source.broker.Log())
	for _, e := range evidences {
		e.jumped = jumped[e.way.topic]
		violations = append(violations, e.count(sum)...)
	}
	if len(out.foreign) > 0 {
		violations = append(violations, fmt.Sprintf("messages that nobody sent: %v", out.foreign))
	}
	return violations, faults
}

// await waits for a level of readiness.
func (w *world) await(timeout time.Duration, level string) bool {
	for deadline := time.Now().Add(timeout); ; time.Sleep(20 * ms) {
		if status, _ := w.get("/readyz?level=" + level); status == http.StatusOK {
			return true
		}
		w.keepRunning()
		if time.Now().After(deadline) {
			return false
		}
	}
}

func (w *world) readiness() string {
	_, body := w.get("/readyz")
	return strings.TrimSpace(body)
}

// settle waits until every message has arrived, is a dead letter or may be lost, and
// the bridge owes nothing; it returns what is known then.
func (w *world) settle(senders []*sender, out *sink, calm time.Time) (all []*evidence) {
	for deadline := time.Now().Add(settling); ; time.Sleep(100 * ms) {
		idle := w.idle()
		late := time.Now().After(deadline)
		if !late && (!idle || out.quiet() < 300*ms) {
			continue
		}
		if !idle {
			w.accuse("work left %v after the load: %s", settling, w.readiness())
		}
		dead, err := w.deadLetters()
		if err != nil && !late {
			continue
		}
		if err != nil {
			w.accuse("dead letters: %v", err)
		}
		probe := newTally()
		all = gather(w.plan, senders, out, dead, calm, w.faults)
		fine := !slices.ContainsFunc(all, func(e *evidence) bool { return len(e.count(probe)) > 0 })
		if fine || late {
			return all
		}
		// The bridge says that it is done: what is missing now will not come. A broker may
		// still be at work, though.
		if out.quiet() > 3*time.Second {
			return all
		}
	}
}

// gather puts together what is known of every stream on every way.
func gather(p *plan, senders []*sender, out *sink, dead map[way]map[int]gobridge.Category, calm time.Time, faults []happening) (all []*evidence) {
	out.mu.Lock()
	defer out.mu.Unlock()
	for _, s := range senders {
		r := &p.routes[s.route]
		ledger := s.ledger()
		for b := range r.bindings {
			to := way{r.bindingID(b), s.topic}
			e := &evidence{plan: p, route: r, stream: s.stream, way: to, ledger: ledger, sentAt: s.sentAt, dead: dead[to], calm: calm, faults: faults}
			if a := out.ways[to]; a != nil {
				e.arrived = &arrived{count: maps.Clone(a.count), first: maps.Clone(a.first), order: slices.Clone(a.order)}
			}
			all = append(all, e)
		}
	}
	return all
}

// idle reports whether the bridge owes nothing.
func (w *world) idle() bool {
	w.keepRunning()
	status, body := w.get("/api/v1/monitor/deephealth")
	var h gobridge.BridgeHealth
	if status != http.StatusOK || json.Unmarshal([]byte(body), &h) != nil {
		return false
	}
	for _, s := range h.Sessions {
		if s.UnsettledCount > 0 {
			return false
		}
	}
	for _, r := range h.Routes {
		if r.InFlight > 0 || r.OutboxDepth > 0 {
			return false
		}
	}
	return true
}

// deadLetters reads the dead-letter queue: categories by way and number.
func (w *world) deadLetters() (map[way]map[int]gobridge.Category, error) {
	all := map[way]map[int]gobridge.Category{}
	for cursor := ""; ; {
		status, body := w.get("/api/v1/admin/dlq?full=true&limit=1000&cursor=" + cursor)
		var page admin.DLQPage
		if err := json.Unmarshal([]byte(body), &page); err != nil || status != http.StatusOK {
			return all, fmt.Errorf("answer %d %s", status, body)
		}
		for _, d := range page.DeadLetters {
			to := way{d.BindingID, d.Topic}
			digits, _, _ := strings.Cut(string(d.Message.Payload), " ")
			seq, err := strconv.Atoi(digits)
			if err != nil {
				return all, fmt.Errorf("payload %q: %w", d.Message.Payload, err)
			}
			if all[to] == nil {
				all[to] = map[int]gobridge.Category{}
			}
			all[to][seq] = d.Category
		}
		if cursor = page.Next; cursor == "" {
			return all, nil
		}
	}
}

// conserved checks the law of conservation for the last life of the bridge (decision
// G2): what was there and what came has one outcome for each binding, or waits.
func (w *world) conserved() {
	if w.depth == nil {
		return
	}
	for i := range w.plan.routes {
		r := &w.plan.routes[i]
		label := `route_id="` + r.id + `"`
		var came, went float64
		for range 20 { // one scrape is no snapshot
			s := w.metrics()
			came = float64(w.depth[r.id]) + s.sum("messages_received_total", label)*float64(len(r.bindings))
			went = s.sum("messages_in_flight", label) + s.sum("outbox_depth", label)
			for _, name := range []string{
				"messages_sent", "messages_dropped", "messages_filtered", "messages_expired", "dlq_entries", "outbox_duplicate_suppressed", "messages_returned",
			} {
				went += s.sum(name+"_total", label)
			}
			if came == went {
				break
			}
			time.Sleep(50 * ms)
		}
		if came != went {
			w.accuse("route %s, last life: %v copies came (%d were in the outbox), %v are accounted for", r.id, came, w.depth[r.id], went)
		}
	}
}

func timeline(faults []happening) string {
	var b strings.Builder
	for _, h := range faults {
		fmt.Fprintf(&b, "  %s to %s %s\n", h.began.Format("15:04:05.000"), h.ended.Format("15:04:05.000"), h.fault)
	}
	return b.String()
}
