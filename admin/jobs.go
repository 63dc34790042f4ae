package admin

import (
	"context"
	"crypto/rand"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/gobridge/gobridge"
)

// JobState says how far a job is.
type JobState string

// The states. A job is queued, then running, then done, or stopped before its end:
// cancelled, by the end of the bridge, or by an error.
const (
	JobQueued  JobState = "queued"
	JobRunning JobState = "running"
	JobDone    JobState = "done"
	JobStopped JobState = "stopped"
)

// Job is long work that was asked for by a request. Total = Done + Failed + Skipped
// + NotTried + what is left.
type Job struct {
	ID     string   `json:"id"`
	Action string   `json:"action"`
	Actor  string   `json:"actor"`
	State  JobState `json:"state"`
	DryRun bool     `json:"dry_run"`
	// Total counts the entries selected. Done were delivered, Failed were not, Skipped
	// were left alone because of max_replays, NotTried because their binding cannot be
	// reached. A dry run counts what it would send as done.
	Total    int `json:"total"`
	Done     int `json:"done"`
	Failed   int `json:"failed"`
	Skipped  int `json:"skipped"`
	NotTried int `json:"not_tried"`
	// More tells that there is more to select than one job takes.
	More bool `json:"more"`
	// Failures holds the first hundred of Failed, with reasons.
	Failures []JobFailure `json:"failures"`
	// Bindings says where the selected entries go.
	Bindings []JobBinding `json:"bindings"`
	// Error is why a job stopped.
	Error     string     `json:"error"`
	CreatedAt time.Time  `json:"created_at"`
	EndedAt   *time.Time `json:"ended_at"`
}

// JobFailure is one entry that could not be dealt with.
type JobFailure struct {
	ID     string        `json:"id"`
	Code   gobridge.Code `json:"code"`
	Reason string        `json:"reason"`
}

// JobBinding counts the entries of one binding.
type JobBinding struct {
	RouteID   string `json:"route_id"`
	BindingID string `json:"binding_id"`
	Entries   int    `json:"entries"`
	// Unreachable is why entries were not tried, empty when all were.
	Unreachable string `json:"unreachable"`
}

// Bounds of jobs.
const (
	maxQueued = 16
	maxJobs   = 100 // kept, to be asked for
	maxListed = 100 // listed in a job
)

// jobs runs one job after another: two redrives never work on the same entry, and
// their rates do not add up.
type jobs struct {
	queue chan *job

	mu     sync.Mutex
	all    []*job // oldest first
	closed bool
}

// job is a Job with what it takes to work on it. The mutex of jobs guards the Job.
type job struct {
	Job
	req DLQRedrive
	// stop ends with the wish that the job ends.
	stop     chan struct{}
	stopping bool
}

func newJobs() *jobs { return &jobs{queue: make(chan *job, maxQueued)} }

// run works on jobs until ctx ends.
func (s *jobs) run(ctx context.Context, work func(ctx context.Context, j *job)) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case j := <-s.queue:
			begun := false
			s.update(j, func(j *Job) {
				if begun = j.State == JobQueued; begun {
					j.State = JobRunning
				}
			})
			if begun {
				work(ctx, j)
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, j := range s.all {
		if j.State == JobQueued {
			j.end(JobStopped, "the bridge is stopping")
		}
	}
}

func (s *jobs) update(j *job, f func(j *Job)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&j.Job)
}

// end is called with the mutex held.
func (j *Job) end(state JobState, why string) {
	now := time.Now().UTC()
	j.State, j.Error, j.EndedAt = state, why, &now
}

// add queues a job and returns it as it stands.
func (s *jobs) add(action, actor string, req DLQRedrive) (Job, error) {
	j := &job{req: req, stop: make(chan struct{}), Job: Job{
		ID: rand.Text(), Action: action, Actor: actor, State: JobQueued, DryRun: req.DryRun, CreatedAt: time.Now().UTC(),
	}}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return Job{}, &failure{http.StatusServiceUnavailable, Error{"the bridge is stopping", "ask again after its start"}}
	}
	select {
	case s.queue <- j:
	default:
		return Job{}, &failure{http.StatusServiceUnavailable, Error{"too many jobs wait", "jobs run one after another: wait for one to end, or cancel it"}}
	}
	// Queued and running jobs are the newest ones, and fewer than those kept.
	s.all = append(s.all, j)
	if n := len(s.all) - maxJobs; n > 0 {
		s.all = slices.Delete(s.all, 0, n)
	}
	return j.copied(), nil
}

// copied is called with the mutex held.
func (j *Job) copied() Job {
	c := *j
	c.Failures = append([]JobFailure{}, j.Failures...)
	c.Bindings = append([]JobBinding{}, j.Bindings...)
	return c
}

func (s *jobs) snapshot(j *job) Job {
	s.mu.Lock()
	defer s.mu.Unlock()
	return j.copied()
}

// find is called with the mutex held.
func (s *jobs) find(id string) (*job, error) {
	i := slices.IndexFunc(s.all, func(j *job) bool { return j.ID == id })
	if i < 0 {
		return nil, &failure{http.StatusNotFound, Error{"no such job", "the latest hundred are known, and none from before the start of the bridge"}}
	}
	return s.all[i], nil
}

func (s *jobs) get(id string) (Job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j, err := s.find(id)
	if err != nil {
		return Job{}, err
	}
	return j.copied(), nil
}

// cancel ends a job that waits, and tells one that runs to end; one that ended stays
// as it is.
func (s *jobs) cancel(id string) (Job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j, err := s.find(id)
	if err != nil {
		return Job{}, err
	}
	if !j.stopping {
		j.stopping = true
		close(j.stop)
	}
	if j.State == JobQueued {
		j.end(JobStopped, cancelled)
	}
	return j.copied(), nil
}

const cancelled = "cancelled"

func (a *API) showJob(c *call) error {
	c.quiet = true
	if err := c.known(); err != nil {
		return err
	}
	j, err := a.jobs.get(c.PathValue("id"))
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, j)
}

func (a *API) cancelJob(c *call) error {
	c.detail("job_id", c.PathValue("id"))
	j, err := a.jobs.cancel(c.PathValue("id"))
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, j)
}
