package main

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	logsapi "k8s.io/component-base/logs/api/v1"

	"github.com/bowline-k8s/bowline/hint"
)

// The tests run many commands in one process; a user runs one.
func init() { logsapi.ReapplyHandling = logsapi.ReapplyHandlingIgnoreUnchanged }

// TestLogFlags: a format that does not exist is a wrong use, and klog's other flags are not shown.
func TestLogFlags(t *testing.T) {
	if _, errOut, status := typed(t, "version", "--logging-format", "xml"); status != 1 || !strings.Contains(errOut, "log format") {
		t.Errorf("status %d, %q", status, errOut)
	}
	out, _, _ := typed(t, "run", "--help")
	if strings.Contains(out, "--log-") || !strings.Contains(out, "--logging-format") {
		t.Errorf("help: %s", out)
	}
}

// typed runs the whole program as a shell would, and returns stdout, stderr and the exit status.
func typed(t *testing.T, args ...string) (out, errOut string, status int) {
	t.Helper()
	root := rootCommand("bowline")
	var stdout, stderr bytes.Buffer
	root.SetOut(&stdout)
	root.SetErr(&stderr)
	root.SetIn(strings.NewReader(""))
	root.SetArgs(args)
	status = explain(&stderr, "bowline", root.ExecuteContext(t.Context()))
	return stdout.String(), stderr.String(), status
}

// tree returns every command of the program by the words that invoke it.
func tree() map[string]*cobra.Command {
	all := map[string]*cobra.Command{}
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		all[c.CommandPath()] = c
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(rootCommand("bowline"))
	return all
}

// A script must not continue after a command that does not exist.
func TestUnknownCommand(t *testing.T) {
	groups := 0
	for path, c := range tree() {
		if !c.HasSubCommands() {
			continue
		}
		groups++
		words := strings.Fields(path)[1:]
		out, errOut, status := typed(t, append(words, "no-such-command")...)
		if status == 0 || out != "" || !strings.Contains(errOut, `unknown command "no-such-command" for "`+path+`"`) {
			t.Errorf("%s no-such-command: status %d, stdout %q, stderr %q", path, status, out, errOut)
		}
		if !strings.Contains(errOut, path+" --help") {
			t.Errorf("%s no-such-command does not say where to look: %q", path, errOut)
		}
		// Without a subcommand, a group shows its help.
		if out, _, status := typed(t, words...); status != 0 || !strings.Contains(out, "Usage:") {
			t.Errorf("%s: status %d, %q", path, status, out)
		}
	}
	if groups < 4 { // bowline, host, why, completion
		t.Errorf("only %d groups were found", groups)
	}
	for line, want := range map[string]string{
		"host lst":        "list",
		"tpo":             "top",
		"completion bsh":  "bash",
		"why podd":        "this?\n  pod\n",
		"why pdo web-0":   "this?\n  pod\n",
		"why web-0":       "bowline why pod web-0",
		"why deploy/web":  "bowline why pod NAME",
		"help host lst":   "list",
		"help no-such":    "unknown command",
		"host add-x --ff": "",
	} {
		_, errOut, status := typed(t, strings.Fields(line)...)
		if status == 0 || !strings.Contains(errOut, want) {
			t.Errorf("%s: status %d, stderr %q; want %q in it", line, status, errOut, want)
		}
	}
}

// Each command reports what is missing or too much, and where its help is.
func TestWrongArguments(t *testing.T) {
	for path, c := range tree() {
		if !c.Runnable() || c.HasSubCommands() || c.DisableFlagParsing || c.Name() == "help" {
			continue
		}
		words := strings.Fields(path)[1:]
		for name, args := range map[string][]string{
			"too many": append(words[:len(words):len(words)], "a", "b", "c", "d"),
			"bad flag": append(words[:len(words):len(words)], "--no-such-flag"),
		} {
			if name == "too many" && c.Name() == "join" { // it takes a whole command
				continue
			}
			out, errOut, status := typed(t, args...)
			if status == 0 || out != "" || !strings.Contains(errOut, `See "`+path+` --help".`) {
				t.Errorf("%s, %s: status %d, stdout %q, stderr %q", path, name, status, out, errOut)
			}
			for _, raw := range []string{"accepts ", "arg(s)", "flag(s)"} {
				if strings.Contains(errOut, raw) {
					t.Errorf("%s, %s: %q", path, name, errOut)
				}
			}
		}
	}
	for line, want := range map[string]string{
		"host add":                 "give NAME and --ssh: bowline host add NAME --ssh USER@HOST[:PORT]",
		"host add box-1":           "give --ssh: ",
		"host add --ssh root@h":    "give NAME: ",
		"host check":               "give ENDPOINT or NAME: ",
		"configure":                "give --node-name, --out and --ssh: ",
		"why pod":                  "give NAME: ",
		"top now":                  `unexpected argument "now"`,
		"host remove box-1 box-2":  `unexpected argument "box-2"`,
		"host list --no-such-flag": "unknown flag: --no-such-flag",
		"join /run/c.sock":         "give COMMAND: ",
	} {
		if _, errOut, status := typed(t, strings.Fields(line)...); status != 1 || !strings.Contains(errOut, want) {
			t.Errorf("%s: status %d, stderr %q; want %q in it", line, status, errOut, want)
		}
	}
}

// The help lists no command that is useless to users, lists all others, and -v has one meaning.
func TestHelpShows(t *testing.T) {
	out, _, status := typed(t, "--help")
	if status != 0 || strings.Contains(out, "\n  join ") || !strings.Contains(out, "\n  completion ") || !strings.Contains(out, "Exit status") {
		t.Errorf("status %d:\n%s", status, out)
	}
	for path, c := range tree() {
		c.InitDefaultVersionFlag()
		if f := c.Flags().ShorthandLookup("v"); f != nil && f.Name != "v" {
			t.Errorf("%s: -v is --%s", path, f.Name)
		}
		if c.Runnable() && !c.DisableFlagParsing && c.InheritedFlags().ShorthandLookup("v") == nil && c.Flags().ShorthandLookup("v") == nil && c.HasParent() {
			t.Errorf("%s has no -v", path)
		}
	}
	if out, _, status := typed(t, "--version"); status != 0 || !strings.HasPrefix(out, "bowline version dev") {
		t.Errorf("--version: status %d, %q", status, out)
	}
	if _, errOut, status := typed(t, "-v"); status == 0 || !strings.Contains(errOut, "-v") {
		t.Errorf("-v without a level: status %d, %q", status, errOut)
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if c := tree()["bowline completion "+shell]; c == nil || !c.IsAvailableCommand() {
			t.Errorf("there is no completion for %s", shell)
		}
	}
	for line, want := range map[string]string{"host list -o ": "json", "host add box-1 --kubelet-exposure ": "process", "version -o ": "text"} {
		words := append([]string{cobra.ShellCompRequestCmd}, strings.Split(line, " ")...)
		if out, _, _ := typed(t, words...); !strings.Contains(out, want+"\n") {
			t.Errorf("completion of %q: %q", line, out)
		}
	}
}

// TestLabIsHiddenWhereThereIsNone: a release has no lab, and its help does not offer one.
func TestLabIsHiddenWhereThereIsNone(t *testing.T) {
	for _, err := range []error{nil, errors.New("not built")} {
		c := labCommand(func() (string, error) { return "/lab", err })
		if c.Hidden != (err != nil) {
			t.Errorf("%v: hidden is %v", err, c.Hidden)
		}
	}
}

// TestExplain: the hint of an error is on lines of its own below it, and a hint from a machine
// cannot forge a line.
func TestExplain(t *testing.T) {
	var to bytes.Buffer
	err := errors.Join(errors.New("a"), hint.Add(fmt.Errorf("b: %w", hint.Add(errors.New("c"), "set in x:\ny\x1b 1")), "do it again"))
	status := explain(&to, "bowline", err)
	want := "bowline: a\nbowline: b: c\nhint: do it again\n      set in x:\n      y\\x1b 1\n"
	if status != 1 || to.String() != want {
		t.Errorf("status %d, %q; want %q", status, to.String(), want)
	}
}
