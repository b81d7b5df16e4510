package ssh

import (
	"context"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"syscall"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/internal/machine"
	"github.com/bowline-k8s/bowline/host/ssh/shell"
)

// Run starts the command in a process group of its own, which is killed at the timeout and when
// the command has ended. The environment and standard input appear in no process's arguments;
// Args do, as for any command.
func (h *Host) Run(ctx context.Context, c host.Command) (host.Result, error) {
	return machine.Run(ctx, h.hook, c, h.runCommand)
}

func (h *Host) runCommand(ctx context.Context, c host.Command) (host.Result, error) {
	if err := ctx.Err(); err != nil {
		return host.Result{}, fmt.Errorf("run %s on %s: %w", c.Args[0], h.name, err)
	}
	env, err := exports(c.Env)
	if err != nil {
		return host.Result{}, fmt.Errorf("run %s: %w", c.Args[0], err)
	}
	res, err := h.shells.Do(ctx, shell.Request{
		Script:  scriptRun,
		Args:    append([]string{c.Dir, strconv.Itoa(len(env))}, c.Args...),
		Stdin:   append([]byte(env), c.Stdin...),
		Limit:   c.Timeout,
		Foreign: true,
	})
	if err == nil && ctx.Err() != nil {
		err = ctx.Err() // the host killed it just before we gave up
	}
	if err != nil {
		return host.Result{}, fmt.Errorf("run %s on %s: %w", c.Args[0], h.name, err)
	}
	// A program may exit with these codes too; only scripts/run.sh begins its answer so.
	if said, ok := strings.CutPrefix(string(res.Stderr), "bowline: no "); ok && (res.Code == 127 || res.Code == 126) {
		what := c.Args[0]
		if res.Code == 126 {
			what = c.Dir
		}
		return host.Result{}, fmt.Errorf("run %s on %s: no %s: %w", c.Args[0], h.name, firstWord(said), &fs.PathError{Op: "exec", Path: what, Err: syscall.ENOENT})
	}
	return host.Result{Stdout: res.Stdout, Stderr: res.Stderr, ExitCode: res.Code}, nil
}

func firstWord(s string) string { w, _, _ := strings.Cut(s, " "); return w }

// exports returns shell text that sets the environment.
func exports(env []string) (string, error) {
	var b strings.Builder
	for _, e := range env {
		name, value, ok := strings.Cut(e, "=")
		if !ok || !isName(name) || strings.Contains(value, "\x00") {
			return "", fmt.Errorf("the environment entry %q cannot be set by a shell", name)
		}
		b.WriteString("export " + name + "=" + shell.Quote(value) + "\n")
	}
	return b.String(), nil
}

// isName reports whether s is a variable name: letters, digits and underscores, not starting
// with a digit.
func isName(s string) bool {
	for i, c := range []byte(s) {
		letter := c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}
