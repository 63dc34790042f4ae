package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/config"
	"github.com/gobridge/gobridge/engine"
	"github.com/gobridge/gobridge/kinds"
)

// demoConfig is the whole bridge of the demo: two routes, one for each delivery mode.
// The values are the data directory, the HTTP address, and the brokers' addresses.
const demoConfig = `bridge: { id: demo, data_dir: %q }
http: { listen: %q }
log: { level: warn }
sessions:
  - { id: edge-sensors, transport: mqtt, options: { session: { broker_url: "tcp://%[3]s" } } }
  - { id: edge-events, transport: mqtt, options: { session: { broker_url: "tcp://%[3]s" } } }
  - { id: cloud, transport: mqtt, options: { session: { broker_url: "tcp://%[4]s", reconnect_delay: 200ms, reconnect_max_delay: 1s } } }
routes:
  - id: sensors-up # the source keeps each message until the destination confirmed it
    delivery_mode: direct_hold
    receiver: { session_id: edge-sensors, topics: [ { topic: "sensors/#", qos: 1 } ] }
    bindings: [ { sender: { session_id: cloud }, address: "plant-7/{topic}" } ]
  - id: events-up # the bridge keeps each message on disk, and tells the source at once
    delivery_mode: shared_outbox
    receiver: { session_id: edge-events, topics: [ { topic: "events/#", qos: 1 } ] }
    bindings: [ { sender: { session_id: cloud }, address: "plant-7/{topic}" } ]
`

const (
	// demoInterval is the pace of the sample publisher: the embedded brokers are made
	// for a look, not for load.
	demoInterval = 20 * time.Millisecond
	// demoStall is how long nothing may arrive while something is on its way and the
	// link is up.
	demoStall = 5 * time.Second
)

// demo runs a bridge between two embedded brokers.
type demo struct {
	duration time.Duration
	http     string
	out      io.Writer
}

func newDemo() *cobra.Command {
	var d demo
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "See a bridge at work, with nothing installed",
		Long: "Run two MQTT brokers inside this process, a bridge between them, and a sample\n" +
			"publisher; cut the link to the destination once, and count what was lost.\n" +
			"Exit codes: 0 nothing was lost, 1 something was, or the flow stalled for 5 s.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d.out = cmd.OutOrStdout()
			return d.run(cmd)
		},
	}
	cmd.Flags().DurationVar(&d.duration, "duration", 30*time.Second, "how long to publish")
	cmd.Flags().StringVar(&d.http, "http", "127.0.0.1:0", "address of probes and metrics; empty for none")
	return cmd
}

func (d *demo) run(cmd *cobra.Command) error {
	if d.duration < time.Second {
		return usageError(cmd, "--duration is at least 1s")
	}
	edge, err := startDemoBroker()
	if err != nil {
		return fmt.Errorf("source broker: %w", err)
	}
	defer edge.close()
	cloud, err := startDemoBroker()
	if err != nil {
		return fmt.Errorf("destination broker: %w", err)
	}
	defer cloud.close()
	link, err := newDemoLink(cloud.addr())
	if err != nil {
		return fmt.Errorf("link to the destination: %w", err)
	}
	defer link.close()

	dir, err := os.MkdirTemp("", "gobridge-demo-")
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	defer os.RemoveAll(dir)
	text := fmt.Sprintf(demoConfig, dir, d.http, edge.addr(), link.addr())
	file, diags := config.Load("demo.yaml", []byte(text), kinds.All())
	for _, x := range diags { // the one value that is the user's
		if x.Path == "http.listen" && !x.Warning {
			return usageError(cmd, fmt.Sprintf("--http %q: %s (%s)", d.http, x.What, x.Hint))
		}
	}
	if config.HasErrors(diags) {
		printDiagnostics(cmd, diags)
		return &exitError{code: exitFailed}
	}
	log := newLogger(file.Log, cmd.ErrOrStderr())
	eng, err := engine.New(&file.Spec, engine.Options{Kinds: kinds.All()})
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	server, err := listen(&file.HTTP, eng, log)
	if e, ok := errors.AsType[*gobridge.Error](err); ok && e.Op == "http.listen" {
		err = &gobridge.Error{Code: e.Code, Class: e.Class, Op: "--http", Err: e.Err, Hint: e.Hint}
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(d.out, "This is the whole bridge:\n\n%s\n", text)
	if server != nil {
		fmt.Fprintf(d.out, "Look at it: http://%s/\n\n", server.Addr())
	}

	ctx, done := untilSignal(cmd.Context(), log, os.Exit)
	defer done()
	bridge, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	var runErr error
	running.Go(func() { runErr = serve(bridge, server, eng, log) })
	flows := []*demoFlow{
		{name: "direct_hold", topic: "sensors/hall-%d/temperature", demoTally: newDemoTally()},
		{name: "shared_outbox", topic: "events/hall-%d/door", demoTally: newDemoTally()},
	}
	err = d.play(ctx, eng, edge, cloud, link, flows)
	stop()
	running.Wait()
	return d.summary(flows, errors.Join(err, runErr))
}

// demoFlow is what crosses one route.
type demoFlow struct {
	name  string
	topic string // with a place for a number
	*demoTally
}

// play publishes for the duration, cuts the link once, and waits for what is on its
// way.
func (d *demo) play(ctx context.Context, eng *engine.Engine, edge, cloud *demoBroker, link *demoLink, flows []*demoFlow) error {
	for i, prefix := range []string{"plant-7/sensors/#", "plant-7/events/#"} {
		if err := cloud.subscribe(prefix, i+1, flows[i].arrive); err != nil {
			return fmt.Errorf("subscribe at the destination: %w", err)
		}
	}
	tick := time.NewTicker(demoInterval)
	defer tick.Stop()
	for begin := time.Now(); len(eng.Ready(gobridge.LevelFull)) > 0; <-tick.C {
		if time.Since(begin) > demoStall {
			return fmt.Errorf("the bridge was not ready within %s: %s", demoStall, eng.Ready(gobridge.LevelFull)[0].Reason)
		}
	}
	begin := time.Now()
	cutAt, healAt := d.duration*2/5, d.duration*2/5+min(3*time.Second, d.duration/5)
	cut, healed := false, false
	report := time.Second
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			d.duration = 0 // stop publishing; what is on its way still counts
			ctx = context.WithoutCancel(ctx)
		}
		now := time.Since(begin)
		switch {
		case !cut && now >= cutAt && d.duration > 0:
			cut = true
			link.cut()
			fmt.Fprintf(d.out, "%4.0fs  -- the link to the destination is cut --\n", now.Seconds())
		case cut && !healed && now >= healAt:
			healed = true
			link.heal()
			for _, f := range flows {
				f.alive()
			}
			fmt.Fprintf(d.out, "%4.0fs  -- the link is back --\n", now.Seconds())
		}
		if now < d.duration {
			for _, f := range flows {
				n := f.send()
				payload := fmt.Sprintf(`{"n":%d,"celsius":%.1f}`, n, 20+float64(n%50)/10)
				if err := edge.publish(fmt.Sprintf(f.topic, n%4), payload); err != nil {
					return fmt.Errorf("publish at the source: %w", err)
				}
			}
		}
		tell := now >= report
		if tell {
			report += time.Second
			fmt.Fprintf(d.out, "%4.0fs", now.Seconds())
		}
		done := now >= d.duration
		for _, f := range flows {
			sent, arrived, _, idle := f.state()
			if tell {
				fmt.Fprintf(d.out, "   %s: sent %5d, on the way %4d", f.name, sent, sent-arrived)
			}
			done = done && sent == arrived
			if sent > arrived && idle > demoStall && cut == healed {
				return fmt.Errorf("%s stalled: nothing arrived for %s", f.name, demoStall)
			}
		}
		if tell {
			fmt.Fprintln(d.out)
		}
		if done {
			return nil
		}
	}
}

func (d *demo) summary(flows []*demoFlow, err error) error {
	fmt.Fprintln(d.out)
	missing := 0
	for _, f := range flows {
		sent, arrived, duplicates, _ := f.state()
		missing += sent - arrived
		fmt.Fprintf(d.out, "%-14s sent %d   received %d   lost %d   duplicated %d\n", f.name+":", sent, arrived, sent-arrived, duplicates)
	}
	if err == nil && missing > 0 {
		err = fmt.Errorf("%d messages did not arrive", missing)
	}
	return err
}

// demoTally counts what was sent and what arrived, by number.
type demoTally struct {
	mu         sync.Mutex
	sent       int
	seen       map[int]bool
	duplicates int
	last       time.Time
}

func newDemoTally() *demoTally { return &demoTally{seen: map[int]bool{}, last: time.Now()} }

func (t *demoTally) send() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sent++
	return t.sent - 1
}

func (t *demoTally) arrive(payload []byte) {
	var n int
	if _, err := fmt.Sscanf(string(payload), `{"n":%d,`, &n); err != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = time.Now()
	if t.seen[n] {
		t.duplicates++
	}
	t.seen[n] = true
}

// alive restarts the watch for a stall.
func (t *demoTally) alive() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = time.Now()
}

func (t *demoTally) state() (sent, arrived, duplicates int, idle time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sent == len(t.seen) {
		t.last = time.Now()
	}
	return t.sent, len(t.seen), t.duplicates, time.Since(t.last)
}
