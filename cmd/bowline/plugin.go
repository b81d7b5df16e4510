package main

import (
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

// pluginName is the file name that kubectl looks for in PATH to serve "kubectl bowline".
const pluginName = "kubectl-bowline"

// calledAs returns how the user called this program, by the name of its file.
func calledAs(argv0 string) string {
	if strings.TrimSuffix(filepath.Base(argv0), ".exe") == pluginName {
		return "kubectl bowline"
	}
	return "bowline"
}

// name makes usage and examples of every command show the name that was called.
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
