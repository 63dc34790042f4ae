package main

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gobridge/gobridge/guarantee"
	"github.com/gobridge/gobridge/kinds"
)

// noSourceSideLoss is the promise that --require can ask for.
const noSourceSideLoss = "no-source-side-loss"

// explain says what a config promises for each filter of each route.
type explain struct {
	config  configFlag
	json    bool
	require string
}

func newExplain() *cobra.Command {
	var e explain
	cmd := &cobra.Command{
		Use:   "explain [FILE]",
		Short: "Say what a config promises for each message",
		Long: "Say for each topic filter of each route which rows of the guarantee matrix apply (docs/guarantees.md), what\n" +
			"can still be lost or repeated, and the one change that would strengthen it most. Nothing is connected to.\n" +
			"With --require no-source-side-loss the exit code is 1 unless every loss that is left has its cause outside\n" +
			"the bridge. It is 1 for a config with errors as well.",
		RunE: e.run,
	}
	e.config.add(cmd)
	cmd.Flags().BoolVar(&e.json, "json", false, "print JSON")
	cmd.Flags().StringVar(&e.require, "require", "", "fail unless the config promises this: "+noSourceSideLoss)
	return cmd
}

func (e *explain) run(cmd *cobra.Command, args []string) error {
	if cmd.Flags().Changed("require") && e.require != noSourceSideLoss {
		return usageError(cmd, fmt.Sprintf("--require %q: the only promise that can be required is %s", e.require, noSourceSideLoss))
	}
	name, err := e.config.file(cmd, args)
	if err != nil {
		return err
	}
	file, _, err := loadConfig(cmd, name)
	if err != nil {
		return err
	}
	report := guarantee.Explain(&file.Spec, kinds.All())
	if e.json {
		enc := json.NewEncoder(cmd.OutOrStdout())
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		err = enc.Encode(report)
	} else {
		err = report.WriteText(cmd.OutOrStdout())
	}
	if err != nil {
		return err
	}
	if e.require != "" && !report.NoSourceSideLoss {
		return fmt.Errorf("%s: %s is not promised: %s", name, noSourceSideLoss, strings.Join(report.Lost(), "; "))
	}
	return nil
}
