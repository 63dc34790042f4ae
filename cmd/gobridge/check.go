package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/kinds"
	"github.com/gobridge/gobridge/metric"
)

// check connects to each endpoint of a config and reports.
type check struct {
	config configFlag
	json   bool
}

func newCheck() *cobra.Command {
	var c check
	cmd := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Connect to each endpoint of a config and report",
		Long: "Connect to each endpoint of a config and report, step by step: credential, DNS, TCP, TLS (chain, expiry),\n" +
			"login, and the limits that the broker announced. The login has a client id of its own with a clean start:\n" +
			"a bridge that runs is not disturbed, and nothing is left at the broker. An endpoint gets 10 seconds.\n" +
			"The exit code is 0 when no step failed (a certificate that expires within 14 days is a warning), else 1.",
		RunE: c.run,
	}
	c.config.add(cmd)
	cmd.Flags().BoolVar(&c.json, "json", false, "print JSON")
	return cmd
}

// checked is the report on one session.
type checked struct {
	SessionID string               `json:"session_id"`
	OK        bool                 `json:"ok"`
	Steps     []gobridge.ProbeStep `json:"steps"`
}

func (c *check) run(cmd *cobra.Command, args []string) error {
	name, err := c.config.file(cmd, args)
	if err != nil {
		return err
	}
	file, _, err := loadConfig(cmd, name)
	if err != nil {
		return err
	}
	if file.Redacted {
		return fmt.Errorf("%s: holds secrets as config show masks them (put the real ones back)", name)
	}
	ctx, stop := untilInterrupt(cmd)
	defer stop()
	report := struct {
		OK       bool      `json:"ok"`
		Sessions []checked `json:"sessions"`
	}{OK: true}
	for i := range file.Spec.Sessions {
		if ctx.Err() != nil {
			return fmt.Errorf("%s: interrupted", name)
		}
		s := probeSession(ctx, &file.Spec, &file.Spec.Sessions[i], kinds.All())
		report.OK = report.OK && s.OK
		report.Sessions = append(report.Sessions, s)
		if !c.json {
			if err := printChecked(cmd.OutOrStdout(), s); err != nil {
				return err
			}
		}
	}
	if c.json {
		enc := json.NewEncoder(cmd.OutOrStdout())
		enc.SetIndent("", "  ")
		if err := enc.Encode(report); err != nil {
			return err
		}
	}
	if !report.OK {
		return &exitError{code: exitFailed}
	}
	return nil
}

// probeSession probes one session of a checked spec.
func probeSession(ctx context.Context, spec *gobridge.Spec, session *gobridge.SessionSpec, all *gobridge.Kinds) checked {
	c := checked{SessionID: session.ID, OK: true}
	probe := all.Transport(session.Transport).Probe
	if probe == nil {
		c.Steps = []gobridge.ProbeStep{{Step: "connect", State: gobridge.ProbeWarning, Detail: "transport " + session.Transport + " cannot be checked"}}
		return c
	}
	env := gobridge.Env{Logger: slog.New(slog.DiscardHandler), Metrics: metric.NewRegistry()}
	scheme, _, _ := strings.Cut(session.CredentialsURI, "://")
	if kind := all.Credential(scheme); kind != nil {
		source, err := kind.Open(ctx, session.CredentialsURI, env)
		if err != nil {
			c.OK = false
			c.Steps = []gobridge.ProbeStep{{Step: "credential", State: gobridge.ProbeFailed, Detail: err.Error()}}
			return c
		}
		defer source.Close()
		env.Credentials = source
	}
	c.Steps = probe(ctx, useOf(spec, session), env)
	for _, step := range c.Steps {
		c.OK = c.OK && step.State != gobridge.ProbeFailed
	}
	return c
}

// useOf is a session with what uses it.
func useOf(spec *gobridge.Spec, session *gobridge.SessionSpec) *gobridge.SessionUse {
	use := &gobridge.SessionUse{Bridge: &spec.Bridge, Session: session}
	for i := range spec.Receivers {
		if spec.Receivers[i].SessionID == session.ID {
			use.Receiver = &spec.Receivers[i]
		}
	}
	for i := range spec.Senders {
		if spec.Senders[i].SessionID == session.ID {
			use.Senders = append(use.Senders, &spec.Senders[i])
		}
	}
	return use
}

// printChecked prints one line a step.
func printChecked(out io.Writer, c checked) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, s := range c.Steps {
		detail := oneLine(s.Detail)
		if s.Hint != "" {
			detail += " (" + oneLine(s.Hint) + ")"
		}
		where := c.SessionID
		if s.Endpoint != "" {
			where += " " + s.Endpoint
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", s.State, where, s.Step, detail)
	}
	return w.Flush()
}
