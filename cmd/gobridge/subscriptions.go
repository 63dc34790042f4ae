package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/admin"
)

func newSubscriptions() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "subscriptions",
		Short: "Look at what durable sessions have at their brokers, and set it right",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usageError(cmd, "subscriptions needs a command: list or seed")
		},
	}
	cmd.AddCommand(newSubscriptionsList(), newSubscriptionsSeed())
	return cmd
}

// subscriptionsList shows the managed subscription history.
type subscriptionsList struct {
	target target
	json   bool
}

func newSubscriptionsList() *cobra.Command {
	var l subscriptionsList
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the subscriptions that durable sessions have at their brokers",
		Args:  cobra.NoArgs,
		RunE:  l.run,
	}
	l.target.add(cmd)
	cmd.Flags().BoolVar(&l.json, "json", false, "print JSON")
	return cmd
}

func (l *subscriptionsList) run(cmd *cobra.Command, _ []string) (err error) {
	ctx, stop := untilInterrupt(cmd)
	defer stop()
	c, err := l.target.open(ctx, cmd, need{history: true})
	if err != nil {
		return err
	}
	defer closing(c, &err)
	var list admin.SubscriptionList
	if err := c.call(ctx, http.MethodGet, "subscriptions", nil, nil, &list); err != nil {
		return err
	}
	if l.json {
		return printJSON(cmd.OutOrStdout(), list)
	}
	return printSubscriptions(cmd.OutOrStdout(), list.Sessions...)
}

func printSubscriptions(out io.Writer, sessions ...gobridge.SessionSubscriptions) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SESSION\tCLIENT ID\tFILTER\tSTATE")
	for i := range sessions {
		s := &sessions[i]
		for _, f := range s.Filters {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", cell(s.SessionID), shortCell(s.ClientID, 40), shortCell(f.Filter, 60), subscriptionWord(f))
		}
		if len(s.Filters) == 0 {
			fmt.Fprintf(w, "%s\t%s\t-\t-\n", cell(s.SessionID), shortCell(s.ClientID, 40))
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for i := range sessions {
		if s := &sessions[i]; !s.Known {
			fmt.Fprintf(out, "\n%s: not known what its broker holds. gobridge subscriptions seed %s keeps the queue, with --discard it is thrown away\n",
				cell(s.SessionID), cell(s.SessionID))
		}
	}
	return nil
}

// subscriptionWord is the state of a filter in a word.
func subscriptionWord(f gobridge.SubscriptionState) string {
	switch {
	case f.Removed:
		return "removed" // from config and broker; its queue may still deliver
	case f.Wanted && f.Granted:
		return "granted"
	case f.Wanted:
		return "wanted"
	}
	return "unwanted" // at the broker, to be removed
}

// subscriptionsSeed gives a session a baseline.
type subscriptionsSeed struct {
	target  target
	discard bool
	filters []string
	json    bool
}

func newSubscriptionsSeed() *cobra.Command {
	var s subscriptionsSeed
	cmd := &cobra.Command{
		Use:   "seed ID",
		Short: "Tell a session what its broker holds, so that it can go on",
		Long: "Tell a durable session what its broker holds, when the broker has a session of which the bridge\n" +
			"knows nothing: the filters of the config and those of --filter. Its queue is kept. With --discard\n" +
			"the next connect starts clean instead and everything queued at the broker is lost.",
		Args: oneID("gobridge status names the sessions"),
		RunE: s.run,
	}
	s.target.add(cmd)
	cmd.Flags().BoolVar(&s.discard, "discard", false, "throw the session in the broker away, with its queue")
	cmd.Flags().StringArrayVar(&s.filters, "filter", nil, "a further `filter` that the broker has; may be repeated")
	cmd.Flags().BoolVar(&s.json, "json", false, "print JSON")
	return cmd
}

func (s *subscriptionsSeed) run(cmd *cobra.Command, args []string) (err error) {
	if s.discard && len(s.filters) > 0 {
		return usageError(cmd, "--discard and --filter exclude each other")
	}
	ctx, stop := untilInterrupt(cmd)
	defer stop()
	// A lost data_dir is what a seed is for.
	c, err := s.target.open(ctx, cmd, need{history: true, fresh: true})
	if err != nil {
		return err
	}
	defer closing(c, &err)
	var known gobridge.SessionSubscriptions
	seed := admin.SubscriptionSeed{Discard: s.discard, Filters: s.filters}
	if err := c.call(ctx, http.MethodPost, "subscriptions/"+url.PathEscape(args[0])+"/seed", nil, seed, &known); err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	switch {
	case s.json:
		return printJSON(out, known)
	case s.discard:
		when := "reconnects as soon as it can"
		if c.stopped != nil {
			when = "connects at the next start of the bridge"
		}
		_, err := fmt.Fprintf(out, "%s %s and discards the session in the broker, with its queue\n", cell(args[0]), when)
		return err
	}
	return printSubscriptions(out, known)
}
