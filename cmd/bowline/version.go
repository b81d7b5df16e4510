package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/bowline-k8s/bowline/version"
)

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
			b := version.This()
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
