package sqlite

import "time"

const (
	// sweepRows is what one sweep removes beside the rows that come in with its
	// group: small enough not to be felt in a commit.
	sweepRows = 256
	// idleSweepRows is the same when nobody waits for the commit.
	idleSweepRows = 2048
)

// nextSweep is when the earliest part wants to be swept; zero is never.
func nextSweep(parts []part) time.Time {
	var next time.Time
	for _, p := range parts {
		if at := p.due(); !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next
}

// sweepDue returns a job that sweeps what is due, nil when nothing is.
func (d *database) sweepDue(now time.Time, group int) job {
	if d.down.Load() != nil {
		return nil
	}
	var due []part
	for _, p := range d.allParts() {
		if at := p.due(); !at.IsZero() && !at.After(now) {
			due = append(due, p)
		}
	}
	if len(due) == 0 {
		return nil
	}
	budget := idleSweepRows
	if group > 0 {
		budget = sweepRows + 4*group
	}
	return &sweepJob{d: d, parts: due, now: now, budget: budget}
}

// spread is how long expired rows may stay, so that they go in batches.
func spread(retention time.Duration) time.Duration { return min(retention/60, time.Minute) }

// sweepJob removes what outlived its retention.
type sweepJob struct {
	d      *database
	parts  []part
	now    time.Time
	budget int
	undone []func()
}

func (j *sweepJob) apply(c *conn) error {
	j.undone = nil
	for _, p := range j.parts {
		undo, err := p.sweep(c, j.now, j.budget)
		if undo != nil {
			j.undone = append(j.undone, undo)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (j *sweepJob) undo() {
	for _, undo := range j.undone {
		undo()
	}
}

func (j *sweepJob) finish(err error) {
	if err != nil {
		j.d.log.Warn("store keeps expired rows: the sweep failed", "path", j.d.path, "err", err)
	}
}

func (j *sweepJob) grows() bool { return false }
