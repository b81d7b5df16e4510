package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// commit is set by the linker; else Go's own note of it serves.
var commit string

// build is what this program is.
type build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Go       string `json:"goVersion"`
	Platform string `json:"platform"`
}

func thisBuild() build {
	b := build{Version: version, Commit: commit, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok && b.Commit == "" {
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				b.Commit = s.Value + b.Commit
			case s.Key == "vcs.modified" && s.Value == "true":
				b.Commit += "-dirty"
			}
		}
	}
	return b
}

func versionCommand() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  arguments(),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := checkOutput(c, output); err != nil {
				return err
			}
			b := thisBuild()
			if output == "json" {
				return writeJSON(c.OutOrStdout(), b)
			}
			of := ""
			if b.Commit != "" {
				of = " (commit " + b.Commit + ")"
			}
			_, err := fmt.Fprintf(c.OutOrStdout(), "bowline %s%s, %s, %s\n", b.Version, of, b.Go, b.Platform)
			return err
		},
	}
	outputFlag(c, &output)
	return c
}
