package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/gobridge/gobridge"
)

const (
	// maxRedrive bounds the entries of one job.
	maxRedrive = 100_000
	// redriveTimeout bounds one entry. A destination that cannot be reached would hold
	// it for ever.
	redriveTimeout = 60 * time.Second
)

// DLQRedrive asks for dead letters to be sent again, by ids or by filter. They go
// one after another, oldest first.
type DLQRedrive struct {
	IDs    []string   `json:"ids,omitempty"`
	Filter *DLQFilter `json:"filter,omitempty"`
	// Max bounds the entries that the filter selects; 0 is the bound of a job, 100,000.
	Max int `json:"max,omitempty"`
	// Rate is in entries a second; 0 is as fast as the destination confirms.
	Rate float64 `json:"rate,omitempty"`
	// DryRun counts and sends nothing.
	DryRun bool `json:"dry_run,omitempty"`
	// MaxReplays leaves entries alone that were sent again so many times; 0 is no bound.
	MaxReplays int `json:"max_replays,omitempty"`
}

func (r *DLQRedrive) check() error {
	if err := oneOf(r.IDs, r.Filter); err != nil {
		return err
	}
	switch {
	case r.Max < 0 || r.Max > maxRedrive || r.Max > 0 && r.Filter == nil:
		return badRequest("", "max goes with a filter and is a number from 1 to %d", maxRedrive)
	case r.Rate < 0 || r.Rate > 0 && r.Rate < 0.001:
		return badRequest("0 is no limit", "rate is in entries a second, at least 0.001")
	case r.MaxReplays < 0:
		return badRequest("0 is no bound", "max_replays is negative")
	case r.Filter == nil:
		return nil
	}
	_, err := r.Filter.selection()
	return err
}

func (a *API) redriveDLQ(c *call) error {
	var req DLQRedrive
	if err := c.decode(&req, `{"ids": ["..."]} or {"filter": {"route_id": "up", "since": "`+exampleTime+`"}}`); err != nil {
		return err
	}
	if err := req.check(); err != nil {
		return err
	}
	if _, err := a.dlq(); err != nil {
		return err
	}
	j, err := a.jobs.add("dlq.redrive", c.actor, req)
	if err != nil {
		return err
	}
	if req.Filter != nil {
		c.detail("filter", *req.Filter)
	} else {
		c.detail("ids", len(req.IDs))
	}
	c.detail("job_id", j.ID, "dry_run", req.DryRun)
	c.w.Header().Set("Location", "/api/v1/admin/jobs/"+j.ID)
	return c.answer(http.StatusAccepted, j)
}

// entry is a dead letter that a job has selected.
type entry struct{ id, binding string }

// redrive works on one job.
func (a *API) redrive(ctx context.Context, j *job) {
	entries, err := a.selectEntries(ctx, j)
	state, why := JobDone, ""
	switch {
	case err != nil:
		state, why = JobStopped, err.Error()
	case j.req.DryRun:
		a.jobs.update(j, func(j *Job) { j.Done = len(entries) })
	default:
		if err := a.redriveAll(ctx, j, entries); err != nil {
			state, why = JobStopped, err.Error()
		}
	}
	a.jobs.update(j, func(j *Job) { j.end(state, why) })
}

// selectEntries fills in what a job has to do, and returns what is to be sent.
func (a *API) selectEntries(ctx context.Context, j *job) ([]entry, error) {
	q, err := a.dlq()
	if err != nil {
		return nil, err
	}
	var entries []entry
	take := func(d *gobridge.DeadLetter) {
		a.jobs.update(j, func(o *Job) {
			o.Total++
			if j.req.MaxReplays > 0 && d.Replays >= j.req.MaxReplays {
				o.Skipped++
				return
			}
			entries = append(entries, entry{d.ID, d.BindingID})
			o.count(d)
		})
	}
	if j.req.Filter == nil {
		for _, id := range j.req.IDs {
			d, err := q.Get(ctx, id)
			switch {
			case errors.Is(err, gobridge.ErrNotFound):
				a.jobs.update(j, func(j *Job) { j.Total++ })
				a.failed(j, id, err)
			case err != nil:
				return nil, fmt.Errorf("read dead letters: %w", err)
			default:
				take(d)
			}
		}
		return entries, nil
	}
	f, err := j.req.Filter.selection()
	if err != nil {
		return nil, err
	}
	most := maxRedrive
	if j.req.Max > 0 {
		most = j.req.Max
	}
	for d, err := range q.List(ctx, f) {
		if err != nil {
			return nil, fmt.Errorf("list dead letters: %w", err)
		}
		if len(entries) == most {
			a.jobs.update(j, func(j *Job) { j.More = true })
			break
		}
		take(d)
	}
	return entries, nil
}

// count adds an entry to those of its binding.
func (j *Job) count(d *gobridge.DeadLetter) {
	i := slices.IndexFunc(j.Bindings, func(b JobBinding) bool { return b.RouteID == d.RouteID && b.BindingID == d.BindingID })
	if i < 0 {
		i = len(j.Bindings)
		j.Bindings = append(j.Bindings, JobBinding{RouteID: d.RouteID, BindingID: d.BindingID})
	}
	j.Bindings[i].Entries++
}

// redriveAll sends the entries. While a binding cannot be reached, its other entries
// are not tried: each would wait in vain and be charged a replay.
func (a *API) redriveAll(ctx context.Context, j *job, entries []entry) error {
	unreachable := map[string]error{} // by binding
	next := time.Now()
	for _, e := range entries {
		if why := unreachable[e.binding]; why != nil {
			a.notTried(j, e.binding, why)
			continue
		}
		if err := wait(ctx, j.stop, next); err != nil {
			return err
		}
		if j.req.Rate > 0 {
			next = time.Now().Add(time.Duration(float64(time.Second) / j.req.Rate))
		}
		one, cancel := context.WithTimeoutCause(ctx, redriveTimeout, errNotDecided)
		err := a.op.Redrive(one, e.id)
		late := one.Err() != nil && ctx.Err() == nil
		cancel()
		if errors.Is(err, gobridge.ErrNotTried) {
			unreachable[e.binding] = err
			a.notTried(j, e.binding, err)
			continue
		}
		if err == nil {
			a.jobs.update(j, func(j *Job) { j.Done++ })
			continue
		}
		if late {
			err = errNotDecided
		}
		if gobridge.AsError(err).Outage {
			unreachable[e.binding] = err
		}
		a.failed(j, e.id, err)
	}
	return nil
}

// notTried counts an entry of a binding that cannot be reached.
func (a *API) notTried(j *job, binding string, why error) {
	a.jobs.update(j, func(j *Job) {
		j.NotTried++
		for i := range j.Bindings {
			if j.Bindings[i].BindingID == binding {
				j.Bindings[i].Unreachable = why.Error()
			}
		}
	})
}

var errNotDecided = &gobridge.Error{
	Code: gobridge.CodeTimeout, Class: gobridge.ClassTransient, Outage: true, Op: "redrive",
	Err: fmt.Errorf("not confirmed within %s", redriveTimeout), Hint: "it is still under way; its entry stays until the destination confirms it",
}

// wait waits for a time, unless the job or the bridge is to end.
func wait(ctx context.Context, stop <-chan struct{}, until time.Time) error {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	for {
		// An end comes first, also when it is time already.
		select {
		case <-ctx.Done():
			return errors.New("the bridge is stopping")
		case <-stop:
			return errors.New(cancelled)
		default:
		}
		select {
		case <-ctx.Done():
		case <-stop:
		case <-timer.C:
			return nil
		}
	}
}

func (a *API) failed(j *job, id string, err error) {
	e := gobridge.AsError(err)
	a.jobs.update(j, func(j *Job) {
		j.Failed++
		if len(j.Failures) < maxListed {
			j.Failures = append(j.Failures, JobFailure{ID: id, Code: e.Code, Reason: err.Error()})
		}
	})
}
