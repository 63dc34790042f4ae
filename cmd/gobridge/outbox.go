package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/gobridge/gobridge/admin"
)

func newOutbox() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "outbox",
		Short: "Look at the messages that wait in the outbox",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usageError(cmd, "outbox needs a command: list or stats")
		},
	}
	cmd.AddCommand(newOutboxList(), newOutboxStats())
	return cmd
}

// outboxLook are the flags of both commands.
type outboxLook struct {
	target  target
	route   string
	binding string
	json    bool
}

func (o *outboxLook) add(cmd *cobra.Command) {
	o.target.add(cmd)
	cmd.Flags().StringVar(&o.route, "route", "", "`id` of the route")
	cmd.Flags().StringVar(&o.binding, "binding", "", "`id` of the binding")
	cmd.Flags().BoolVar(&o.json, "json", false, "print JSON")
}

// fetch returns the status with up to limit records after the cursor, 0 for all of
// them, a negative one for none.
func (o *outboxLook) fetch(ctx context.Context, c *client, cursor string, limit int) (admin.OutboxStatus, error) {
	q := url.Values{}
	if o.route != "" {
		q.Set("route_id", o.route)
	}
	if o.binding != "" {
		q.Set("binding_id", o.binding)
	}
	records := []admin.OutboxRecord{}
	for {
		n := pageLimit
		if limit != 0 {
			n = max(min(n, limit-len(records)), 0)
		}
		q.Set("limit", strconv.Itoa(n))
		if cursor != "" {
			q.Set("cursor", cursor)
		}
		var s admin.OutboxStatus
		if err := c.call(ctx, http.MethodGet, "outbox", q, nil, &s); err != nil {
			return s, err
		}
		records = append(records, s.Records...)
		cursor = s.Next
		if cursor == "" || limit != 0 && len(records) >= limit {
			s.Records = records
			return s, nil
		}
	}
}

// outboxStats shows depths and ages.
type outboxStats struct{ outboxLook }

func newOutboxStats() *cobra.Command {
	var s outboxStats
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "Show how many messages wait for each binding, and how long",
		Args:  cobra.NoArgs,
		RunE:  s.run,
	}
	s.add(cmd)
	return cmd
}

func (s *outboxStats) run(cmd *cobra.Command, _ []string) (err error) {
	ctx, stop := untilInterrupt(cmd)
	defer stop()
	c, err := s.target.open(ctx, cmd, need{outbox: true})
	if err != nil {
		return err
	}
	defer closing(c, &err)
	status, err := s.fetch(ctx, c, "", -1)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if s.json {
		return printJSON(out, status)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ROUTE\tBINDING\tWAITING\tOLDEST")
	for _, p := range status.Partitions {
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\n", cell(p.RouteID), cell(p.BindingID), p.Depth, age(p.OldestAgeMS))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return printOutboxEnd(out, &status)
}

func printOutboxEnd(out io.Writer, s *admin.OutboxStatus) error {
	fmt.Fprintf(out, "\n%d waiting, the oldest for %s\n", s.Depth, age(s.OldestAgeMS))
	if s.Error != "" {
		fmt.Fprintf(out, "the store takes no writes: %s\n", cell(s.Error))
	}
	return nil
}

// outboxList lists records.
type outboxList struct {
	outboxLook
	limit  int
	cursor string
}

func newOutboxList() *cobra.Command {
	var l outboxList
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List waiting messages, by binding, oldest first",
		Args:  cobra.NoArgs,
		RunE:  l.run,
	}
	l.add(cmd)
	cmd.Flags().IntVar(&l.limit, "limit", 100, "list at most so many; 0 lists all")
	cmd.Flags().StringVar(&l.cursor, "cursor", "", "go `where` the last page ended")
	return cmd
}

func (l *outboxList) run(cmd *cobra.Command, _ []string) (err error) {
	if l.limit < 0 {
		return usageError(cmd, "--limit must not be negative")
	}
	ctx, stop := untilInterrupt(cmd)
	defer stop()
	c, err := l.target.open(ctx, cmd, need{outbox: true})
	if err != nil {
		return err
	}
	defer closing(c, &err)
	status, err := l.fetch(ctx, c, l.cursor, l.limit)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if l.json {
		return printJSON(out, status)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SEQ\tROUTE\tBINDING\tSTORED\tFAILED SENDS\tBYTES\tMESSAGE ID\tADDRESS")
	for i := range status.Records {
		r := &status.Records[i]
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%d\t%d\t%s\t%s\n", r.Seq, cell(r.RouteID), cell(r.BindingID), second(r.PersistedAt),
			r.ReplayCount, r.PayloadBytes, shortCell(r.MessageID, 40), shortCell(r.Address, 60))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if err := printOutboxEnd(out, &status); err != nil {
		return err
	}
	if status.Next != "" {
		fmt.Fprintf(out, "there are more: --cursor %s goes on, --limit 0 lists all\n", cell(status.Next))
	}
	return nil
}
