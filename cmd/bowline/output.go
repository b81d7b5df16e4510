package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// completionTime bounds the request for object names in shell completion.
const completionTime = 3 * time.Second

// formats are the values of --output that every command with that flag has.
var formats = []string{"text", "json"}

// outputFlag adds --output, with formats and more as its values.
func outputFlag(c *cobra.Command, to *string, more ...string) {
	all := append(formats[:len(formats):len(formats)], more...)
	c.Flags().StringVarP(to, "output", "o", formats[0], "the format: "+strings.Join(all, " or "))
	choices(c, "output", all...)
}

// choices adds shell completion for a flag.
func choices(c *cobra.Command, flag string, all ...string) {
	_ = c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(all, cobra.ShellCompDirectiveNoFileComp)) // the flag is defined above
}

// checkOutput rejects a format that outputFlag does not offer.
func checkOutput(c *cobra.Command, format string, more ...string) error {
	all := append(formats[:len(formats):len(formats)], more...)
	if !slices.Contains(all, format) {
		return wrongUsage(c, "--output %q: %s", format, strings.Join(all, " or "))
	}
	return nil
}

// completeHosts completes a command's one argument with the names of Host objects.
func completeHosts(way *access) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, _ string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
		objects, _, err := way.clients()
		if err != nil || len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(c.Context(), completionTime)
		defer cancel()
		list, err := objects.List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		for i := range list.Items {
			names = append(names, list.Items[i].Name)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// writeJSON writes an object for a program, or for a terminal: it may contain text of a host.
func writeJSON(to io.Writer, object any) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(object); err != nil {
		return err
	}
	_, err := to.Write(pod.PrintableJSON(text.Bytes()))
	return err
}
