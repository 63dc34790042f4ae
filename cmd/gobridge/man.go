package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

func newMan() *cobra.Command {
	return &cobra.Command{
		Use:    "man [DIRECTORY]",
		Short:  "Print the man page, or write one for each command into a directory",
		Args:   cobra.MaximumNArgs(1),
		Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			header := &doc.GenManHeader{Title: "GOBRIDGE", Section: "1", Source: "GoBridge " + thisBuild().Version, Manual: "GoBridge"}
			root := cmd.Root()
			root.DisableAutoGenTag = true
			if len(args) == 0 {
				return doc.GenMan(root, header, cmd.OutOrStdout())
			}
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return openError(args[0], err)
			}
			if err := doc.GenManTree(root, header, args[0]); err != nil {
				return fmt.Errorf("write man pages: %w", err)
			}
			return nil
		},
	}
}
