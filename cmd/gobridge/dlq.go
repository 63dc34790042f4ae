package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/admin"
)

// pageLimit is the largest page of the API.
const pageLimit = 1000

func newDLQ() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dlq",
		Short: "Look at dead letters, send them again, delete or export them",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usageError(cmd, "dlq needs a command: list, show, redrive, delete or export")
		},
	}
	cmd.AddCommand(newDLQList(), newDLQShow(), newDLQRedrive(), newDLQDelete(), newDLQExport())
	return cmd
}

// dlqFilter are the flags that select dead letters.
type dlqFilter struct{ route, category, code, since, before string }

func (f *dlqFilter) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.route, "route", "", "`id` of the route")
	cmd.Flags().StringVar(&f.category, "category", "", "`why` they were given up: permanent, expired, poison, ...")
	cmd.Flags().StringVar(&f.code, "code", "", "`code` of the last error")
	cmd.Flags().StringVar(&f.since, "since", "", "last failed at that `time` or later: 2026-11-01T12:00:00Z, or 2h for two hours ago")
	cmd.Flags().StringVar(&f.before, "before", "", "last failed before that `time`")
}

func (f *dlqFilter) parse(cmd *cobra.Command) (admin.DLQFilter, error) {
	out := admin.DLQFilter{RouteID: f.route, Category: gobridge.Category(f.category), Code: gobridge.Code(f.code)}
	var err error
	if out.Since, err = moment(cmd, "--since", f.since); err != nil {
		return out, err
	}
	out.Before, err = moment(cmd, "--before", f.before)
	return out, err
}

// moment reads a time, or a duration before now; empty is the zero time.
func moment(cmd *cobra.Command, name, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return time.Now().Add(-ago).UTC(), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, usageError(cmd, name+" takes a time as 2026-11-01T12:00:00Z or an age as 2h")
	}
	return at, nil
}

func query(f admin.DLQFilter) url.Values {
	q := url.Values{}
	set := func(name, value string) {
		if value != "" {
			q.Set(name, value)
		}
	}
	set("route_id", f.RouteID)
	set("category", string(f.Category))
	set("code", string(f.Code))
	if !f.Since.IsZero() {
		q.Set("since", f.Since.Format(time.RFC3339Nano))
	}
	if !f.Before.IsZero() {
		q.Set("before", f.Before.Format(time.RFC3339Nano))
	}
	return q
}

// letters calls each for up to limit dead letters after the cursor, 0 for all of
// them, and returns the last page's answer.
func (c *client) letters(ctx context.Context, f admin.DLQFilter, cursor string, limit int, full bool, each func(admin.DeadLetter) error) (admin.DLQPage, error) {
	q := query(f)
	if full {
		q.Set("full", "true")
	}
	for seen := 0; ; {
		n := pageLimit
		if limit > 0 {
			n = min(n, limit-seen)
		}
		q.Set("limit", strconv.Itoa(n))
		if cursor != "" {
			q.Set("cursor", cursor)
		}
		var page admin.DLQPage
		if err := c.call(ctx, http.MethodGet, "dlq", q, nil, &page); err != nil {
			return page, err
		}
		for _, d := range page.DeadLetters {
			if err := each(d); err != nil {
				return page, err
			}
		}
		seen += len(page.DeadLetters)
		cursor = page.Next
		if cursor == "" || limit > 0 && seen >= limit {
			return page, nil
		}
	}
}

// dlqList lists dead letters.
type dlqList struct {
	target target
	filter dlqFilter
	limit  int
	cursor string
	json   bool
}

func newDLQList() *cobra.Command {
	var l dlqList
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List dead letters, oldest first",
		Args:  cobra.NoArgs,
		RunE:  l.run,
	}
	l.target.add(cmd)
	l.filter.add(cmd)
	cmd.Flags().IntVar(&l.limit, "limit", 100, "list at most so many; 0 lists all")
	cmd.Flags().StringVar(&l.cursor, "cursor", "", "go on after this `id`")
	cmd.Flags().BoolVar(&l.json, "json", false, "print JSON")
	return cmd
}

func (l *dlqList) run(cmd *cobra.Command, _ []string) (err error) {
	filter, err := l.filter.parse(cmd)
	if err != nil {
		return err
	}
	if l.limit < 0 {
		return usageError(cmd, "--limit must not be negative")
	}
	ctx, stop := untilInterrupt(cmd)
	defer stop()
	c, err := l.target.open(ctx, cmd, need{dlq: true})
	if err != nil {
		return err
	}
	defer closing(c, &err)
	all := []admin.DeadLetter{}
	last, err := c.letters(ctx, filter, l.cursor, l.limit, false, func(d admin.DeadLetter) error {
		all = append(all, d)
		return nil
	})
	if err != nil {
		return err
	}
	last.DeadLetters = all
	if l.json {
		return printJSON(cmd.OutOrStdout(), last)
	}
	return l.print(cmd.OutOrStdout(), &last)
}

func (l *dlqList) print(out io.Writer, page *admin.DLQPage) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tROUTE\tBINDING\tCATEGORY\tCODE\tATTEMPTS\tREPLAYS\tLAST FAILURE\tBYTES\tTOPIC\tLAST ERROR")
	for i := range page.DeadLetters {
		d := &page.DeadLetters[i]
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\t%d\t%s\t%s\n", cell(d.ID), cell(d.RouteID), cell(d.BindingID),
			cell(string(d.Category)), cell(string(d.Code)), d.Attempts, d.Replays, second(d.LastAt), d.PayloadBytes,
			shortCell(d.Topic, 40), shortCell(d.LastError, 80))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, "\n%d listed, %d in the queue\n", len(page.DeadLetters), page.Depth)
	if page.Next != "" {
		fmt.Fprintf(out, "there are more: --cursor %s goes on, --limit 0 lists all\n", page.Next)
	}
	return nil
}

// closing closes c; its error counts when there is no other.
func closing(c io.Closer, err *error) {
	if e := c.Close(); *err == nil {
		*err = e
	}
}

// dlqShow shows one dead letter.
type dlqShow struct {
	target  target
	json    bool
	payload bool
}

func newDLQShow() *cobra.Command {
	var s dlqShow
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Show one dead letter with everything that is known of it",
		Args:  oneID("gobridge dlq list shows them"),
		RunE:  s.run,
	}
	s.target.add(cmd)
	cmd.Flags().BoolVar(&s.json, "json", false, "print JSON")
	cmd.Flags().BoolVar(&s.payload, "payload", false, "write the payload alone, byte for byte")
	return cmd
}

func (s *dlqShow) run(cmd *cobra.Command, args []string) (err error) {
	if s.json && s.payload {
		return usageError(cmd, "--json and --payload exclude each other")
	}
	ctx, stop := untilInterrupt(cmd)
	defer stop()
	c, err := s.target.open(ctx, cmd, need{dlq: true})
	if err != nil {
		return err
	}
	defer closing(c, &err)
	var d admin.DeadLetter
	if err := c.call(ctx, http.MethodGet, "dlq/"+url.PathEscape(args[0]), nil, nil, &d); err != nil {
		return err
	}
	if d.Message == nil {
		return errors.New("the answer holds no message (is this the http.listen of a bridge?)")
	}
	out := cmd.OutOrStdout()
	switch {
	case s.json:
		return printJSON(out, d)
	case s.payload:
		_, err := out.Write(d.Message.Payload)
		return err
	}
	return printLetter(out, &d)
}

func printLetter(out io.Writer, d *admin.DeadLetter) error {
	m := d.Message
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(name, format string, args ...any) { fmt.Fprintf(w, name+"\t"+format+"\n", args...) }
	line("id", "%s", cell(d.ID))
	line("route", "%s", cell(d.RouteID))
	line("binding", "%s", cell(d.BindingID))
	line("source", "%s", cell(d.SourceID))
	line("category", "%s", cell(string(d.Category)))
	line("code", "%s", cell(string(d.Code)))
	line("last error", "%s", cell(d.LastError))
	line("attempts", "%d", d.Attempts)
	line("replays", "%d", d.Replays)
	line("first failure", "%s", second(d.FirstAt))
	line("last failure", "%s", second(d.LastAt))
	line("message id", "%s (%s)", cell(d.MessageID), cell(m.IDOrigin))
	if m.Subject != "" {
		line("subject", "%s", cell(m.Subject))
	}
	line("topic", "%s", cell(d.Topic))
	line("address", "%s", cell(d.Address))
	line("qos", "%d", m.QoS)
	line("retain", "%t", m.Retain)
	line("hops", "%d", m.Hops)
	line("created", "%s", second(m.CreatedAt))
	if m.ExpiresAt != nil {
		line("expires", "%s", second(*m.ExpiresAt))
	}
	if m.ContentType != "" {
		line("content type", "%s", cell(m.ContentType))
	}
	if m.ResponseTopic != "" {
		line("response topic", "%s", cell(m.ResponseTopic))
	}
	if m.CorrelationData != nil {
		line("correlation data", "%s", cell(strconv.Quote(string(m.CorrelationData))))
	}
	for _, h := range m.Headers {
		line("property", "%s: %s", cell(h.Name), cell(h.Value))
	}
	line("payload", "%d bytes", d.PayloadBytes)
	if err := w.Flush(); err != nil {
		return err
	}
	if m.PayloadText == nil {
		_, err := fmt.Fprintln(out, "\nnot UTF-8: --payload writes it, --json shows it as base64")
		return err
	}
	_, err := fmt.Fprintf(out, "\n%s\n", printable(*m.PayloadText))
	return err
}

// dlqDelete deletes dead letters.
type dlqDelete struct {
	target  target
	filter  dlqFilter
	all     bool
	confirm bool
	json    bool
}

func newDLQDelete() *cobra.Command {
	var d dlqDelete
	cmd := &cobra.Command{
		Use:   "delete [ID...]",
		Short: "Delete dead letters by id or by filter",
		Long:  "Delete dead letters by id, or those that a filter selects. A filter needs --confirm:\ngobridge dlq list takes the same filter and shows what would go.",
		RunE:  d.run,
	}
	d.target.add(cmd)
	d.filter.add(cmd)
	cmd.Flags().BoolVar(&d.all, "all", false, "select all dead letters")
	cmd.Flags().BoolVar(&d.confirm, "confirm", false, "delete what the filter selects")
	cmd.Flags().BoolVar(&d.json, "json", false, "print JSON")
	return cmd
}

// selection checks that a command line selects in one way. The filter is nil when
// there are ids.
func selection(cmd *cobra.Command, ids []string, flags *dlqFilter, all bool) (*admin.DLQFilter, error) {
	f, err := flags.parse(cmd)
	if err != nil {
		return nil, err
	}
	filtered := f != (admin.DLQFilter{})
	switch {
	case len(ids) > 0 && (filtered || all), filtered && all:
		return nil, usageError(cmd, "ids, a filter and --all exclude each other")
	case len(ids) > 0:
		return nil, nil
	case !filtered && !all:
		return nil, usageError(cmd, "name ids, a filter, or --all")
	}
	return &f, nil
}

func (d *dlqDelete) run(cmd *cobra.Command, ids []string) (err error) {
	filter, err := selection(cmd, ids, &d.filter, d.all)
	if err != nil {
		return err
	}
	if filter != nil && !d.confirm {
		return usageError(cmd, "deleting by filter needs --confirm")
	}
	ctx, stop := untilInterrupt(cmd)
	defer stop()
	c, err := d.target.open(ctx, cmd, need{dlq: true})
	if err != nil {
		return err
	}
	defer closing(c, &err)
	req := admin.DLQDelete{IDs: ids, Filter: filter, Confirm: d.confirm}
	var total admin.DLQDeleted
	for more := true; more; {
		var done admin.DLQDeleted
		if err := c.call(ctx, http.MethodPost, "dlq/delete", nil, req, &done); err != nil {
			if total.Deleted > 0 {
				err = fmt.Errorf("%d deleted, then: %w", total.Deleted, err)
			}
			return err
		}
		total.Deleted += done.Deleted
		more = done.More
	}
	if d.json {
		err = printJSON(cmd.OutOrStdout(), total)
	} else {
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "deleted %d\n", total.Deleted)
	}
	if missing := len(ids) - total.Deleted; err == nil && missing > 0 {
		err = fmt.Errorf("%d of %d ids have no dead letter (gobridge dlq list shows them)", missing, len(ids))
	}
	return err
}

// dlqExport writes dead letters to a file.
type dlqExport struct {
	target target
	filter dlqFilter
	output string
}

func newDLQExport() *cobra.Command {
	var x dlqExport
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write dead letters as JSON lines, complete",
		Long:  "Write dead letters, oldest first, one JSON object a line, with everything that is known of\nthem; payloads are base64. Nothing is deleted.",
		Args:  cobra.NoArgs,
		RunE:  x.run,
	}
	x.target.add(cmd)
	x.filter.add(cmd)
	cmd.Flags().StringVarP(&x.output, "output", "o", "-", "new `file` to write, - for standard output")
	return cmd
}

func (x *dlqExport) run(cmd *cobra.Command, _ []string) (err error) {
	filter, err := x.filter.parse(cmd)
	if err != nil {
		return err
	}
	ctx, stop := untilInterrupt(cmd)
	defer stop()
	c, err := x.target.open(ctx, cmd, need{dlq: true})
	if err != nil {
		return err
	}
	defer closing(c, &err)
	out := cmd.OutOrStdout()
	if x.output != "-" {
		f, err := newFile(x.output)
		if err != nil {
			return err
		}
		defer f.Close() // a second time where all went well
		defer func() {
			if err == nil {
				err = f.Sync()
			}
		}()
		out = f
	}
	count := 0
	e := json.NewEncoder(out)
	_, err = c.letters(ctx, filter, "", 0, true, func(d admin.DeadLetter) error {
		count++
		return e.Encode(d)
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "exported %d\n", count)
	return nil
}

// newFile creates a file for its owner alone: messages may be confidential. One that
// is there stays.
func newFile(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("%s exists (name another file)", name)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: no such directory (make it first)", filepath.Dir(name))
	}
	if err != nil {
		return nil, openError(name, err)
	}
	return f, nil
}
