package engine

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/metric"
)

// The wait before what a failing store refused is given to it again.
const (
	persistRetryMin = 100 * time.Millisecond
	persistRetryMax = 5 * time.Second
)

// intake is the first half of a shared_outbox route: it stores each delivery, one
// record for each binding, and acknowledges it to its source once the records are
// durable. From there the partitions of the bindings send them.
//
// A store that fails or is full holds the source: nothing is charged, and the
// deliveries taken wait in order (V4).
type intake struct {
	id         string
	spec       *gobridge.RouteSpec
	log        *slog.Logger
	outbox     gobridge.Outbox
	partitions []*partition
	received   *metric.Counter
	latency    *metric.Histogram   // of Persist
	suppressed []metric.CounterSet // by partition
	returned   []metric.CounterSet // by partition
	conflicted []bool              // by partition: an identity conflict was logged; under mu
	// unwanted dead-letters what must not be sent, instead of storing it.
	unwanted *route

	mu       sync.Mutex
	receiver gobridge.Receiver
	inFlight int // deliveries given to the store
	left     int // deliveries left to their source by a drain
	// backlogged: the receiver keeps deliveries that found no room; full: the outbox
	// is at its depth, until 80 % of it.
	backlogged bool
	full       bool
	emptying   emptying
	limiter    *limiter
	// held is what a failing store refused, in order; nothing is taken while there is
	// any.
	held     []*gobridge.OutboxRecord
	retrying bool // held is on its way to the store, and goes before anything newer
	wait     time.Duration
	timer    *time.Timer
	storeErr string
	// order holds the deliveries given to the store, oldest first.
	order []*pending
}

// pending is a delivery whose records are being stored. Its records stand
// together, in the order of the bindings; the last one's outcome settles it.
type pending struct {
	d    *gobridge.Delivery
	open int
	held bool // by a failing store
	// leave is the reason of MessagesReturned once the delivery is to be left to its
	// source if the store refuses it.
	leave string
}

func newIntake(spec *gobridge.RouteSpec, outbox gobridge.Outbox, partitions []*partition, unwanted *route, reg *metric.Registry, log *slog.Logger) *intake {
	in := &intake{
		id: spec.ID, spec: spec, log: log, outbox: outbox, partitions: partitions, unwanted: unwanted,
		received: reg.Counter(metric.MessagesReceived, spec.ID),
		latency:  reg.Histogram(metric.OutboxPersistLatency, spec.ID),
		emptying: newEmptying(),
	}
	for _, p := range partitions {
		in.suppressed = append(in.suppressed, reg.CounterSet(metric.OutboxDuplicateSuppressed, spec.ID, p.binding))
		in.returned = append(in.returned, reg.CounterSet(metric.MessagesReturned, spec.ID, p.binding))
		p.intake = in
	}
	if spec.Policy.RateLimit > 0 {
		in.limiter = newLimiter(spec.Policy.RateLimit)
	}
	in.timer = time.AfterFunc(time.Hour, in.retry)
	in.timer.Stop()
	in.conflicted = make([]bool, len(partitions))
	return in
}

// emit is the gobridge.Emit of the route: it gives deliveries to the store as far
// as max_in_flight and max_outbox_depth allow, and those that must not be sent to the
// dead-letter queue.
func (in *intake) emit(batch []*gobridge.Delivery) (int, error) {
	for n := 0; n < len(batch); {
		unwanted := batch[n].Unwanted != nil
		end := n + 1
		for end < len(batch) && (batch[end].Unwanted != nil) == unwanted {
			end++
		}
		take := in.store
		if unwanted {
			take = in.unwanted.emit
		}
		taken, err := take(batch[n:end])
		n += taken
		if n < end || err != nil {
			return n, err
		}
	}
	return len(batch), nil
}

// store gives deliveries to the outbox.
func (in *intake) store(batch []*gobridge.Delivery) (int, error) {
	now := time.Now()
	in.mu.Lock()
	n := 0
	var records []*gobridge.OutboxRecord
	for n < len(batch) && in.room(now) {
		records = in.admit(records, batch[n])
		n++
	}
	in.backlogged = n < len(batch)
	in.mu.Unlock()
	if len(records) > 0 {
		in.outbox.Persist(records, in)
	}
	return n, nil
}

// room reports whether one more delivery can be taken. Called with mu held.
func (in *intake) room(now time.Time) bool {
	switch {
	case in.emptying.mode != flowing || len(in.held) > 0 || in.retrying || in.inFlight >= in.spec.Policy.MaxInFlight || in.isFull():
		return false
	case in.limiter == nil:
		return true
	}
	wait := in.limiter.take(now)
	if wait > 0 {
		in.timer.Reset(wait)
	}
	return wait == 0
}

// isFull applies max_outbox_depth with its hysteresis. Called with mu held.
func (in *intake) isFull() bool {
	depth := 0
	for _, p := range in.partitions {
		depth = max(depth, in.outbox.Depth(p.binding))
	}
	limit := in.spec.Policy.MaxOutboxDepth
	switch depth += in.inFlight; {
	case depth >= limit && !in.full:
		in.full = true
		in.log.Warn("outbox is full: the source is held until it is drained to 80 %", "route_id", in.id, "depth", depth)
	case in.full && depth <= limit*4/5:
		in.full = false
		in.log.Info("outbox has room again", "route_id", in.id, "depth", depth)
	}
	return in.full
}

// admit makes the records of a delivery. Called with mu held.
func (in *intake) admit(records []*gobridge.OutboxRecord, d *gobridge.Delivery) []*gobridge.OutboxRecord {
	in.received.Inc()
	in.inFlight++
	store := make([]storedRecord, len(in.partitions))
	from := &pending{d: d, open: len(in.partitions)}
	in.order = append(in.order, from)
	for i, p := range in.partitions {
		s := &store[i]
		s.from, s.index = from, i
		// A failure to render is the message's own: it comes up again, and is dealt with,
		// when the record is to be sent.
		address, _ := p.template.Render(&d.Envelope)
		s.OutboxRecord = gobridge.OutboxRecord{
			RouteID: in.id, BindingID: p.binding, Envelope: d.Envelope, Address: address, PersistedAt: d.ReceivedAt,
		}
		s.Ref = s
		records = append(records, &s.OutboxRecord)
	}
	return records
}

// storedRecord ties a record to the delivery that it came with.
type storedRecord struct {
	gobridge.OutboxRecord
	from  *pending
	index int
}

// OutboxDone hears what became of records given to the store. Part of
// gobridge.OutboxDone.
func (in *intake) OutboxDone(records []*gobridge.OutboxRecord, err error) {
	if err != nil {
		in.refused(records, err)
		return
	}
	now := time.Now()
	in.mu.Lock()
	if in.storeErr != "" {
		in.storeErr, in.wait = "", 0
		in.log.Info("outbox takes messages again", "route_id", in.id)
	}
	for _, rec := range records {
		s := rec.Ref.(*storedRecord)
		if rec.Duplicate {
			in.duplicate(s)
		}
		if s.from.open--; s.from.open == 0 {
			in.latency.Observe(int64(now.Sub(s.from.d.ReceivedAt)))
			s.from.d.Ack()
			in.inFlight--
			if in.emptying.awaits(s.from.leave) {
				in.emptying.ended()
			}
		}
	}
	in.forget()
	receiver := in.receiver
	resume := in.mayResume()
	in.mu.Unlock()

	for _, p := range in.partitions {
		p.take(records)
	}
	receiver.Flush()
	if resume {
		receiver.Resume()
	}
	for _, p := range in.partitions {
		p.pump()
	}
}

// duplicate counts a record that collapsed into an earlier one and logs the first
// identity conflict of each binding (G10, F3). Called with mu held.
func (in *intake) duplicate(s *storedRecord) {
	if !s.Conflict {
		in.suppressed[s.index].Get(metric.DuplicateRepeat).Inc()
		return
	}
	in.suppressed[s.index].Get(metric.DuplicateIdentityConflict).Inc()
	if in.conflicted[s.index] {
		return
	}
	in.conflicted[s.index] = true
	in.log.Warn("a message id was used for two different payloads: the second one is dropped as a duplicate; further ones are counted only",
		"route_id", in.id, "binding_id", s.BindingID, "hint", "give each message its own mqtt.message-id")
}

// refused keeps what a failing store did not take and tries again later.
func (in *intake) refused(records []*gobridge.OutboxRecord, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.storeErr == "" {
		in.log.Error("outbox takes no messages: the source is held", "route_id", in.id, "err", err)
	}
	in.storeErr = err.Error()
	for _, rec := range records {
		from := rec.Ref.(*storedRecord).from
		switch {
		case from.open == 0: // given back with its first record
		case in.emptying.leaves(from.leave):
			if in.emptying.awaits(from.leave) {
				in.emptying.ended()
			}
			in.giveBack(from)
		default:
			from.held = true
			in.held = append(in.held, rec)
		}
	}
	in.forget()
	if len(in.held) == 0 {
		return
	}
	in.wait = min(max(2*in.wait, persistRetryMin), persistRetryMax)
	in.timer.Reset(in.wait)
}

// retry gives the store what it refused, or the receiver its turn after a wait for
// the rate limit.
func (in *intake) retry() {
	in.mu.Lock()
	held := in.held
	in.held = nil
	for _, rec := range held {
		rec.Ref.(*storedRecord).from.held = false
	}
	if len(held) > 0 {
		in.retrying = true
		in.mu.Unlock()
		in.outbox.Persist(held, in)
		in.mu.Lock()
		in.retrying = false
	}
	resume, receiver := in.mayResume(), in.receiver
	in.mu.Unlock()
	if resume {
		receiver.Resume()
	}
}

// mayResume reports whether the receiver should offer again, and takes note that
// it is told. Called with mu held.
func (in *intake) mayResume() bool {
	if !in.backlogged || in.emptying.mode != flowing || len(in.held) > 0 || in.retrying || in.inFlight >= in.spec.Policy.MaxInFlight || in.isFull() {
		return false
	}
	in.backlogged = false
	return true
}

// completed is called by a partition when records have gone from the store.
func (in *intake) completed() {
	in.mu.Lock()
	resume := in.mayResume()
	receiver := in.receiver
	in.mu.Unlock()
	if resume {
		receiver.Resume()
	}
}

// drain waits for what the store has been given, and leaves the rest to the
// source (B1). It returns the number of deliveries left there.
func (in *intake) drain(ctx context.Context) int {
	in.mu.Lock()
	in.timer.Stop()
	empty := in.begin(draining, metric.ReturnShutdown)
	in.mu.Unlock()
	select {
	case <-empty:
	case <-ctx.Done():
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.left + in.inFlight
}

// quiesce gives back what waits for a failing store, and waits for what the store
// has been given, see route.quiesce.
func (in *intake) quiesce(ctx context.Context, reason string) error {
	return in.empty(ctx, quiescing, reason)
}

// part is that of route.
func (in *intake) part(ctx context.Context) error {
	return in.empty(ctx, parting, metric.ReturnStepDown)
}

func (in *intake) empty(ctx context.Context, m mode, reason string) error {
	in.mu.Lock()
	empty := in.begin(m, reason)
	in.mu.Unlock()
	var err error
	select {
	case <-empty:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	in.mu.Lock()
	in.emptying.quiesced()
	resume, receiver := in.mayResume(), in.receiver
	in.mu.Unlock()
	if resume {
		receiver.Resume()
	}
	return err
}

// begin gives back what the store refused. The channel is closed once the store has
// answered for the rest. Called with mu held.
func (in *intake) begin(m mode, reason string) <-chan struct{} {
	in.emptying.begin(m)
	n := 0
	for _, from := range in.order {
		if from.open == 0 || !in.emptying.takes(from.d) {
			continue
		}
		if from.leave == "" || m == draining {
			from.leave = reason
		}
		if from.held {
			in.giveBack(from)
		} else {
			n++
		}
	}
	in.held = slices.DeleteFunc(in.held, func(rec *gobridge.OutboxRecord) bool { return rec.Ref.(*storedRecord).from.open == 0 })
	in.forget()
	return in.emptying.await(n)
}

// giveBack leaves a delivery to its source. Called with mu held.
func (in *intake) giveBack(from *pending) {
	from.open = 0
	in.inFlight--
	switch in.emptying.mode {
	case draining:
		in.left++
	case parting: // the source ends: it delivers again without being asked
	default:
		// The source of a dead instance refuses, and delivers again all the same.
		_ = from.d.Retry(0, errEmptied)
	}
	for _, returned := range in.returned {
		returned.Get(from.leave).Inc()
	}
}

// forget drops the oldest deliveries that have an outcome. Called with mu held.
func (in *intake) forget() {
	for len(in.order) > 0 && in.order[0].open == 0 {
		in.order = in.order[1:]
	}
}

// health says how the half of the route before the outbox is doing.
func (in *intake) health(now time.Time) (inFlight int, oldest time.Duration, reasons []string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	reasons = in.emptying.reasons()
	if len(in.order) > 0 {
		oldest = now.Sub(in.order[0].d.ReceivedAt)
	}
	if in.storeErr != "" {
		reasons = append(reasons, "outbox: "+in.storeErr)
	}
	if oldest > 2*in.spec.Policy.SendTimeout && in.storeErr == "" {
		reasons = append(reasons, fmt.Sprintf("stalled: the outbox has not answered for %s", oldest.Round(time.Second)))
	}
	if in.full {
		reasons = append(reasons, "outbox is full (max_outbox_depth): the source is held")
	}
	return in.inFlight, oldest, reasons
}
