package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/config"
	"github.com/gobridge/gobridge/engine"
	"github.com/gobridge/gobridge/kinds"
)

// demoConfig is the whole bridge of the demo; the three values are addresses.
const demoConfig = `bridge: { id: demo }
http: { listen: %q }
log: { level: warn }
stores: { dlq: { type: memory }, replay_ledger: { type: memory } }
sessions:
  - { id: edge, transport: mqtt, options: { session: { broker_url: "tcp://%s" } } }
  - { id: cloud, transport: mqtt, options: { session: { broker_url: "tcp://%s", reconnect_delay: 200ms, reconnect_max_delay: 1s } } }
routes:
  - id: sensors-up
    receiver: { session_id: edge, topics: [ { topic: "sensors/#", qos: 1 } ] }
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

	text := fmt.Sprintf(demoConfig, d.http, edge.addr(), link.addr())
	file, diags := config.Load("demo.yaml", []byte(text), kinds.All())
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
	t := newDemoTally()
	err = d.play(ctx, eng, edge, cloud, link, t)
	stop()
	running.Wait()
	return d.summary(t, errors.Join(err, runErr))
}

// play publishes for the duration, cuts the link half-way, and waits for what is
// on its way.
func (d *demo) play(ctx context.Context, eng *engine.Engine, edge, cloud *demoBroker, link *demoLink, t *demoTally) error {
	if err := cloud.subscribe("plant-7/#", t.arrive); err != nil {
		return fmt.Errorf("subscribe at the destination: %w", err)
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
		case !cut && now >= cutAt:
			cut = true
			link.cut()
			fmt.Fprintf(d.out, "%4.0fs  -- the link to the destination is cut --\n", now.Seconds())
		case cut && !healed && now >= healAt:
			healed = true
			link.heal()
			t.alive()
			fmt.Fprintf(d.out, "%4.0fs  -- the link is back --\n", now.Seconds())
		}
		if now < d.duration {
			n := t.send()
			payload := fmt.Sprintf(`{"n":%d,"celsius":%.1f}`, n, 20+float64(n%50)/10)
			if err := edge.publish("sensors/hall-"+strconv.Itoa(n%4)+"/temperature", payload); err != nil {
				return fmt.Errorf("publish at the source: %w", err)
			}
		}
		sent, arrived, duplicates, idle := t.state()
		if now >= report {
			report += time.Second
			fmt.Fprintf(d.out, "%4.0fs  sent %6d   arrived %6d   on the way %5d   duplicated %d\n", now.Seconds(), sent, arrived, sent-arrived, duplicates)
		}
		if now >= d.duration && sent == arrived {
			return nil
		}
		if sent > arrived && idle > demoStall && (!cut || healed) {
			return fmt.Errorf("stalled: nothing arrived for %s", demoStall)
		}
	}
}

func (d *demo) summary(t *demoTally, err error) error {
	sent, arrived, duplicates, _ := t.state()
	fmt.Fprintf(d.out, "\nsent %d   received %d   lost %d   duplicated %d\n", sent, arrived, sent-arrived, duplicates)
	if err == nil && sent > arrived {
		err = fmt.Errorf("%d of %d messages did not arrive", sent-arrived, sent)
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
