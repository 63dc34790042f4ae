package engine

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/gobridge/gobridge"
)

// pipeline is one route of the spec at work. With direct_hold it is one route. With
// shared_outbox it is an intake, for each binding a partition and the route that
// sends its records, and a route that dead-letters what must not be sent.
type pipeline struct {
	spec       *gobridge.RouteSpec
	routes     []*route
	intake     *intake
	partitions []*partition // partitions[i] feeds routes[i]
}

// source returns the route that works on deliveries of the source themselves. With an
// outbox those are the ones that must not be sent.
func (p *pipeline) source() *route {
	if p.intake != nil {
		return p.intake.unwanted
	}
	return p.routes[0]
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
	}
	r := p.source()
	r.mu.Lock()
	r.receiver = receiver
	r.mu.Unlock()
}

// run keeps the pipeline's helpers running until ctx ends. intake ends earlier:
// from then on no records are taken out of the outbox.
func (p *pipeline) run(ctx, intake context.Context) {
	var wg sync.WaitGroup
	for _, r := range p.all() {
		wg.Go(func() { r.keep(ctx) })
	}
	for i, part := range p.partitions {
		wg.Go(func() { part.keep(ctx) })
		wg.Go(func() { _ = part.Run(intake, p.routes[i].emit) })
	}
	wg.Wait()
	for _, r := range p.all() {
		r.helpers.Wait()
	}
}

// all lists the routes, the one for what must not be sent included.
func (p *pipeline) all() []*route {
	if p.intake == nil {
		return p.routes
	}
	return append(slices.Clone(p.routes), p.intake.unwanted)
}

// quiesce gives back what the pipeline holds of its source, see [gobridge.Env].
func (p *pipeline) quiesce(ctx context.Context, reason string) error {
	if p.intake == nil {
		return p.source().quiesce(ctx, reason)
	}
	var stored, buried error
	var wg sync.WaitGroup
	wg.Go(func() { stored = p.intake.quiesce(ctx, reason) })
	wg.Go(func() { buried = p.source().quiesce(ctx, reason) })
	wg.Wait()
	return cmp.Or(stored, buried)
}

// part leaves what the pipeline holds to a source that another process may own from
// here on, and waits for the records on their way. Nothing else may begin to be sent.
func (p *pipeline) part(ctx context.Context) error {
	if p.intake == nil {
		return p.source().part(ctx)
	}
	outcomes := make([]error, 2+len(p.routes))
	var wg sync.WaitGroup
	wg.Go(func() { outcomes[0] = p.intake.part(ctx) })
	wg.Go(func() { outcomes[1] = p.source().part(ctx) })
	for i, r := range p.routes {
		wg.Go(func() { outcomes[2+i] = r.unsent(ctx) })
	}
	wg.Wait()
	return cmp.Or(outcomes...)
}

// drain settles what is physically under way. It returns the number of deliveries
// left with their source; records in the outbox are safe and do not count.
func (p *pipeline) drain(ctx context.Context) int {
	if p.intake == nil {
		return p.routes[0].drain(ctx)
	}
	var left, unwanted int
	var wg sync.WaitGroup
	wg.Go(func() { unwanted = p.source().drain(ctx) })
	left = p.intake.drain(ctx)
	for i, r := range p.routes {
		wg.Go(func() {
			r.drain(ctx)
			p.partitions[i].drain(ctx)
		})
	}
	wg.Wait()
	return left + unwanted
}

// inFlight counts the copies of messages that have been admitted and have neither
// an outcome nor a record.
func (p *pipeline) inFlight() int {
	open := 0
	if p.intake != nil {
		p.intake.mu.Lock()
		open = p.intake.inFlight * len(p.partitions)
		p.intake.mu.Unlock()
	}
	r := p.source()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.works {
		open += r.works[i].open
	}
	return open
}

// health says how the route is doing.
func (p *pipeline) health(now time.Time) gobridge.RouteHealth {
	h := gobridge.RouteHealth{ID: p.spec.ID, DeliveryMode: p.spec.DeliveryMode, Reasons: []string{}}
	var oldest time.Duration
	for _, r := range p.all() {
		n, age, last, reasons := r.health(now)
		h.Reasons = append(h.Reasons, reasons...)
		if last != "" {
			h.LastError = last
		}
		if r == p.source() {
			h.InFlight, oldest = n, age
		}
	}
	if p.intake != nil {
		n, age, reasons := p.intake.health(now)
		h.InFlight, oldest = h.InFlight+n, max(oldest, age)
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
