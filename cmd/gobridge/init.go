package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gobridge/gobridge/examples"
)

// initConfig writes a config to start from.
type initConfig struct {
	output string
	force  bool
	list   bool
}

func newInit() *cobra.Command {
	var c initConfig
	cmd := &cobra.Command{
		Use:   "init [TEMPLATE]",
		Short: "Write a commented config to start from",
		Args:  cobra.MaximumNArgs(1),
		RunE:  c.run,
	}
	cmd.Flags().StringVarP(&c.output, "output", "o", defaultConfig, "`file` to write, - for standard output")
	cmd.Flags().BoolVarP(&c.force, "force", "f", false, "replace a file that exists")
	cmd.Flags().BoolVarP(&c.list, "list", "l", false, "list the templates and write nothing")
	cmd.ValidArgsFunction = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		all, _ := examples.All()
		return templateNames(all), cobra.ShellCompDirectiveNoFileComp
	}
	return cmd
}

func (c *initConfig) run(cmd *cobra.Command, args []string) error {
	all, err := examples.All()
	if err != nil {
		return fmt.Errorf("read templates: %w", err)
	}
	out := cmd.OutOrStdout()
	if c.list {
		listTemplates(out, all)
		return nil
	}
	name := examples.Default
	if len(args) == 1 {
		name = args[0]
	}
	for _, e := range all {
		if e.Name != name {
			continue
		}
		if c.output == "-" {
			_, err := out.Write(e.Config)
			return err
		}
		if err := c.write(e.Config); err != nil {
			return err
		}
		fmt.Fprintf(out, "wrote %s from the template %s; next: edit it, then gobridge validate %s\n\ntemplates:\n", c.output, name, c.output)
		listTemplates(out, all)
		return nil
	}
	return fmt.Errorf("no template %q (templates: %s)", name, strings.Join(templateNames(all), ", "))
}

// write creates the file; an existing one is replaced only by force.
func (c *initConfig) write(data []byte) error {
	flags := os.O_WRONLY | os.O_CREATE | os.O_EXCL
	if c.force {
		flags = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	}
	// The file will hold credentials or name where they are.
	f, err := os.OpenFile(c.output, flags, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s exists (--force replaces it, -o FILE writes another one)", c.output)
	}
	if err != nil {
		return openError(c.output, err)
	}
	if _, err := f.Write(data); err != nil {
		_ = f.Close()
		return openError(c.output, err)
	}
	return f.Close()
}

func listTemplates(out io.Writer, all []examples.Example) {
	for _, e := range all {
		fmt.Fprintf(out, "  %-14s %s\n", e.Name, e.Summary)
	}
}

func templateNames(all []examples.Example) []string {
	var names []string
	for _, e := range all {
		names = append(names, e.Name)
	}
	return names
}
