// Command gobridge runs a bridge between message brokers and looks after it.
//
// Exit codes: 0 done; 1 it did not work; 2 wrong usage; 3 (run only) stopped with
// messages left at their source. Errors go to standard error, one line each.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

// The exit codes.
const (
	exitOK        = 0
	exitFailed    = 1
	exitUsage     = 2
	exitUnsettled = 3
)

func main() { os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr)) }

// commands lists the commands in the order of the help text.
func commands() []*cobra.Command {
	return []*cobra.Command{
		newRun(),
		newDemo(),
		newValidate(),
		newExplain(),
		newInit(),
		newCheck(),
		newStatus(),
		newDLQ(),
		newOutbox(),
		newSubscriptions(),
		newSessions(),
		newStore(),
		newConfig(),
		newSchema(),
		newVersion(),
		newMan(),
	}
}

// execute runs one command line and returns the exit code.
func execute(args []string, stdout, stderr io.Writer) int {
	started := false
	root := &cobra.Command{
		Use:           "gobridge",
		Short:         "Move messages between brokers without losing them",
		Version:       thisBuild().String(),
		SilenceErrors: true,
		SilenceUsage:  true,
		// Flags and arguments have been checked when this runs: whatever went wrong
		// before was the command line.
		PersistentPreRun: func(*cobra.Command, []string) { started = true },
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.AddCommand(commands()...)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteC()
	if err == nil {
		return exitOK
	}
	if !started {
		err = usageError(cmd, err.Error())
	}
	status, ok := errors.AsType[*exitError](err)
	if !ok {
		status = &exitError{exitFailed, err}
	}
	if status.err != nil {
		fmt.Fprintln(stderr, "gobridge: "+oneLine(status.err.Error()))
	}
	return status.code
}

// exitError ends the program with a code; without err everything has been said.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usageError is a mistake in the command line.
func usageError(cmd *cobra.Command, what string) error {
	return &exitError{exitUsage, fmt.Errorf("%s (see %s --help)", what, cmd.CommandPath())}
}

// oneLine joins the lines of a message.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
