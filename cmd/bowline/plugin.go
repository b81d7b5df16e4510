package main

import (
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

// pluginName is what kubectl looks for in PATH to serve "kubectl bowline".
const pluginName = "kubectl-bowline"

// calledAs is how a person has called this program, by the name of its file.
func calledAs(argv0 string) string {
	if strings.TrimSuffix(filepath.Base(argv0), ".exe") == pluginName {
		return "kubectl bowline"
	}
	return "bowline"
}

// name has every command say what was called: in its usage, and in its examples.
func name(root *cobra.Command, as string) {
	if as == root.Name() {
		return
	}
	root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: as}
	var each func(c *cobra.Command)
	each = func(c *cobra.Command) {
		lines := strings.Split(c.Example, "\n")
		for i, l := range lines {
			if rest, ok := strings.CutPrefix(l, "  "+root.Name()+" "); ok {
				lines[i] = "  " + as + " " + rest
			}
		}
		c.Example = strings.Join(lines, "\n")
		for _, sub := range c.Commands() {
			each(sub)
		}
	}
	each(root)
}
