package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// load is what every run sends.
type load struct {
	messages int           // flat out between real brokers
	size     int           // bytes of a payload
	rate     int           // messages a second of the paced phase
	duration time.Duration // of the paced phase, and about that of the flat-out phase between fakes
}

const (
	settle      = 300 * time.Millisecond // between the first message across and the idle memory
	stall       = 10 * time.Second       // without an arrival, a phase is given up
	warmUp      = 500                    // messages before the first measurement
	calibration = 10_000                 // messages, at most, that tell how many a run between fakes needs
	maxFake     = 5_000_000              // messages of a run between fakes
)

// rig is one run: a bridge between two ends.
type rig struct {
	load
	source, sink *link
	bridge       *process   // nil without a bridge of its own
	brokers      []*process // none between fakes
	values       map[metric]float64
	phase        uint32 // of the last messages sent
}

// brokersSetting measures c between two real brokers, fresh ones for every run so
// that nobody meets the queues of another. direct uses one broker for both ends.
func brokersSetting(ctx context.Context, p *programs, c contender, l load, dir string) (values map[metric]float64, err error) {
	r := &rig{load: l, values: map[metric]float64{}}
	defer func() {
		for _, b := range r.brokers {
			err = errors.Join(err, b.stop())
		}
	}()
	sink, sinkAddr, err := p.startBroker(ctx, "sink", dir)
	if err != nil {
		return r.values, err
	}
	r.brokers = append(r.brokers, sink)
	sourceAddr := sinkAddr
	if c.kind != direct {
		var bridge []string
		if c.kind == insideOne {
			bridge = mosquittoConnection("sink", sinkAddr, "out")
		}
		var source *process
		if source, sourceAddr, err = p.startBroker(ctx, "source", dir, bridge...); err != nil {
			return r.values, err
		}
		r.brokers = append(r.brokers, source)
	}
	if r.sink, err = dial(sinkAddr, "subscriber", l.size, true); err != nil {
		return r.values, err
	}
	defer r.sink.close()
	if r.source, err = dial(sourceAddr, "publisher", l.size, false); err != nil {
		return r.values, err
	}
	defer r.source.close()

	began := time.Now()
	if c.kind.separate() {
		if r.bridge, err = p.launch(c, dir, sourceAddr, sinkAddr); err != nil {
			return r.values, err
		}
		defer func() { err = errors.Join(err, r.bridge.stop()) }()
	}
	if err := r.awaitBridge(ctx); err != nil {
		return r.values, err
	}
	if c.kind.separate() {
		r.values[startUp] = time.Since(began).Seconds()
		time.Sleep(settle)
		now, _, err := r.bridge.memory()
		if err != nil {
			return r.values, err
		}
		r.values[idleRSS] = mib(now)
	}
	if _, err := r.send(ctx, warmUp, 0); err != nil {
		return r.values, r.explain(fmt.Errorf("warm-up: %w", err))
	}
	paced, err := r.send(ctx, max(1, int(float64(l.rate)*l.duration.Seconds())), l.rate)
	if err != nil {
		return r.values, r.explain(fmt.Errorf("paced: %w", err))
	}
	r.values[latencyP50], r.values[latencyP99] = paced.latency[0], paced.latency[1]
	if c.kind.separate() {
		r.values[pacedCPU] = paced.bridge
	}
	return r.values, r.flatOut(ctx, l.messages)
}

// fakeSetting measures c between a source and a sink in this process. They honour
// windows and cost little, so the figures are the bridge's own. direct is a subscriber
// at the source: what the load itself can do.
func fakeSetting(ctx context.Context, p *programs, c contender, l load, dir string) (values map[metric]float64, err error) {
	r := &rig{load: l, values: map[metric]float64{}}
	source, err := listen()
	if err != nil {
		return r.values, err
	}
	defer source.Close()
	sink, err := listen()
	if err != nil {
		return r.values, err
	}
	defer sink.Close()

	defer func() { // after the bridge has ended, or it would see a fault
		for _, end := range []*link{r.source, r.sink} {
			if end != nil {
				end.close()
			}
		}
	}()
	if c.kind.separate() {
		if r.bridge, err = p.launch(c, dir, source.Addr().String(), sink.Addr().String()); err != nil {
			return r.values, err
		}
		defer func() { err = errors.Join(err, r.bridge.stop()) }()
	}
	var wg sync.WaitGroup
	var noSource, noSink error
	wg.Go(func() { r.source, noSource = accept(source, l.size, brokerWindow) })
	if c.kind.separate() {
		r.sink, noSink = accept(sink, l.size, brokerWindow)
	} else {
		r.sink, noSink = dial(source.Addr().String(), "subscriber", l.size, true)
	}
	wg.Wait()
	if err := errors.Join(noSource, noSink); err != nil {
		return r.values, r.explain(err)
	}
	select {
	case <-r.source.asked:
	case <-time.After(handshakeLimit):
		return r.values, r.explain(errors.New("no SUBSCRIBE at the fake source"))
	case <-ctx.Done():
		return r.values, context.Cause(ctx)
	}
	trial := min(calibration, l.messages)
	first, err := r.send(ctx, trial, 0)
	if err != nil {
		return r.values, r.explain(fmt.Errorf("warm-up: %w", err))
	}
	n := int(float64(trial) / first.elapsed.Seconds() * l.duration.Seconds())
	return r.values, r.flatOut(ctx, min(max(trial, n), maxFake))
}

func listen() (*net.TCPListener, error) {
	return net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
}

var errBridgeExited = errors.New("the bridge has ended")

// bridgeExited is closed when the bridge has ended; nil, which blocks, without one.
func (r *rig) bridgeExited() <-chan struct{} {
	if r.bridge == nil {
		return nil
	}
	return r.bridge.exited
}

// explain adds the end of the bridge's log to an error.
func (r *rig) explain(err error) error {
	if r.bridge == nil {
		return err
	}
	return fmt.Errorf("%w; the bridge logged: %s", err, r.bridge.tail())
}

// awaitBridge sends probes until one has crossed.
func (r *rig) awaitBridge(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 3*handshakeLimit)
	defer cancel()
	t := newTally(probePhase, 1, false)
	r.sink.tally.Store(t)
	for {
		if err := r.source.probe(probePhase); err != nil {
			return err
		}
		select {
		case <-t.done:
			return nil
		case <-r.bridgeExited():
			return r.explain(errBridgeExited)
		case <-ctx.Done():
			return r.explain(fmt.Errorf("no message crosses: %w", context.Cause(ctx)))
		case <-time.After(2 * time.Millisecond): // the resolution of the start-up time
		}
	}
}

// flatOut measures rate, CPU time and peak memory.
func (r *rig) flatOut(ctx context.Context, n int) error {
	flat, err := r.send(ctx, n, 0)
	if err != nil {
		return r.explain(fmt.Errorf("flat out: %w", err))
	}
	r.values[flatCount] = float64(n)
	r.values[msgRate] = float64(n) / flat.elapsed.Seconds()
	r.values[loadCPU] = flat.load
	if len(r.brokers) > 0 {
		r.values[brokersCPU] = flat.brokers
		r.values[bothCPU] = flat.brokers + flat.bridge
	}
	if r.bridge != nil {
		_, peak, err := r.bridge.memory()
		if err != nil {
			return err
		}
		r.values[peakRSS] = mib(peak)
		r.values[bridgeCPU] = flat.bridge
	}
	return nil
}

// spent is what a phase took: CPU in microseconds a message, latencies in
// milliseconds (p50, p99).
type spent struct {
	elapsed               time.Duration // first publish to last arrival
	bridge, brokers, load float64
	latency               [2]float64
}

// send sends n messages, paced when rate is over 0, and waits until all have arrived
// and all are acknowledged to the publisher. Lost, repeated and reordered messages are
// added to the values in any case.
func (r *rig) send(ctx context.Context, n, rate int) (spent, error) {
	r.phase++
	t := newTally(r.phase, n, rate > 0)
	r.sink.tally.Store(t)
	before, err := r.cpu()
	if err != nil {
		return spent{}, err
	}
	began := time.Now()
	published := make(chan error, 1)
	go func() {
		err := r.source.publish(r.phase, n, rate)
		if err == nil {
			err = r.source.window.drained()
		}
		published <- err
	}()
	err = r.await(ctx, t, published)
	received, twice, late := t.count()
	r.values[lost] += float64(n - received)
	r.values[duplicates] += float64(twice)
	r.values[outOfOrder] += float64(late)
	if err != nil {
		return spent{}, fmt.Errorf("%d of %d messages arrived: %w", received, n, err)
	}
	after, err := r.cpu()
	if err != nil {
		return spent{}, err
	}
	each := func(i int) float64 { return float64((after[i] - before[i]).Nanoseconds()) / 1000 / float64(n) }
	s := spent{elapsed: t.last.Sub(began), bridge: each(0), brokers: each(1), load: each(2)}
	if rate > 0 {
		s.latency = [2]float64{t.percentile(50), t.percentile(99)}
	}
	return s, nil
}

// await waits for the last arrival and the last acknowledgement. On an error it ends
// the publisher's connection, and returns after the publisher in any case.
func (r *rig) await(ctx context.Context, t *tally, published <-chan error) error {
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	arrived, before, since := t.done, -1, time.Now()
	for arrived != nil || published != nil {
		var err error
		select {
		case <-arrived:
			arrived = nil
		case err = <-published:
			published = nil
		case <-r.bridgeExited():
			err = errBridgeExited
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-ticker.C:
			received, _, _ := t.count()
			switch {
			case received > before:
				before, since = received, time.Now()
			case time.Since(since) > stall:
				err = fmt.Errorf("none for %v", stall)
			default:
				err = errors.Join(r.source.failure(), r.sink.failure())
			}
		}
		if err != nil {
			r.source.close()
			if published != nil {
				<-published
			}
			return err
		}
	}
	return nil
}

// cpu returns the CPU time so far of the bridge, of the brokers and of this process.
func (r *rig) cpu() (times [3]time.Duration, err error) {
	add := func(i, pid int) {
		d, e := cpuTime(pid)
		times[i] += d
		err = errors.Join(err, e)
	}
	if r.bridge != nil {
		add(0, r.bridge.pid())
	}
	for _, b := range r.brokers {
		add(1, b.pid())
	}
	add(2, os.Getpid())
	return times, err
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }

// setting is one arrangement around a bridge.
type setting struct {
	name string
	run  func(context.Context, *programs, contender, load, string) (map[metric]float64, error)
}

var settings = []setting{{"brokers", brokersSetting}, {"fake", fakeSetting}}

// measure runs c once in a directory of its own below dir.
func (s setting) measure(ctx context.Context, p *programs, c contender, l load, dir string, round int) result {
	res := result{Setting: s.name, Contender: c.name, Round: round}
	dir = filepath.Join(dir, fmt.Sprintf("%s-%s-%d", s.name, c.name, round))
	err := os.Mkdir(dir, 0o700)
	if err == nil {
		res.Values, err = s.run(ctx, p, c, l, dir)
		err = errors.Join(err, os.RemoveAll(dir))
	}
	if err != nil {
		res.Error = err.Error()
	}
	return res
}
