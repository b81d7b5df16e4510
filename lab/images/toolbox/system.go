package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// pause waits, and reports whether the command should continue.
func (c *call) pause(d time.Duration) bool {
	select {
	case <-c.ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// duration reads seconds or a Go duration; "inf" is for ever.
func duration(s string) (time.Duration, error) {
	if s == "inf" || s == "infinity" {
		return 1 << 62, nil
	}
	if n, err := strconv.ParseFloat(s, 64); err == nil {
		return time.Duration(n * float64(time.Second)), nil
	}
	return time.ParseDuration(s)
}

func sleep(c *call) int {
	if len(c.args) != 1 {
		return c.usage("SECONDS|DURATION|inf")
	}
	d, err := duration(c.args[0])
	if err != nil {
		return c.fail(err)
	}
	if !c.pause(d) {
		return 1
	}
	return 0
}

// count prints numbers from 1, one each interval: count [-i SECONDS] [-n HOW MANY] [WORDS...]
func count(c *call) int {
	flags, words := c.flags("in")
	interval, limit := time.Second, -1
	var err error
	if s, ok := flags['i']; ok {
		if interval, err = duration(s); err != nil {
			return c.fail(err)
		}
	}
	if s, ok := flags['n']; ok {
		if limit, err = strconv.Atoi(s); err != nil {
			return c.fail(err)
		}
	}
	for i := 1; limit < 0 || i <= limit; i++ {
		fmt.Fprintln(c.stdout, strings.Join(append([]string{strconv.Itoa(i)}, words...), " "))
		if i != limit && !c.pause(interval) {
			return 1
		}
	}
	return 0
}

func yes(c *call) int {
	word := strings.Join(c.args, " ")
	if word == "" {
		word = "y"
	}
	for c.ctx.Err() == nil {
		if _, err := fmt.Fprintln(c.stdout, word); err != nil {
			return 1
		}
	}
	return 1
}

func echo(c *call) int {
	args, end := c.args, "\n"
	if len(args) > 0 && args[0] == "-n" {
		args, end = args[1:], ""
	}
	fmt.Fprint(c.stdout, strings.Join(args, " ")+end)
	return 0
}

// printEnv prints the environment, or runs a command with additional variables.
func printEnv(c *call) int {
	args, env := c.args, c.env
	for len(args) > 0 && strings.Contains(args[0], "=") {
		env = append(slices.Clone(env), args[0])
		args = args[1:]
	}
	if len(args) == 0 {
		env = slices.Clone(env)
		slices.Sort(env)
		for _, e := range env {
			fmt.Fprintln(c.stdout, e)
		}
		return 0
	}
	if run, ok := applets[args[0]]; ok {
		inner := *c
		inner.name, inner.args, inner.env = args[0], args[1:], env
		return run(&inner)
	}
	cmd := exec.CommandContext(c.ctx, args[0], args[1:]...)
	cmd.Env, cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, c.dir, c.stdin, c.stdout, c.stderr
	if err := cmd.Run(); err != nil {
		c.fail(err)
		return max(cmd.ProcessState.ExitCode(), 1)
	}
	return 0
}

func date(c *call) int {
	format := time.RFC3339Nano
	now := time.Now().UTC()
	if len(c.args) == 1 && c.args[0] == "+%s" {
		fmt.Fprintln(c.stdout, now.Unix())
		return 0
	}
	fmt.Fprintln(c.stdout, now.Format(format))
	return 0
}

func hostname(c *call) int {
	name, err := os.Hostname()
	if err != nil {
		return c.fail(err)
	}
	if flags, _ := c.flags(""); len(flags) > 0 {
		if _, ok := flags['f']; ok {
			return fqdn(c, name)
		}
	}
	fmt.Fprintln(c.stdout, name)
	return 0
}

// fqdn looks the host name up in /etc/hosts, where the first name is the full one.
func fqdn(c *call, name string) int {
	data, err := os.ReadFile("/etc/hosts")
	if err != nil {
		return c.fail(err)
	}
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) > 1 && slices.Contains(fields[1:], name) {
			fmt.Fprintln(c.stdout, fields[1])
			return 0
		}
	}
	fmt.Fprintln(c.stdout, name)
	return 0
}

func id(c *call) int {
	groups, err := os.Getgroups()
	if err != nil {
		return c.fail(err)
	}
	slices.Sort(groups)
	list := make([]string, len(groups))
	for i, g := range groups {
		list[i] = strconv.Itoa(g)
	}
	flags, _ := c.flags("")
	_, u := flags['u']
	_, g := flags['g']
	_, all := flags['G']
	switch {
	case u:
		fmt.Fprintln(c.stdout, os.Geteuid())
	case g:
		fmt.Fprintln(c.stdout, os.Getegid())
	case all:
		fmt.Fprintln(c.stdout, strings.Join(list, " "))
	default:
		fmt.Fprintf(c.stdout, "uid=%d gid=%d groups=%s\n", os.Geteuid(), os.Getegid(), strings.Join(list, ","))
	}
	return 0
}

func whoami(c *call) int {
	data, err := os.ReadFile("/etc/passwd")
	if err != nil {
		return c.fail(err)
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Split(line, ":"); len(f) > 2 && f[2] == strconv.Itoa(os.Geteuid()) {
			fmt.Fprintln(c.stdout, f[0])
			return 0
		}
	}
	return c.fail(fmt.Errorf("no name for user %d", os.Geteuid()))
}

func kill(c *call) int {
	sig, args := syscall.SIGTERM, c.args
	if len(args) > 0 && strings.HasPrefix(args[0], "-") {
		name := args[0][1:]
		args = args[1:]
		if name == "s" && len(args) > 0 {
			name, args = args[0], args[1:]
		}
		var ok bool
		if sig, ok = signalByName(name); !ok && name != "0" {
			return c.fail(fmt.Errorf("no signal %q", name))
		}
	}
	status := 0
	for _, a := range args {
		pid, err := strconv.Atoi(a)
		if err == nil {
			err = syscall.Kill(pid, sig)
		}
		if err != nil {
			status = c.fail(fmt.Errorf("%s: %w", a, err))
		}
	}
	return status
}

func ps(c *call) int {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return c.fail(err)
	}
	for _, dir := range dirs {
		if line, err := os.ReadFile(dir + "/cmdline"); err == nil && len(line) > 0 {
			fmt.Fprintf(c.stdout, "%s %s\n", filepath.Base(dir), strings.TrimSpace(strings.ReplaceAll(string(line), "\x00", " ")))
		}
	}
	return 0
}

func pwd(c *call) int {
	fmt.Fprintln(c.stdout, c.dir)
	return 0
}

func seq(c *call) int {
	bounds := []int{1, 0}
	args := c.args
	if len(args) == 1 {
		args = append([]string{"1"}, args...)
	}
	if len(args) != 2 {
		return c.usage("[FIRST] LAST")
	}
	for i, a := range args {
		n, err := strconv.Atoi(a)
		if err != nil {
			return c.fail(err)
		}
		bounds[i] = n
	}
	for i := bounds[0]; i <= bounds[1]; i++ {
		fmt.Fprintln(c.stdout, i)
	}
	return 0
}

func tty(c *call) int {
	if f, ok := c.stdin.(*os.File); ok && isTerminal(f) {
		name, err := os.Readlink("/proc/self/fd/0")
		if err != nil {
			name = "a terminal"
		}
		fmt.Fprintln(c.stdout, name)
		return 0
	}
	fmt.Fprintln(c.stdout, "not a tty")
	return 1
}

func uname(c *call) int {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return c.fail(err)
	}
	flags, _ := c.flags("")
	if _, ok := flags['r']; ok {
		fmt.Fprintln(c.stdout, unix.ByteSliceToString(u.Release[:]))
		return 0
	}
	fmt.Fprintln(c.stdout, unix.ByteSliceToString(u.Sysname[:]), unix.ByteSliceToString(u.Nodename[:]), unix.ByteSliceToString(u.Release[:]))
	return 0
}

// alloc allocates memory and holds it: alloc SIZE [SECONDS]
func alloc(c *call) int {
	if len(c.args) == 0 {
		return c.usage("SIZE [SECONDS]")
	}
	size, err := bytesOf(c.args[0])
	if err != nil {
		return c.fail(err)
	}
	d := time.Duration(1 << 62)
	if len(c.args) > 1 {
		if d, err = duration(c.args[1]); err != nil {
			return c.fail(err)
		}
	}
	memory, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return c.fail(err)
	}
	defer func() { _ = unix.Munmap(memory) }()
	for i := 0; i < len(memory); i += os.Getpagesize() {
		memory[i] = 1
	}
	fmt.Fprintf(c.stdout, "holding %d bytes\n", size)
	c.pause(d)
	return 0
}

// burn keeps a processor busy: burn [SECONDS]
func burn(c *call) int {
	d := time.Duration(1 << 62)
	if len(c.args) > 0 {
		var err error
		if d, err = duration(c.args[0]); err != nil {
			return c.fail(err)
		}
	}
	for start := time.Now(); time.Since(start) < d && c.ctx.Err() == nil; {
	}
	return 0
}
