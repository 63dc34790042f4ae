package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/gobridge/gobridge/admin"
)

func newSessions() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sessions",
		Short: "Drain or end a session in its broker, or end its wait",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usageError(cmd, "sessions needs a command: drain, end or retry")
		},
	}
	cmd.AddCommand(
		newSessionVerb("drain", "Unsubscribe a session and wait until its queue has been delivered",
			"Remove every subscription of a session from its broker and wait until what was queued there has been\n"+
				"delivered. The session stays connected without subscriptions until it is retried, or the bridge restarts.\n"+
				"Do this before a session is taken out of the config or gets another client_id.",
			"drained: nothing of it is queued at the broker any more"),
		newSessionVerb("end", "Remove a session from its broker, with whatever is queued there",
			"Remove a session from its broker. What is queued for it there is lost: drain it first. The session stays\n"+
				"closed until it is retried, or the bridge restarts.",
			"ended: its broker has forgotten it"),
		newSessionVerb("retry", "End whatever a session waits for",
			"End the wait of a session: after refused credentials, a downgraded subscription or another cause that does\n"+
				"not change by itself, and after drain or end.",
			"tries again"),
	)
	return cmd
}

var errSessionNeedsBridge = errors.New("sessions are worked on by a running bridge (start it, then use --url)")

// sessionVerb does one thing to a session of a running bridge.
type sessionVerb struct {
	target target
	json   bool
	verb   string
	done   string // what is true afterwards
}

func newSessionVerb(verb, short, long, done string) *cobra.Command {
	v := sessionVerb{verb: verb, done: done}
	cmd := &cobra.Command{
		Use:   verb + " ID",
		Short: short,
		Long:  long,
		Args:  oneID("gobridge status names the sessions"),
		RunE:  v.run,
	}
	v.target.add(cmd)
	v.target.hideConfig(cmd)
	cmd.Flags().BoolVar(&v.json, "json", false, "print JSON")
	return cmd
}

func (v *sessionVerb) run(cmd *cobra.Command, args []string) (err error) {
	if v.target.config != "" {
		return errSessionNeedsBridge
	}
	ctx, stop := untilInterrupt(cmd)
	defer stop()
	c, err := v.target.open(ctx, cmd, need{})
	if err != nil {
		return err
	}
	defer closing(c, &err)
	var done admin.SessionDone
	// A drain takes as long as its queue.
	if err := c.callSlow(ctx, http.MethodPost, "sessions/"+url.PathEscape(args[0])+"/"+v.verb, nil, nil, &done); err != nil {
		return err
	}
	if v.json {
		return printJSON(cmd.OutOrStdout(), done)
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", cell(args[0]), v.done)
	return err
}
