package engine

import (
	"context"
	"sync"
	"time"

	"github.com/gobridge/gobridge"
)

// pipeline is one route of the spec at work. With direct_hold it is one route. With
// shared_outbox it is an intake, and for each binding a partition and the route
// that sends its records.
type pipeline struct {
	spec       *gobridge.RouteSpec
	routes     []*route
	intake     *intake
	partitions []*partition // partitions[i] feeds routes[i]
}

// emit is what the source's receiver offers to.
func (p *pipeline) emit() gobridge.Emit {
	if p.intake != nil {
		return p.intake.emit
	}
	return p.routes[0].emit
}

// attach ties the pipeline to a receiver instance.
func (p *pipeline) attach(receiver gobridge.Receiver) {
	if p.intake != nil {
		p.intake.mu.Lock()
		p.intake.receiver = receiver
		p.intake.mu.Unlock()
		return
	}
	r := p.routes[0]
	r.mu.Lock()
	r.receiver = receiver
	r.mu.Unlock()
}

// run keeps the pipeline's helpers running until ctx ends. intake ends earlier:
// from then on no records are taken out of the outbox.
func (p *pipeline) run(ctx, intake context.Context) {
	var wg sync.WaitGroup
	for i, r := range p.routes {
		wg.Go(func() { r.keep(ctx) })
		if p.intake != nil {
			wg.Go(func() { p.partitions[i].keep(ctx) })
			wg.Go(func() { _ = p.partitions[i].Run(intake, r.emit) })
		}
	}
	wg.Wait()
	for _, r := range p.routes {
		r.helpers.Wait()
	}
}

// drain settles what is physically under way. It returns the number of deliveries
// left with their source; records in the outbox are safe and do not count.
func (p *pipeline) drain(ctx context.Context) int {
	if p.intake == nil {
		return p.routes[0].drain(ctx)
	}
	left := p.intake.drain(ctx)
	var wg sync.WaitGroup
	for i, r := range p.routes {
		wg.Go(func() {
			r.drain(ctx)
			p.partitions[i].drain(ctx)
		})
	}
	wg.Wait()
	return left
}

// inFlight counts the copies of messages that have been admitted and have neither
// an outcome nor a record.
func (p *pipeline) inFlight() int {
	if p.intake != nil {
		p.intake.mu.Lock()
		defer p.intake.mu.Unlock()
		return p.intake.inFlight * len(p.partitions)
	}
	r := p.routes[0]
	r.mu.Lock()
	defer r.mu.Unlock()
	open := 0
	for i := range r.works {
		if r.works[i].d != nil {
			open += r.works[i].open
		}
	}
	return open
}

// health says how the route is doing.
func (p *pipeline) health(now time.Time) gobridge.RouteHealth {
	h := gobridge.RouteHealth{ID: p.spec.ID, DeliveryMode: p.spec.DeliveryMode, Reasons: []string{}}
	var oldest time.Duration
	for _, r := range p.routes {
		n, age, last, reasons := r.health(now)
		h.Reasons = append(h.Reasons, reasons...)
		if last != "" {
			h.LastError = last
		}
		if p.intake == nil {
			h.InFlight, oldest = n, age
		}
	}
	if p.intake != nil {
		var reasons []string
		h.InFlight, oldest, reasons = p.intake.health(now)
		h.Reasons = append(h.Reasons, reasons...)
		for _, part := range p.partitions {
			h.OutboxDepth += part.outbox.Depth(part.binding)
		}
		if err := p.intake.outbox.Err(); err != nil {
			h.LastError = err.Error()
		}
	}
	h.OldestUnsettledAgeMS = oldest.Milliseconds()
	h.Ready = len(h.Reasons) == 0
	return h
}
