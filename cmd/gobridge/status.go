package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/gobridge/gobridge"
)

const (
	healthPath    = "/api/v1/monitor/deephealth"
	statusTimeout = 5 * time.Second
	maxStatus     = 16 << 20
)

// status shows a running bridge.
type status struct {
	url      string
	json     bool
	watch    bool
	interval time.Duration
}

func newStatus() *cobra.Command {
	var s status
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show sessions and routes of a running bridge",
		Long:  "Show sessions and routes of a running bridge. The exit code is 0 when it is ready, else 1.",
		Args:  cobra.NoArgs,
		RunE:  s.run,
	}
	cmd.Flags().StringVar(&s.url, "url", defaultURL, "`address` of the bridge's HTTP listener")
	cmd.Flags().BoolVar(&s.json, "json", false, "print JSON")
	cmd.Flags().BoolVarP(&s.watch, "watch", "w", false, "go on until interrupted")
	cmd.Flags().DurationVar(&s.interval, "interval", 2*time.Second, "time between two looks with --watch")
	return cmd
}

func (s *status) run(cmd *cobra.Command, _ []string) error {
	base, err := bridgeURL(cmd, s.url)
	if err != nil {
		return err
	}
	if s.interval <= 0 {
		return usageError(cmd, "--interval must be more than 0")
	}
	ctx, stop := untilInterrupt(cmd)
	defer stop()
	ready, err := s.show(ctx, cmd.OutOrStdout(), base)
	for s.watch && ctx.Err() == nil {
		if err != nil {
			fmt.Fprintln(cmd.ErrOrStderr(), "gobridge: "+oneLine(err.Error()))
		}
		select {
		case <-ctx.Done():
			// The last look decides.
		case <-time.After(s.interval):
			fmt.Fprintln(cmd.OutOrStdout())
			ready, err = s.show(ctx, cmd.OutOrStdout(), base)
		}
	}
	if err != nil && ctx.Err() == nil {
		return err
	}
	if !ready {
		return &exitError{code: exitFailed}
	}
	return nil
}

// show prints one look at the bridge and reports whether it is ready.
func (s *status) show(ctx context.Context, out io.Writer, base *url.URL) (ready bool, err error) {
	body, err := fetch(ctx, base.JoinPath(healthPath))
	if err != nil {
		return false, err
	}
	var h gobridge.BridgeHealth
	if err := json.Unmarshal(body, &h); err != nil {
		return false, fmt.Errorf("%s does not answer like a bridge: %w", base.Redacted(), err)
	}
	if s.json {
		_, err := fmt.Fprintln(out, strings.TrimSpace(string(body)))
		return h.Ready, err
	}
	return h.Ready, printHealth(out, &h)
}

func fetch(ctx context.Context, u *url.URL) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, noAnswer(u, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxStatus))
	if err != nil {
		return nil, fmt.Errorf("answer from %s: %w", u.Redacted(), err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s (is this the http.listen of a bridge?)", u.Redacted(), resp.Status)
	}
	return body, nil
}

func printHealth(out io.Writer, h *gobridge.BridgeHealth) error {
	state := "not ready"
	if h.Ready {
		state = "ready"
	}
	if h.Role != "" {
		state = h.Role + ", " + state
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "%s (%s): %s, service level %s\n", h.BridgeID, h.InstanceID, state, h.ServiceLevel)
	fmt.Fprintln(w, "\nSESSION\tSTATE\tLEVEL\tSUBSCRIPTIONS\tUNSETTLED\tOLDEST\tWINDOW\tLAST ERROR")
	for _, s := range h.Sessions {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d/%d\t%d\t%s\t%.0f%%\t%s\n", s.ID, s.State, s.ServiceLevel,
			s.SubscriptionsActive, s.SubscriptionsWanted, s.UnsettledCount, age(s.OldestUnsettledAgeMS),
			100*s.ReceiveWindowUtilization, dash(s.LastError))
	}
	fmt.Fprintln(w, "\nROUTE\tREADY\tMODE\tIN FLIGHT\tOLDEST\tOUTBOX\tLAST ERROR")
	for _, r := range h.Routes {
		ready := "no"
		if r.Ready {
			ready = "yes"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%d\t%s\n", r.ID, ready, r.DeliveryMode, r.InFlight, age(r.OldestUnsettledAgeMS),
			r.OutboxDepth, dash(r.LastError))
	}
	if reasons := reasons(h); len(reasons) > 0 {
		fmt.Fprintln(w, "\nWHY NOT READY")
		for _, r := range reasons {
			fmt.Fprintln(w, r)
		}
	}
	return w.Flush()
}

func reasons(h *gobridge.BridgeHealth) []string {
	var all []string
	for _, s := range h.Sessions {
		for _, r := range s.Reasons {
			all = append(all, "session "+s.ID+": "+oneLine(r))
		}
	}
	for _, rt := range h.Routes {
		for _, r := range rt.Reasons {
			all = append(all, "route "+rt.ID+": "+oneLine(r))
		}
	}
	return all
}

func age(ms int64) string {
	if ms <= 0 {
		return "-"
	}
	return (time.Duration(ms) * time.Millisecond).String()
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return oneLine(s)
}
