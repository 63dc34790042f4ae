package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/gobridge/gobridge/config"
	"github.com/gobridge/gobridge/kinds"
)

const (
	defaultConfig = "gobridge.yaml"
	// maxRead is one byte more than a config may have: the reader of the config
	// reports what is larger.
	maxRead = 4<<20 + 1
)

// configFlag is the flag -c of commands that read one config; the file may also
// be their argument.
type configFlag struct{ path string }

func (c *configFlag) add(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&c.path, "config", "c", "", "config `file`, - for standard input (default "+defaultConfig+")")
	_ = cmd.MarkFlagFilename("config", "yaml", "yml", "json")
}

// file returns the config file that the command line names.
func (c *configFlag) file(cmd *cobra.Command, args []string) (string, error) {
	switch {
	case len(args) > 1 || len(args) == 1 && c.path != "":
		return "", usageError(cmd, "more than one config file")
	case len(args) == 1:
		return args[0], nil
	case c.path != "":
		return c.path, nil
	}
	return defaultConfig, nil
}

// readConfig reads and checks a config file; - is standard input.
func readConfig(cmd *cobra.Command, name string) (*config.File, []config.Diagnostic, error) {
	in := cmd.InOrStdin()
	if name == "-" {
		name = "stdin"
	} else {
		f, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil, fmt.Errorf("%s: no such file (gobridge init writes one to start from)", name)
		}
		if err != nil {
			return nil, nil, openError(name, err)
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, maxRead))
	if err != nil {
		return nil, nil, openError(name, err)
	}
	file, diags := config.Load(name, data, kinds.All())
	return file, diags, nil
}

// loadConfig reads a config file for a command that needs a sound one: errors go
// to standard error, one line each, and end the command.
func loadConfig(cmd *cobra.Command, name string) (*config.File, []config.Diagnostic, error) {
	file, diags, err := readConfig(cmd, name)
	if err != nil {
		return nil, nil, err
	}
	if config.HasErrors(diags) {
		printDiagnostics(cmd, diags)
		return nil, nil, &exitError{code: exitFailed}
	}
	return file, diags, nil
}

func printDiagnostics(cmd *cobra.Command, diags []config.Diagnostic) {
	for _, d := range diags {
		fmt.Fprintln(cmd.ErrOrStderr(), d)
	}
}

// openError says which file could not be opened or made.
func openError(name string, err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		err = pe.Err
	}
	return fmt.Errorf("%s: %w", name, err)
}
