package main

import (
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/gobridge/gobridge/config"
	"github.com/gobridge/gobridge/kinds"
)

func newSchema() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of the config, for editors",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			enc := json.NewEncoder(cmd.OutOrStdout())
			enc.SetEscapeHTML(false)
			enc.SetIndent("", "  ")
			return enc.Encode(config.Schema(kinds.All()))
		},
	}
}
