package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gobridge/gobridge/config"
)

// validate reports every fault of config files.
type validate struct{ config configFlag }

func newValidate() *cobra.Command {
	var v validate
	cmd := &cobra.Command{
		Use:   "validate [FILE...]",
		Short: "Report every error of config files",
		Long: "Report every error and warning of config files, as file:line:col: where: what (hint).\n" +
			"- is standard input. " +
			"Nothing is connected to. The exit code is 0 when no file has an error, else 1.",
		RunE: v.run,
	}
	v.config.add(cmd)
	return cmd
}

func (v *validate) run(cmd *cobra.Command, args []string) error {
	if len(args) == 0 || v.config.path != "" {
		name, err := v.config.file(cmd, nil)
		if err != nil {
			return err
		}
		args = append([]string{name}, args...)
	}
	failed := false
	for _, name := range args {
		_, diags, err := readConfig(cmd, name)
		if err != nil {
			fmt.Fprintln(cmd.ErrOrStderr(), "gobridge: "+oneLine(err.Error()))
			failed = true
			continue
		}
		printDiagnostics(cmd, diags)
		if config.HasErrors(diags) {
			failed = true
		} else {
			if name == "-" {
				name = "stdin"
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: ok\n", name)
		}
	}
	if failed {
		return &exitError{code: exitFailed}
	}
	return nil
}
