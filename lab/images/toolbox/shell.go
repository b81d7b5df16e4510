package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/interp"
	"mvdan.cc/sh/v3/syntax"
)

// sh runs scripts as sh does: sh [-e] [-x] [-c SCRIPT [NAME ARGS...]] [FILE ARGS...]
func sh(c *call) int {
	var script io.Reader = c.stdin
	var name string
	var options []string
	args := c.args
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' && args[0] != "--" {
		flags := args[0][1:]
		args = args[1:]
		for _, f := range flags {
			switch f {
			case 'e', 'x', 'u':
				options = append(options, "-"+string(f))
			case 'c':
				if len(args) == 0 {
					return c.usage("[-e] [-x] [-c SCRIPT [NAME ARGS...]] [FILE ARGS...]")
				}
				script, args = strings.NewReader(args[0]), args[1:]
				if name = "sh"; len(args) > 0 {
					args = args[1:]
				}
			}
		}
	}
	if name == "" && len(args) > 0 {
		file, err := os.Open(c.path(args[0]))
		if err != nil {
			c.fail(err)
			return 127
		}
		defer file.Close()
		script, name, args = file, args[0], args[1:]
	}
	runner, err := newRunner(c, append(append(options, "--"), args...))
	if err != nil {
		return c.fail(err)
	}
	if stdin, ok := script.(*os.File); ok && name == "" && isTerminal(stdin) {
		return interactive(c, runner, stdin)
	}
	parser := syntax.NewParser(syntax.Variant(syntax.LangBash))
	status := 0
	// Run statement by statement: text after an exit, or text that has not arrived yet, must not
	// matter.
	for stmt, err := range parser.StmtsSeq(script) {
		if err != nil {
			c.fail(err)
			return 2
		}
		status = exitCode(runner.Run(c.ctx, stmt))
		if runner.Exited() {
			return status
		}
	}
	// Traps on EXIT run at the end of a file.
	if code := exitCode(runner.Run(c.ctx, &syntax.File{})); code != 0 {
		return code
	}
	return status
}

func interactive(c *call, runner *interp.Runner, stdin *os.File) int {
	parser := syntax.NewParser(syntax.Variant(syntax.LangBash))
	prompt := func() { fmt.Fprint(c.stdout, "# ") }
	prompt()
	status := 0
	for stmts, err := range parser.InteractiveSeq(stdin) {
		if err != nil {
			c.fail(err)
			prompt()
			continue
		}
		if parser.Incomplete() {
			fmt.Fprint(c.stdout, "> ")
			continue
		}
		for _, stmt := range stmts {
			status = exitCode(runner.Run(c.ctx, stmt))
			if runner.Exited() {
				return status
			}
		}
		prompt()
	}
	return status
}

func newRunner(c *call, params []string) (*interp.Runner, error) {
	return interp.New(
		interp.StdIO(c.stdin, c.stdout, c.stderr),
		interp.Dir(c.dir),
		interp.Env(expand.ListEnviron(c.env...)),
		interp.Params(params...),
		interp.CallHandler(func(ctx context.Context, args []string) ([]string, error) {
			if args[0] == "trap" {
				return setTrap(c, interp.HandlerCtx(ctx), args), nil
			}
			return args, nil
		}),
		interp.ExecHandlers(func(next interp.ExecHandlerFunc) interp.ExecHandlerFunc {
			return func(ctx context.Context, args []string) error {
				run, ok := applets[strings.TrimPrefix(args[0], "/bin/")]
				if !ok {
					return next(ctx, args)
				}
				h := interp.HandlerCtx(ctx)
				status := run(&call{ctx: ctx, name: filepath.Base(args[0]), args: args[1:], dir: h.Dir, env: environment(h.Env),
					stdin: h.Stdin, stdout: h.Stdout, stderr: h.Stderr})
				if status != 0 {
					return interp.ExitStatus(status)
				}
				return nil
			}
		}),
	)
}

// viaShell runs commands that are built into the shell.
func viaShell(c *call) int {
	runner, err := newRunner(c, append([]string{"--"}, c.args...))
	if err != nil {
		return c.fail(err)
	}
	file, err := syntax.NewParser().Parse(strings.NewReader(c.name+` "$@"`), "")
	if err != nil {
		return c.fail(err)
	}
	return exitCode(runner.Run(c.ctx, file))
}

func environment(e expand.Environ) []string {
	var list []string
	for name, v := range e.Each {
		if v.Exported && v.Kind == expand.String {
			list = append(list, name+"="+v.Str)
		}
	}
	return list
}

func exitCode(err error) int {
	var status interp.ExitStatus
	switch {
	case err == nil:
		return 0
	case errors.As(err, &status):
		return int(status)
	default:
		fmt.Fprintln(os.Stderr, "sh:", err)
		return 1
	}
}

// setTrap handles the signals of a trap command, and returns the rest for the interpreter, which
// knows only EXIT and ERR. A handler runs at once, concurrently with the current command, with the
// variables as they are now.
func setTrap(c *call, h interp.HandlerContext, args []string) []string {
	if len(args) < 3 || args[1] == "-p" || args[1] == "-l" {
		return args
	}
	script := args[1]
	left := []string{"trap", script}
	variables := environment(h.Env)
	for name, v := range h.Env.Each {
		if !v.Exported && v.Kind == expand.String {
			variables = append(variables, name+"="+v.Str)
		}
	}
	for _, name := range args[2:] {
		sig, ok := signalByName(name)
		if !ok {
			left = append(left, name)
			continue
		}
		traps.Lock()
		switch script {
		case "-":
			delete(traps.handlers, sig)
		case "":
			traps.handlers[sig] = func() {}
		default:
			inner := *c
			inner.env, inner.dir = variables, h.Dir
			traps.handlers[sig] = func() { runHandler(&inner, script) }
		}
		traps.Unlock()
	}
	if len(left) == 2 {
		return []string{"true"}
	}
	return left
}

func runHandler(c *call, script string) {
	runner, err := newRunner(c, []string{"--"})
	if err != nil {
		c.fail(err)
		return
	}
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(script), "trap")
	if err != nil {
		c.fail(err)
		return
	}
	status := exitCode(runner.Run(c.ctx, file))
	if runner.Exited() {
		os.Exit(status)
	}
}

func signalByName(name string) (syscall.Signal, bool) {
	if n, err := strconv.Atoi(name); err == nil && n > 0 {
		return syscall.Signal(n), true
	}
	name = strings.ToUpper(name)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	sig := unix.SignalNum(name)
	return sig, sig != 0
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
