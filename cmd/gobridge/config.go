package main

import "github.com/spf13/cobra"

func newConfig() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Look at a config",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usageError(cmd, "config needs a command: show")
		},
	}
	cmd.AddCommand(newConfigShow())
	return cmd
}

// configShow prints the effective config.
type configShow struct{ config configFlag }

func newConfigShow() *cobra.Command {
	var c configShow
	cmd := &cobra.Command{
		Use:   "show [FILE]",
		Short: "Print the effective config: all defaults, secrets masked",
		RunE:  c.run,
	}
	c.config.add(cmd)
	return cmd
}

func (c *configShow) run(cmd *cobra.Command, args []string) error {
	name, err := c.config.file(cmd, args)
	if err != nil {
		return err
	}
	file, _, err := loadConfig(cmd, name)
	if err != nil {
		return err
	}
	out, err := file.Show()
	if err != nil {
		return err
	}
	_, err = cmd.OutOrStdout().Write(out)
	return err
}
