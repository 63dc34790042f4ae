package engine

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/metric"
)

const (
	// handOffBytes bounds what a partition keeps in memory; beyond it records wait on
	// disk alone.
	handOffBytes = 8 << 20
	// pageRecords and pageBytes bound one read of a backlog.
	pageRecords = 512
	pageBytes   = 4 << 20
	// recordOverhead is what a record is taken to hold beside its payload.
	recordOverhead = 512
)

// partition feeds the records of one binding to the route that sends them, in the
// order of their Seq. A record comes from memory right after it was stored; once
// records had to stay on disk alone, everything goes through the disk until it is
// empty again, so that order holds.
//
// It is the route's receiver: acknowledging a delivery completes its record.
type partition struct {
	binding     string
	template    *gobridge.Template
	outbox      gobridge.Outbox
	log         *slog.Logger
	completions *metric.Counter
	intake      *intake
	wake        chan struct{} // to keep, capacity 1

	mu      sync.Mutex
	emit    gobridge.Emit
	pumping bool
	full    bool
	idle    sync.Cond
	queue   []*stored
	bytes   int64
	next    uint64 // highest Seq that has been in queue, or is known to be gone
	// behind: there may be records on disk that have not been in queue; skipped is the
	// highest Seq of those that were left there.
	behind  bool
	skipped uint64
	done    []*gobridge.OutboxRecord
	// unfinished are records that were sent and that the store could not complete:
	// given to it again, never sent again by this process.
	unfinished []*gobridge.OutboxRecord
	open       int // records given to Complete and not answered
	loadErr    string
}

// stored is one record on its way.
type stored struct {
	gobridge.Delivery
	p *partition
}

func newPartition(binding string, template *gobridge.Template, outbox gobridge.Outbox, reg *metric.Registry, route string, log *slog.Logger) *partition {
	p := &partition{
		binding: binding, template: template, outbox: outbox, log: log,
		completions: reg.Counter(metric.OutboxCompletions, route, binding),
		wake:        make(chan struct{}, 1),
		behind:      true, // what an earlier process left is on disk
	}
	p.idle.L = &p.mu
	reg.GaugeFunc(metric.OutboxDepth, func() float64 { return float64(outbox.Depth(binding)) }, route, binding)
	return p
}

// take takes the partition's records out of a batch that was just stored.
func (p *partition) take(records []*gobridge.OutboxRecord) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, rec := range records {
		if rec.BindingID != p.binding || rec.Duplicate || rec.Seq <= p.next {
			continue // at or below next it has been read from disk already
		}
		if p.behind || p.bytes >= handOffBytes {
			p.behind, p.skipped = true, rec.Seq
			continue
		}
		s := rec.Ref.(*storedRecord)
		p.push(rec, s.from.d.ReceivedAt)
	}
}

// push queues a record. Called with mu held.
func (p *partition) push(rec *gobridge.OutboxRecord, at time.Time) {
	d := &stored{p: p}
	d.Envelope = rec.Envelope
	d.Record = rec
	d.Redeliverable = true
	d.ReceivedAt = at
	d.SetSettler(d)
	p.queue = append(p.queue, d)
	p.bytes += int64(len(rec.Envelope.Payload)) + recordOverhead
	p.next = rec.Seq
}

// keep reads the backlog from disk, a page at a time, whenever the queue runs
// low, and gives the store again what it could not complete.
func (p *partition) keep(ctx context.Context) {
	for {
		failed := false
		if p.low() {
			if failed = !p.read(ctx); !failed {
				continue
			}
		}
		p.mu.Lock()
		failed = failed || len(p.unfinished) > 0
		p.mu.Unlock()
		var again <-chan time.Time
		if failed {
			again = time.After(persistRetryMax)
		}
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		case <-again:
			p.finish()
		}
	}
}

// low reports whether a page should be read.
func (p *partition) low() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.behind && len(p.queue) < pageRecords/2
}

// read queues the next page. It reports whether the store could be read.
func (p *partition) read(ctx context.Context) bool {
	p.mu.Lock()
	after, upTo := p.next, p.skipped
	p.mu.Unlock()
	records, err := p.outbox.Pending(ctx, p.binding, after, pageRecords, pageBytes)
	p.mu.Lock()
	if err != nil {
		if p.loadErr == "" && ctx.Err() == nil {
			p.log.Error("outbox cannot be read: its backlog waits", "binding_id", p.binding, "err", err)
		}
		p.loadErr = err.Error()
		p.mu.Unlock()
		return false
	}
	p.loadErr = ""
	for _, rec := range records {
		p.push(rec, time.Now())
	}
	if len(records) == 0 {
		// Whatever had been skipped when the read began is gone; what came since is read
		// next.
		p.next = max(p.next, upTo)
		p.behind = p.skipped > p.next
	}
	p.mu.Unlock()
	p.pump()
	return true
}

// Run offers records to emit until ctx ends. Part of gobridge.Receiver.
func (p *partition) Run(ctx context.Context, emit gobridge.Emit) error {
	p.mu.Lock()
	p.emit = emit
	p.mu.Unlock()
	p.pump()
	<-ctx.Done()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.emit = nil
	for p.pumping {
		p.idle.Wait()
	}
	return nil
}

// Resume offers again what the route had no room for. Part of gobridge.Receiver.
func (p *partition) Resume() {
	p.mu.Lock()
	p.full = false
	p.mu.Unlock()
	p.pump()
}

// pump offers what is queued, as far as the route takes it. Calls of emit do not
// overlap.
func (p *partition) pump() {
	p.mu.Lock()
	if p.pumping {
		p.mu.Unlock()
		return
	}
	p.pumping = true
	for p.emit != nil && !p.full && len(p.queue) > 0 {
		batch := make([]*gobridge.Delivery, min(len(p.queue), pageRecords))
		for i := range batch {
			batch[i] = &p.queue[i].Delivery
		}
		emit := p.emit
		p.full = true // before the call, so that a Resume during it is not overwritten
		p.mu.Unlock()
		n, _ := emit(batch)
		p.mu.Lock()
		if n == len(batch) {
			p.full = false
		}
		for _, s := range p.queue[:n] {
			p.bytes -= int64(len(s.Envelope.Payload)) + recordOverhead
		}
		p.queue = slices.Delete(p.queue, 0, n)
	}
	p.pumping = false
	p.idle.Broadcast()
	p.mu.Unlock()
	if p.low() {
		p.poke()
	}
}

func (p *partition) poke() {
	select {
	case p.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// Ack marks the record as sent; Flush completes it.
func (s *stored) Ack() {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	s.p.done = append(s.p.done, s.Record)
}

// Retry is not needed: a record stays in the store until it is completed.
func (s *stored) Retry(time.Duration, error) error { return gobridge.ErrNotSupported }

// Extend is not needed: a record has no deadline for its settlement.
func (s *stored) Extend(time.Time) error { return gobridge.ErrNotSupported }

// Flush completes what was acknowledged since the last call. Part of
// gobridge.Receiver.
func (p *partition) Flush() {
	p.mu.Lock()
	done := p.done
	p.done = nil
	p.open += len(done)
	p.mu.Unlock()
	if len(done) > 0 {
		p.outbox.Complete(done, p)
	}
}

// finish gives the store again what it could not complete.
func (p *partition) finish() {
	p.mu.Lock()
	p.done = append(p.unfinished, p.done...)
	p.unfinished = nil
	p.mu.Unlock()
	p.Flush()
}

// OutboxDone hears what became of completions. A record that was sent and cannot
// be completed is not sent again by this process; the next one would. Part of
// gobridge.OutboxDone.
func (p *partition) OutboxDone(records []*gobridge.OutboxRecord, err error) {
	p.mu.Lock()
	p.open -= len(records)
	if err != nil {
		p.unfinished = append(p.unfinished, records...)
	}
	p.idle.Broadcast()
	p.mu.Unlock()
	if err != nil {
		p.poke()
		return
	}
	p.completions.Add(uint64(len(records)))
	p.intake.completed()
}

// drain waits until the store has answered every completion, or ctx ends.
func (p *partition) drain(ctx context.Context) {
	p.Flush()
	stop := context.AfterFunc(ctx, func() {
		p.mu.Lock()
		p.idle.Broadcast()
		p.mu.Unlock()
	})
	defer stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.open > 0 && ctx.Err() == nil {
		p.idle.Wait()
	}
}
