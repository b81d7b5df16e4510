// Command toolbox holds a shell and many small commands in one static program, for pods in demos
// and tests. The name by which it is called, or its first argument, selects the command.
//
// As a container's first process it ends on SIGTERM with exit code 143, unless a shell script has
// set a trap. busybox would not.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
)

// call is the environment of one command, inside the shell or alone.
type call struct {
	ctx            context.Context
	name           string
	args           []string // without the name
	dir            string
	env            []string // KEY=value
	stdin          io.Reader
	stdout, stderr io.Writer
}

// path resolves a path argument against the command's directory.
func (c *call) path(p string) string {
	if filepath.IsAbs(p) {
		return p
	}
	return filepath.Join(c.dir, p)
}

// fail prints an error as Unix commands do and returns exit code 1.
func (c *call) fail(err error) int {
	fmt.Fprintf(c.stderr, "%s: %v\n", c.name, err)
	return 1
}

func (c *call) usage(text string) int {
	fmt.Fprintf(c.stderr, "usage: %s %s\n", c.name, text)
	return 2
}

// applets is filled by init, because the shell, one of its entries, runs the others.
var applets map[string]func(*call) int

func init() {
	applets = map[string]func(*call) int{
		"alloc": alloc, "append": appendTo, "burn": burn, "cat": cat, "chmod": chmod, "chown": chown, "cp": cp, "count": count,
		"date": date, "dd": dd, "df": df, "echo": echo, "env": printEnv, "false": func(*call) int { return 1 }, "fallocate": fallocate, "grep": grep,
		"head": head, "hostname": hostname, "id": id, "kill": kill, "ln": ln, "ls": ls, "mkdir": mkdir, "mkfifo": mkfifo, "mount": mount,
		"mv": mv, "nc": nc, "nslookup": nslookup, "printf": viaShell, "ps": ps, "pwd": pwd, "readlink": readlink, "rm": rm, "rmdir": rm,
		"seq": seq, "sh": sh, "sha256sum": sha256sum, "sleep": sleep, "sort": sortLines, "stat": stat, "sync": syncDisks, "tail": tail,
		"tee": tee, "test": viaShell, "touch": touch, "true": func(*call) int { return 0 }, "tty": tty, "uname": uname,
		"wc": wc, "wget": wget, "whoami": whoami, "yes": yes,
	}
}

// traps holds the handlers of signals to this process.
var traps = struct {
	sync.Mutex
	handlers map[syscall.Signal]func()
}{handlers: map[syscall.Signal]func(){}}

func main() {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	go func() {
		for s := range signals {
			sig := s.(syscall.Signal)
			traps.Lock()
			handler, ok := traps.handlers[sig]
			traps.Unlock()
			if !ok {
				os.Exit(128 + int(sig))
			}
			handler()
		}
	}()

	args := os.Args
	name := filepath.Base(args[0])
	if _, ok := applets[name]; !ok && len(args) > 1 {
		args = args[1:]
		name = filepath.Base(args[0])
	}
	run, ok := applets[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "toolbox: no command %q\n", name)
		os.Exit(127)
	}
	dir, err := os.Getwd()
	if err != nil {
		dir = "/"
	}
	os.Exit(run(&call{ctx: context.Background(), name: name, args: args[1:], dir: dir, env: os.Environ(),
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}))
}
