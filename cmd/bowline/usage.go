package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/component-base/logs/json"

	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/pod"
)

// usageError is an error in the command line; see is the command whose help explains it.
type usageError struct{ what, see string }

func (e *usageError) Error() string { return e.what }

// explain prints an error for the user, with its hint below, and returns the exit status.
func explain(to io.Writer, as string, err error) int {
	if err == nil {
		return 0
	}
	if errors.Is(err, errReported) {
		return 1
	}
	for _, one := range each(err) {
		fmt.Fprintln(to, as+": "+pod.PrintableLines(one.Error()))
		if h := hint.Of(one); h != "" {
			fmt.Fprintln(to, "hint: "+strings.ReplaceAll(pod.PrintableLines(h), "\n", "\n      "))
		}
	}
	if usage := (*usageError)(nil); errors.As(err, &usage) {
		fmt.Fprintf(to, "See \"%s --help\".\n", usage.see)
	}
	return 1
}

// report is explain in the format of the log: a program that reads JSON there gets the error as JSON too.
func report(to io.Writer, as string, inJSON bool, err error) int {
	if err == nil || errors.Is(err, errReported) || !inJSON {
		return explain(to, as, err)
	}
	log, control := (json.Factory{}).Create(*logsapi.NewLoggingConfiguration(), logsapi.LoggingOptions{ErrorStream: to, InfoStream: to})
	for _, one := range each(err) {
		values := hint.With(one, "program", as)
		if usage := (*usageError)(nil); errors.As(one, &usage) {
			values = append(values, "see", usage.see+" --help")
		}
		log.Error(one, "Failed to run the command", values...)
	}
	control.Flush()
	return 1
}

// wantsJSON reports whether the log is in JSON: by the configuration that root has applied, or by args,
// the command line, whatever else is wrong with it.
func wantsJSON(root *cobra.Command, args []string) bool {
	format := root.PersistentFlags().Lookup("logging-format").Value.String()
	for i, arg := range args {
		if arg == "--" {
			break
		}
		if value, is := strings.CutPrefix(arg, "--logging-format="); is {
			format = value
		} else if arg == "--logging-format" && i+1 < len(args) {
			format = args[i+1]
		}
	}
	return format == logsapi.JSONLogFormat
}

// wrongUsage returns the error for a mistake in the command line of c.
func wrongUsage(c *cobra.Command, format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...), c.CommandPath()}
}

// usable completes the tree below c: a command group rejects unknown subcommands, and every usage
// error names the help.
func usable(c *cobra.Command) {
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return wrongUsage(c, "%v", err) })
	c.SetUsageFunc(writeUsage)
	if c.HasSubCommands() && c.RunE == nil {
		c.Args = cobra.ArbitraryArgs
		c.RunE = func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return c.Help()
			}
			return unknownCommand(c, args[0])
		}
	}
	if c.HasParent() && c.Parent().Name() == "completion" { // created by cobra
		c.Args = arguments()
	}
	for _, sub := range c.Commands() {
		usable(sub)
	}
}

// suggestDistance is the largest edit distance of a suggested name.
const suggestDistance = 2

func unknownCommand(c *cobra.Command, word string) error {
	text := fmt.Sprintf("unknown command %q for %q", word, c.CommandPath())
	c.SuggestionsMinimumDistance = suggestDistance
	if near := c.SuggestionsFor(word); len(near) > 0 {
		text += "\n\nDid you mean this?\n  " + strings.Join(near, "\n  ") + "\n"
	}
	return &usageError{text, c.CommandPath()}
}

// arguments requires one argument for each name. It also reports missing required flags, so that
// the user learns of everything at once.
func arguments(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) > len(names) {
			return wrongUsage(c, "unexpected argument %q: %s", args[len(names)], c.UseLine())
		}
		return missing(c, names[len(args):])
	}
}

// missing reports missing arguments and required flags.
func missing(c *cobra.Command, names []string) error {
	names = slices.Clone(names)
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if required := f.Annotations[cobra.BashCompOneRequiredFlag]; len(required) > 0 && required[0] == "true" && !f.Changed {
			names = append(names, "--"+f.Name)
		}
	})
	if len(names) == 0 {
		return nil
	}
	list := names[0]
	if n := len(names); n > 1 {
		list = strings.Join(names[:n-1], ", ") + " and " + names[n-1]
	}
	return wrongUsage(c, "give %s: %s", list, c.UseLine())
}

// writeUsage prints the usage of a command. cobra's default shows a command group as runnable by
// itself.
func writeUsage(c *cobra.Command) error {
	w := c.OutOrStderr()
	line := c.UseLine()
	if c.HasAvailableSubCommands() {
		line = c.CommandPath() + " COMMAND"
	}
	fmt.Fprintf(w, "Usage:\n  %s\n", line)
	if c.HasExample() {
		fmt.Fprintf(w, "\nExamples:\n%s\n", c.Example)
	}
	if c.HasAvailableSubCommands() {
		fmt.Fprintln(w, "\nCommands:")
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() || sub.Name() == "help" {
				fmt.Fprintf(w, "  %-*s %s\n", sub.NamePadding(), sub.Name(), sub.Short)
			}
		}
	}
	if c.HasAvailableLocalFlags() {
		fmt.Fprintf(w, "\nFlags:\n%s", c.LocalFlags().FlagUsages())
	}
	if c.HasAvailableInheritedFlags() {
		fmt.Fprintf(w, "\nGlobal flags:\n%s", c.InheritedFlags().FlagUsages())
	}
	if c.HasAvailableSubCommands() {
		fmt.Fprintf(w, "\nSee \"%s COMMAND --help\" for a command.\n", c.CommandPath())
	}
	return nil
}

// helpCommand returns "help COMMAND". It fails for a command that does not exist.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Show the help of a command",
		RunE: func(c *cobra.Command, args []string) error {
			at := c.Root()
			for _, word := range args {
				i := slices.IndexFunc(at.Commands(), func(sub *cobra.Command) bool { return sub.Name() == word || sub.HasAlias(word) })
				if i < 0 {
					return unknownCommand(at, word)
				}
				at = at.Commands()[i]
			}
			at.InitDefaultHelpFlag()
			return at.Help()
		},
	}
}

// each splits a joined error.
func each(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}
