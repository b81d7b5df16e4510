// Command toolbox is the first process of the image of that name, for pods in demos and tests. It
// has a few commands that busybox lacks, and runs busybox for all others. The name by which it is
// called, or its first argument, selects the command.
//
// As a container's first process it ends on SIGTERM with exit code 143, unless a script has set a
// trap: it runs busybox as a child, which the kernel lets die by a signal.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const busybox = "/bin/busybox"

var commands = map[string]func(args []string) error{"alloc": alloc, "append": appendTo, "count": count}

func main() {
	name, args := filepath.Base(os.Args[0]), os.Args[1:]
	if name == "toolbox" && len(args) > 0 {
		name, args = filepath.Base(args[0]), args[1:]
	}
	code, err := 0, error(nil)
	switch run := commands[name]; {
	case run != nil:
		go func() { os.Exit(128 + int((<-signals()).(syscall.Signal))) }()
		err = run(args)
	case os.Getpid() == 1:
		code, err = child(name, args)
	default:
		err = syscall.Exec(busybox, append([]string{name}, args...), os.Environ())
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func signals() <-chan os.Signal {
	c := make(chan os.Signal, 8)
	signal.Notify(c, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	return c
}

// child runs a command of busybox, passes signals on to it and returns its exit code as a shell
// does.
func child(name string, args []string) (int, error) {
	got := signals()
	cmd := &exec.Cmd{Path: busybox, Args: append([]string{name}, args...), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
	if err := cmd.Start(); err != nil {
		return 127, err
	}
	go func() {
		for s := range got {
			_ = cmd.Process.Signal(s)
		}
	}()
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		return 1, err
	}
	if status := cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return cmd.ProcessState.ExitCode(), nil
}

// appendTo adds a line to a file in one write, so that writers do not mix: append FILE [WORD]
func appendTo(args []string) error {
	if len(args) == 0 {
		return errors.New("usage: append FILE [WORD]")
	}
	file, err := os.OpenFile(args[0], os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = file.WriteString(strings.Join(args[1:], " ") + "\n")
	return errors.Join(err, file.Close())
}

// count prints numbers from 1, one each interval: count [-i SECONDS] [-n HOW MANY] [WORDS...]
func count(args []string) error {
	flags := flag.NewFlagSet("count", flag.ExitOnError)
	interval, limit := flags.Float64("i", 1, "seconds between two numbers"), flags.Int("n", -1, "how many; negative: without end")
	_ = flags.Parse(args)
	for i := 1; *limit < 0 || i <= *limit; i++ {
		fmt.Println(strings.Join(append([]string{strconv.Itoa(i)}, flags.Args()...), " "))
		if i != *limit {
			time.Sleep(time.Duration(*interval * float64(time.Second)))
		}
	}
	return nil
}

// alloc allocates memory and holds it: alloc SIZE [SECONDS]
func alloc(args []string) error {
	if len(args) == 0 {
		return errors.New("usage: alloc SIZE [SECONDS]")
	}
	size, err := bytesOf(args[0])
	if err != nil {
		return err
	}
	memory, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	for i := 0; i < len(memory); i += os.Getpagesize() {
		memory[i] = 1
	}
	fmt.Printf("holding %d bytes\n", size)
	n := 1e9 // thirty years
	if len(args) > 1 {
		n, err = strconv.ParseFloat(args[1], 64)
	}
	time.Sleep(time.Duration(n * float64(time.Second)))
	return err
}

// bytesOf reads a size such as 64M or 64Mi; k, M and G are powers of 1024.
func bytesOf(s string) (int64, error) {
	number := strings.TrimRight(s, "KkMmGgi")
	n, err := strconv.ParseInt(number, 10, 64)
	if unit := strings.TrimSuffix(s[len(number):], "i"); unit != "" {
		n <<= 10 * (1 + strings.Index("kmg", strings.ToLower(unit)))
	}
	return n, err
}
