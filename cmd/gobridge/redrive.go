package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/gobridge/gobridge/admin"
)

// The paces of following a job, and the time to ask for its end.
const (
	pollEvery     = 200 * time.Millisecond
	progressEvery = time.Second
	cancelTimeout = 5 * time.Second
)

// dlqRedrive sends dead letters again.
type dlqRedrive struct {
	target     target
	filter     dlqFilter
	all        bool
	limit      int
	rate       string
	maxReplays int
	dryRun     bool
	json       bool
}

func newDLQRedrive() *cobra.Command {
	var r dlqRedrive
	cmd := &cobra.Command{
		Use:   "redrive [ID...]",
		Short: "Send dead letters again, to the binding that failed",
		Long: "Send dead letters again, one after another, oldest first, each to the binding that failed.\n" +
			"An entry is deleted when its destination has confirmed it, and kept otherwise. An interrupt\n" +
			"ends the work after the entry at hand. While a binding cannot be reached its entries are not\n" +
			"tried. Redrives run one after another. Exit codes: 0 all were sent, 1 some were not.",
		RunE: r.run,
	}
	r.target.add(cmd)
	r.target.hideConfig(cmd)
	r.filter.add(cmd)
	cmd.Flags().BoolVar(&r.all, "all", false, "select all dead letters")
	cmd.Flags().IntVar(&r.limit, "max", 0, "send at most so `many` of what the filter selects; 0 is the bound of one redrive, 100000")
	cmd.Flags().StringVar(&r.rate, "rate", "", "`pace`, as 10/s or 30/m (default: as fast as the destination confirms)")
	cmd.Flags().IntVar(&r.maxReplays, "max-replays", 0, "leave alone what was redriven `N` times or more; 0 is no bound")
	cmd.Flags().BoolVar(&r.dryRun, "dry-run", false, "say what would be sent, and send nothing")
	cmd.Flags().BoolVar(&r.json, "json", false, "print JSON")
	return cmd
}

// parseRate reads entries a second.
func parseRate(text string) (float64, error) {
	if text == "" {
		return 0, nil
	}
	number, unit, _ := strings.Cut(text, "/")
	per, known := map[string]float64{"": 1, "s": 1, "m": 60, "h": 3600}[unit]
	n, err := strconv.ParseFloat(number, 64)
	if err != nil || !known || !(n > 0 && n <= 1e6) {
		return 0, errors.New("--rate is a pace such as 10/s, 30/m or 100/h")
	}
	return n / per, nil
}

func (r *dlqRedrive) run(cmd *cobra.Command, ids []string) (err error) {
	if r.target.config != "" {
		return errNeedsBridge
	}
	filter, err := selection(cmd, ids, &r.filter, r.all)
	if err != nil {
		return err
	}
	rate, err := parseRate(r.rate)
	if err != nil {
		return usageError(cmd, err.Error())
	}
	if r.limit < 0 || r.maxReplays < 0 {
		return usageError(cmd, "--max and --max-replays must not be negative")
	}
	ctx, stop := untilInterrupt(cmd)
	defer stop()
	c, err := r.target.open(ctx, cmd, need{dlq: true})
	if err != nil {
		return err
	}
	defer closing(c, &err)
	req := admin.DLQRedrive{IDs: ids, Filter: filter, Max: r.limit, Rate: rate, DryRun: r.dryRun, MaxReplays: r.maxReplays}
	var j admin.Job
	if err := c.call(ctx, http.MethodPost, "dlq/redrive", nil, req, &j); err != nil {
		return err
	}
	if j, err = c.follow(ctx, stop, j, cmd.ErrOrStderr()); err != nil {
		return fmt.Errorf("job %s: %w", j.ID, err)
	}
	if r.json {
		err = printJSON(cmd.OutOrStdout(), j)
	} else {
		err = printRedrive(cmd.OutOrStdout(), &j)
	}
	switch {
	case err != nil:
		return err
	case j.State != admin.JobDone:
		return fmt.Errorf("stopped with %d of %d left: %s", j.Total-j.Done-j.Failed-j.Skipped-j.NotTried, j.Total, j.Error)
	case j.Failed > 0 || j.NotTried > 0:
		return &exitError{code: exitFailed}
	}
	return nil
}

// follow reports on a job until it has ended. The end of ctx cancels the job, once;
// stop then gives the next signal its usual effect.
func (c *client) follow(ctx context.Context, stop func(), j admin.Job, progress io.Writer) (admin.Job, error) {
	waits, reported, at := false, 0, time.Now()
	interrupted := ctx.Done()
	for j.EndedAt == nil {
		select {
		case <-time.After(pollEvery):
		case <-interrupted:
			interrupted = nil
			stop()
			ctx = context.WithoutCancel(ctx)
			bound, cancel := context.WithTimeout(ctx, cancelTimeout)
			err := c.call(bound, http.MethodPost, "jobs/"+j.ID+"/cancel", nil, nil, &j)
			cancel()
			if err != nil {
				return j, fmt.Errorf("not cancelled: %w", err)
			}
			continue
		}
		if err := c.call(ctx, http.MethodGet, "jobs/"+j.ID, nil, nil, &j); err != nil {
			if ctx.Err() != nil {
				continue // an interrupt cut the request off
			}
			return j, err
		}
		if j.State == admin.JobQueued && !waits {
			waits = true
			fmt.Fprintln(progress, "waits for a redrive that was asked for before this one")
		}
		if n := j.Done + j.Failed + j.Skipped + j.NotTried; n != reported && time.Since(at) >= progressEvery && !j.DryRun {
			reported, at = n, time.Now()
			fmt.Fprintf(progress, "%d of %d: %d sent, %s\n", n, j.Total, j.Done, notSent(&j))
		}
	}
	return j, nil
}

// notSent counts the entries of a job that are not sent.
func notSent(j *admin.Job) string {
	s := fmt.Sprintf("%d failed, %d skipped", j.Failed, j.Skipped)
	if j.NotTried > 0 {
		s += fmt.Sprintf(", %d not tried", j.NotTried)
	}
	return s
}

func printRedrive(out io.Writer, j *admin.Job) error {
	verb := "sent"
	if j.DryRun {
		verb = "would send"
	}
	fmt.Fprintf(out, "%s %d of %d, %s\n", verb, j.Done, j.Total, notSent(j))
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if len(j.Bindings) > 0 {
		fmt.Fprintln(w, "\nROUTE\tBINDING\tENTRIES")
	}
	for _, b := range j.Bindings {
		fmt.Fprintf(w, "%s\t%s\t%d\n", cell(b.RouteID), cell(b.BindingID), b.Entries)
	}
	if j.NotTried > 0 {
		fmt.Fprintln(w, "\nNOT TRIED\tREASON")
	}
	for _, b := range j.Bindings {
		if b.Unreachable != "" {
			fmt.Fprintf(w, "%s\t%s\n", cell(b.BindingID), cell(b.Unreachable))
		}
	}
	if len(j.Failures) > 0 {
		fmt.Fprintln(w, "\nFAILED\tCODE\tREASON")
	}
	for _, f := range j.Failures {
		fmt.Fprintf(w, "%s\t%s\t%s\n", cell(f.ID), cell(string(f.Code)), cell(f.Reason))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if n := j.Failed - len(j.Failures); n > 0 {
		fmt.Fprintf(out, "and %d more\n", n)
	}
	if j.More {
		fmt.Fprintln(out, "\nthe filter selects more: run it again for the rest")
	}
	return nil
}
