// Package program is the program of the test images. It runs a tiny script that is given as its
// arguments, one step per argument. The fake runtime runs it in its own process; for real runtimes
// it is built into an image. So one suite tests both.
//
//	out TEXT            write a line to stdout
//	err TEXT            write a line to stderr
//	lines N TEXT        write N lines "TEXT <i>" to stdout, from 0
//	cat                 copy stdin to stdout until its end
//	env NAME            write the variable's value to stdout
//	append FILE TEXT    append a line to a file
//	read FILE           write a file to stdout; exit 1 if it cannot be read
//	sleep DURATION      as time.ParseDuration
//	wait                wait forever
//	each DURATION TEXT  write a line "TEXT <i>" to stdout each DURATION, forever
//	echo PORT           write "listening", accept TCP connections and send back what
//	                    they send, forever
//	on-term CODE        from now on SIGTERM ends the program with CODE
//	ignore-term         from now on SIGTERM only writes "TERM" to stdout
//	exit CODE
//
// By default SIGTERM ends it with 143. The end of the script is exit 0; a step that it does not
// understand is exit 2.
package program

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// World is everything that the program accesses.
type World struct {
	Args           []string // the steps
	Env            []string // NAME=value
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Term delivers one value per SIGTERM.
	Term <-chan struct{}
	// Path converts a path in the program's view to one of this process.
	Path func(string) string
	// Listen listens in the program's network.
	Listen func(ctx context.Context, port int) (net.Listener, error)
}

// Exit codes.
const (
	ExitTerm  = 143 // ended by SIGTERM
	ExitUsage = 2   // a step that it does not understand
)

// Run runs the script to its end and returns its exit code. The end of ctx stands for SIGKILL: the
// exit code does not count then.
func Run(ctx context.Context, w World) int {
	r := &run{World: w}
	ctx, r.cancel = context.WithCancel(ctx)
	defer r.cancel()
	watch := make(chan struct{})
	go func() { defer close(watch); r.watchTerm(ctx) }()
	code := 0
	for _, step := range w.Args {
		var done bool
		if code, done = r.step(ctx, step); done || ctx.Err() != nil {
			break
		}
	}
	r.cancel()
	<-watch
	if r.ended != nil {
		return *r.ended
	}
	return code
}

type run struct {
	World
	cancel context.CancelFunc

	mu     sync.Mutex
	ignore bool
	onTerm int
	ended  *int // the exit code of a SIGTERM; read after the watcher has ended
}

func (r *run) watchTerm(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.Term:
		}
		r.mu.Lock()
		ignore, code := r.ignore, r.onTerm
		r.mu.Unlock()
		if ignore {
			fmt.Fprintln(r.Stdout, "TERM")
			continue
		}
		if code == 0 {
			code = ExitTerm
		}
		r.ended = &code
		r.cancel()
		return
	}
}

// step runs one step; done ends the script with code.
func (r *run) step(ctx context.Context, step string) (code int, done bool) {
	verb, rest, _ := strings.Cut(step, " ")
	first, second, _ := strings.Cut(rest, " ")
	switch verb {
	case "out":
		fmt.Fprintln(r.Stdout, rest)
	case "err":
		fmt.Fprintln(r.Stderr, rest)
	case "lines":
		n, err := strconv.Atoi(first)
		if err != nil {
			return r.usage(step)
		}
		for i := range n {
			fmt.Fprintf(r.Stdout, "%s %d\n", second, i)
		}
	case "cat":
		if r.Stdin != nil {
			_, _ = io.Copy(r.Stdout, r.Stdin)
		}
	case "env":
		for _, e := range r.Env {
			if name, value, _ := strings.Cut(e, "="); name == rest {
				fmt.Fprintln(r.Stdout, value)
			}
		}
	case "append":
		f, err := os.OpenFile(r.Path(first), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return r.fail(err)
		}
		_, err = fmt.Fprintln(f, second)
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			return r.fail(err)
		}
	case "read":
		data, err := os.ReadFile(r.Path(first))
		if err != nil {
			return r.fail(err)
		}
		_, _ = r.Stdout.Write(data)
	case "sleep":
		d, err := time.ParseDuration(rest)
		if err != nil {
			return r.usage(step)
		}
		select {
		case <-ctx.Done():
		case <-time.After(d):
		}
	case "each":
		d, err := time.ParseDuration(first)
		if err != nil || d <= 0 {
			return r.usage(step)
		}
		tick := time.NewTicker(d)
		defer tick.Stop()
		for i := 0; ; i++ {
			fmt.Fprintf(r.Stdout, "%s %d\n", second, i)
			select {
			case <-ctx.Done():
				return 0, false
			case <-tick.C:
			}
		}
	case "wait":
		<-ctx.Done()
	case "echo":
		port, err := strconv.Atoi(rest)
		if err != nil {
			return r.usage(step)
		}
		if err := r.echo(ctx, port); err != nil {
			return r.fail(err)
		}
	case "on-term":
		code, err := strconv.Atoi(rest)
		if err != nil {
			return r.usage(step)
		}
		r.mu.Lock()
		r.onTerm = code
		r.mu.Unlock()
	case "ignore-term":
		r.mu.Lock()
		r.ignore = true
		r.mu.Unlock()
	case "exit":
		code, err := strconv.Atoi(rest)
		if err != nil {
			return r.usage(step)
		}
		return code, true
	default:
		return r.usage(step)
	}
	return 0, false
}

func (r *run) usage(step string) (int, bool) {
	fmt.Fprintf(r.Stderr, "not understood: %q\n", step)
	return ExitUsage, true
}

func (r *run) fail(err error) (int, bool) {
	fmt.Fprintln(r.Stderr, err)
	return 1, true
}

// echo serves until ctx ends.
func (r *run) echo(ctx context.Context, port int) error {
	l, err := r.Listen(ctx, port)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	fmt.Fprintln(r.Stdout, "listening")
	var conns sync.WaitGroup
	defer conns.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			return nil
		}
		conns.Add(1)
		go func() {
			defer conns.Done()
			defer c.Close()
			stop := context.AfterFunc(ctx, func() { _ = c.Close() })
			defer stop()
			_, _ = io.Copy(c, c)
		}()
	}
}
