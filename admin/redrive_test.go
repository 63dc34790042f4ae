package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gobridge/gobridge"
)

// run runs the jobs of a rig inside a synctest bubble until the returned stop.
func (r *rig) run() (stop func()) {
	ctx, cancel := context.WithCancel(r.t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.api.Run(ctx)
	}()
	return func() {
		cancel()
		<-ended
	}
}

// redrive asks for a redrive and returns the job as it was queued.
func (r *rig) redrive(req DLQRedrive) Job {
	r.t.Helper()
	body, err := json.Marshal(req)
	if err != nil {
		r.t.Fatal(err)
	}
	return answer[Job](r, r.ask("POST", "/api/v1/admin/dlq/redrive", string(body)), 202)
}

func (r *rig) job(id string) Job {
	r.t.Helper()
	return answer[Job](r, r.ask("GET", "/api/v1/admin/jobs/"+id, ""), 200)
}

// bubble runs a test with a rig whose jobs run.
func bubble(t *testing.T, f func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		stop := r.run()
		defer stop()
		f(r)
	})
}

// counts are the numbers of a job.
type counts struct {
	State                                  JobState
	Total, Done, Failed, Skipped, NotTried int
}

func (r *rig) wantJob(id string, want counts) Job {
	r.t.Helper()
	j := r.job(id)
	if got := (counts{j.State, j.Total, j.Done, j.Failed, j.Skipped, j.NotTried}); got != want {
		r.t.Errorf("job = %+v, want %+v (%s)", got, want, j.Error)
	}
	return j
}

func TestRedriveIsAJob(t *testing.T) {
	bubble(t, func(r *rig) {
		ids := spread(r)
		r.op.redrive = func(ctx context.Context, id string) error {
			if id == ids[1] {
				return &gobridge.Error{Code: gobridge.CodeForbidden, Class: gobridge.ClassPermanent, Op: "publish", Hint: "allow it"}
			}
			_, err := r.op.dlq.Delete(ctx, id)
			return err
		}
		w := r.ask("POST", "/api/v1/admin/dlq/redrive", `{"ids": ["`+ids[0]+`", "`+ids[1]+`", "absent"]}`)
		j := answer[Job](r, w, 202)
		if got, want := w.Header().Get("Location"), "/api/v1/admin/jobs/"+j.ID; got != want {
			t.Errorf("Location = %q, want %q", got, want)
		}
		synctest.Wait()
		at := time.Now().UTC().Format(time.RFC3339)
		r.want(r.ask("GET", "/api/v1/admin/jobs/"+j.ID, ""), 200, `{
  "id": "`+j.ID+`",
  "action": "dlq.redrive",
  "actor": "loopback",
  "state": "done",
  "dry_run": false,
  "total": 3,
  "done": 1,
  "failed": 2,
  "skipped": 0,
  "not_tried": 0,
  "more": false,
  "failures": [
    {
      "id": "absent",
      "code": "NOT_FOUND",
      "reason": "dead letter \"absent\": not found"
    },
    {
      "id": "`+ids[1]+`",
      "code": "FORBIDDEN",
      "reason": "publish (allow it)"
    }
  ],
  "bindings": [
    {
      "route_id": "up",
      "binding_id": "up/0",
      "entries": 1,
      "unreachable": ""
    },
    {
      "route_id": "down",
      "binding_id": "down/0",
      "entries": 1,
      "unreachable": ""
    }
  ],
  "error": "",
  "created_at": "`+at+`",
  "ended_at": "`+at+`"
}
`)
		if r.depth() != 4 {
			t.Errorf("%d dead letters, want the 4 that were not delivered", r.depth())
		}
		if line := `msg="admin job ended" action=dlq.redrive actor=loopback job_id=` + j.ID + ` state=done total=3 done=1 failed=2 skipped=0 not_tried=0`; !strings.Contains(r.log.String(), line) {
			t.Errorf("no line %q in\n%s", line, r.log)
		}
	})
}

func TestRedriveByFilterGoesOldestFirstWithinItsBounds(t *testing.T) {
	bubble(t, func(r *rig) {
		ids := spread(r)
		if _, err := r.op.dlq.CountReplay(t.Context(), ids[0]); err != nil {
			t.Fatal(err)
		}
		var sent []string
		r.op.redrive = func(_ context.Context, id string) error {
			sent = append(sent, id)
			return nil
		}
		j := r.redrive(DLQRedrive{Filter: &DLQFilter{RouteID: "up"}, Max: 1, MaxReplays: 1})
		synctest.Wait()
		// The first is over max_replays, the third over max.
		if got := r.wantJob(j.ID, counts{JobDone, 2, 1, 0, 1, 0}); !got.More || !slices.Equal(sent, ids[2:3]) {
			t.Errorf("more %t, sent %v, want %v", got.More, sent, ids[2:3])
		}
		sent = nil
		j = r.redrive(DLQRedrive{Filter: &DLQFilter{}})
		synctest.Wait()
		if r.wantJob(j.ID, counts{JobDone, 5, 5, 0, 0, 0}); !slices.Equal(sent, ids) {
			t.Errorf("sent %v, want %v", sent, ids)
		}
	})
}

func TestDryRunSendsNothing(t *testing.T) {
	bubble(t, func(r *rig) {
		spread(r)
		r.op.redrive = func(context.Context, string) error {
			t.Error("sent")
			return nil
		}
		j := r.redrive(DLQRedrive{Filter: &DLQFilter{}, DryRun: true, Rate: 0.01})
		synctest.Wait()
		got := r.wantJob(j.ID, counts{JobDone, 5, 5, 0, 0, 0})
		want := []JobBinding{{"up", "up/0", 3, ""}, {"down", "down/0", 2, ""}}
		if diff := cmp.Diff(want, got.Bindings); diff != "" || !got.DryRun {
			t.Errorf("dry_run %t, bindings (-want +got):\n%s", got.DryRun, diff)
		}
		if r.depth() != 5 {
			t.Errorf("%d dead letters, want 5", r.depth())
		}
	})
}

func TestRedriveKeepsItsRate(t *testing.T) {
	bubble(t, func(r *rig) {
		spread(r)
		begin := time.Now()
		var at []time.Duration
		r.op.redrive = func(context.Context, string) error {
			at = append(at, time.Since(begin))
			time.Sleep(30 * time.Millisecond) // part of the interval, not on top of it
			return nil
		}
		r.redrive(DLQRedrive{Filter: &DLQFilter{}, Rate: 10})
		time.Sleep(time.Second)
		synctest.Wait()
		var want []time.Duration
		for i := range 5 {
			want = append(want, time.Duration(i)*100*time.Millisecond)
		}
		if diff := cmp.Diff(want, at); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// A destination that is away must not have the whole queue thrown at it.
func TestBindingThatCannotBeReachedIsTriedOnce(t *testing.T) {
	const late = "redrive: not confirmed within 1m0s (it is still under way; its entry stays until the destination confirms it)"
	for _, c := range []struct {
		name     string
		err      error
		failed   []gobridge.Code // of the first
		notTried int
		why      string
	}{
		{"nothing is sent", fmt.Errorf("%w: %w", gobridge.ErrNotTried, gobridge.ErrNotConnected), nil, 3, "not tried: not connected"},
		{"nothing is sent in time", fmt.Errorf("%w: no room: %w", gobridge.ErrNotTried, context.DeadlineExceeded), nil, 3, "not tried: no room: context deadline exceeded"},
		{"it goes away", gobridge.ErrConnectionLost, []gobridge.Code{gobridge.CodeConnectionLost}, 2, "connection lost"},
		{"it does not answer", nil, []gobridge.Code{gobridge.CodeTimeout}, 2, late},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				ids := spread(r)
				tried := []string{}
				r.op.redrive = func(ctx context.Context, id string) error {
					tried = append(tried, id)
					if slices.Index(ids, id)%2 == 1 {
						return nil // down
					}
					if c.err == nil || errors.Is(c.err, context.DeadlineExceeded) {
						<-ctx.Done()
					}
					if c.err == nil {
						return fmt.Errorf("still under way: %w", ctx.Err())
					}
					return c.err
				}
				j := r.redrive(DLQRedrive{Filter: &DLQFilter{}})
				time.Sleep(redriveTimeout)
				synctest.Wait()
				got := r.wantJob(j.ID, counts{JobDone, 5, 2, len(c.failed), 0, c.notTried})
				var failed []gobridge.Code
				for _, f := range got.Failures {
					failed = append(failed, f.Code)
				}
				if !slices.Equal(failed, c.failed) {
					t.Errorf("failed %v, want %v", failed, c.failed)
				}
				want := []JobBinding{{"up", "up/0", 3, c.why}, {"down", "down/0", 2, ""}}
				if diff := cmp.Diff(want, got.Bindings); diff != "" {
					t.Errorf("bindings (-want +got):\n%s", diff)
				}
				if !slices.Equal(tried, []string{ids[0], ids[1], ids[3]}) {
					t.Errorf("tried %v", tried)
				}
			})
		})
	}
}

func TestFailuresOfAJobAreListedUpToABound(t *testing.T) {
	bubble(t, func(r *rig) {
		const n = maxListed + 20
		for i := range n {
			r.bury(gobridge.DeadLetter{Key: fmt.Sprint(i)})
		}
		r.op.redrive = func(context.Context, string) error { return errors.New("no") }
		j := r.redrive(DLQRedrive{Filter: &DLQFilter{}})
		synctest.Wait()
		if got := r.wantJob(j.ID, counts{JobDone, n, 0, n, 0, 0}); len(got.Failures) != maxListed {
			t.Errorf("%d failures listed, want %d", len(got.Failures), maxListed)
		}
	})
}

func TestCancelEndsAJobAfterTheEntryAtHand(t *testing.T) {
	bubble(t, func(r *rig) {
		spread(r)
		release := make(chan struct{})
		r.op.redrive = func(ctx context.Context, _ string) error {
			select {
			case <-release:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		running, waiting := r.redrive(DLQRedrive{Filter: &DLQFilter{}}), r.redrive(DLQRedrive{Filter: &DLQFilter{}})
		synctest.Wait()
		r.wantJob(running.ID, counts{JobRunning, 5, 0, 0, 0, 0})
		for _, id := range []string{waiting.ID, running.ID, running.ID} {
			answer[Job](r, r.ask("POST", "/api/v1/admin/jobs/"+id+"/cancel", ""), 200)
		}
		if j := r.wantJob(waiting.ID, counts{JobStopped, 0, 0, 0, 0, 0}); j.Error != "cancelled" || j.EndedAt == nil {
			t.Errorf("error %q, ended %v", j.Error, j.EndedAt)
		}
		synctest.Wait()
		r.wantJob(running.ID, counts{JobRunning, 5, 0, 0, 0, 0})
		close(release)
		synctest.Wait()
		if j := r.wantJob(running.ID, counts{JobStopped, 5, 1, 0, 0, 0}); j.Error != "cancelled" {
			t.Errorf("error %q", j.Error)
		}
		// One that has ended stays as it is.
		answer[Job](r, r.ask("POST", "/api/v1/admin/jobs/"+running.ID+"/cancel", ""), 200)
		r.wantJob(running.ID, counts{JobStopped, 5, 1, 0, 0, 0})
	})
}

func TestCancelEndsAWaitForTheRate(t *testing.T) {
	bubble(t, func(r *rig) {
		spread(r)
		begin := time.Now()
		j := r.redrive(DLQRedrive{Filter: &DLQFilter{}, Rate: 0.001})
		synctest.Wait()
		answer[Job](r, r.ask("POST", "/api/v1/admin/jobs/"+j.ID+"/cancel", ""), 200)
		synctest.Wait()
		r.wantJob(j.ID, counts{JobStopped, 5, 1, 0, 0, 0})
		if took := time.Since(begin); took > 0 {
			t.Errorf("took %v", took)
		}
	})
}

func TestTheEndOfTheBridgeEndsItsJobs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		stop := r.run()
		spread(r)
		r.op.redrive = func(ctx context.Context, _ string) error {
			<-ctx.Done()
			return fmt.Errorf("still under way: %w", ctx.Err())
		}
		running, waiting := r.redrive(DLQRedrive{Filter: &DLQFilter{}}), r.redrive(DLQRedrive{Filter: &DLQFilter{}})
		synctest.Wait()
		stop()
		if j := r.wantJob(running.ID, counts{JobStopped, 5, 0, 1, 0, 0}); j.Error != "the bridge is stopping" {
			t.Errorf("error %q", j.Error)
		}
		if j := r.wantJob(waiting.ID, counts{JobStopped, 0, 0, 0, 0, 0}); j.Error != "the bridge is stopping" {
			t.Errorf("error %q", j.Error)
		}
		r.want(r.ask("POST", "/api/v1/admin/dlq/redrive", `{"filter": {}}`), 503, `{
  "error": "the bridge is stopping",
  "hint": "ask again after its start"
}
`)
	})
}

func TestJobsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		first := r.redrive(DLQRedrive{IDs: []string{"a"}})
		for range maxQueued - 1 {
			r.redrive(DLQRedrive{IDs: []string{"a"}})
		}
		r.want(r.ask("POST", "/api/v1/admin/dlq/redrive", `{"ids": ["a"]}`), 503, `{
  "error": "too many jobs wait",
  "hint": "jobs run one after another: wait for one to end, or cancel it"
}
`)
		stop := r.run()
		defer stop()
		synctest.Wait()
		for range maxJobs {
			r.redrive(DLQRedrive{IDs: []string{"a"}})
			synctest.Wait()
		}
		if w := r.ask("GET", "/api/v1/admin/jobs/"+first.ID, ""); w.Code != 404 {
			t.Errorf("the oldest job: status %d, want 404", w.Code)
		}
		if n := len(r.api.jobs.all); n != maxJobs {
			t.Errorf("%d jobs kept, want %d", n, maxJobs)
		}
	})
}
