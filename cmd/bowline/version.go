package main

import (
	"encoding/json"
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
		Short: "Say which Bowline this is",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			b := thisBuild()
			switch output {
			case "json":
				encoder := json.NewEncoder(c.OutOrStdout())
				encoder.SetIndent("", "  ")
				return encoder.Encode(b)
			case "text":
				of := ""
				if b.Commit != "" {
					of = " (commit " + b.Commit + ")"
				}
				_, err := fmt.Fprintf(c.OutOrStdout(), "bowline %s%s, %s, %s\n", b.Version, of, b.Go, b.Platform)
				return err
			}
			return fmt.Errorf("--output %q: text or json", output)
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "text", "text, or json for programs")
	return c
}
