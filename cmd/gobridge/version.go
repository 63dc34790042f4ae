package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// release is the version of a released binary, set by the linker:
// -ldflags "-X main.release=v1.2.3".
var release string

// build says what this binary is.
type build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"`
	Modified bool   `json:"modified"`
	Go       string `json:"go_version"`
	Platform string `json:"platform"`
}

func thisBuild() build {
	b := build{Version: release, Commit: "unknown", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		if b.Version == "" {
			b.Version = info.Main.Version
		}
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Commit = s.Value
			case "vcs.modified":
				b.Modified = s.Value == "true"
			}
		}
	}
	if b.Version == "" {
		b.Version = "(devel)"
	}
	return b
}

func (b build) String() string {
	commit := b.Commit
	if b.Modified {
		commit += ", modified"
	}
	return fmt.Sprintf("gobridge %s (commit %s, %s, %s)", b.Version, commit, b.Go, b.Platform)
}

// version prints what this binary is.
type version struct{ json bool }

func newVersion() *cobra.Command {
	var v version
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print version, commit and Go version",
		Args:  cobra.NoArgs,
		RunE:  v.run,
	}
	cmd.Flags().BoolVar(&v.json, "json", false, "print JSON")
	return cmd
}

func (v *version) run(cmd *cobra.Command, _ []string) error {
	b := thisBuild()
	if v.json {
		return json.NewEncoder(cmd.OutOrStdout()).Encode(b)
	}
	_, err := fmt.Fprintln(cmd.OutOrStdout(), b)
	return err
}
