//go:build faults

// Package faultinject injects faults into the calls to hosts and runtimes, for the kill matrix. Only
// a build with the tag faults can; without it the package does nothing.
package faultinject

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/bowline-k8s/bowline/host"
)

// fault is one fault injected at one call, read from BOWLINE_FAULT:
//
//	label=cri/CreateContainer,site=syncloop.(*job).start,nth=2,point=before,action=kill
//
// or from the file named by BOWLINE_FAULT=@FILE, read before every call: writing to it arms a
// running process and restarts the count.
//
// site is the calling function (see caller); without it any caller counts.
//
// point is one of
//
//	before    the request is not sent
//	during    the request is sent, and the fault strikes delay= later
//	withheld  the call is carried out, and its reply is dropped
//	after     the reply is used until the next call, whose request is not sent; with kill only
//
// action is kill (SIGKILL of this process), stop (SIGTERM of this process; with during only; the
// call continues) or error (a transport error).
//
// BOWLINE_FAULT_LOG names a file to which each event appends a line: "call LABEL SITE" before every
// call, so that the log lists all calls there are; "done LABEL SITE" when it has returned; "begin"
// at process start; "arm SPEC" when a fault is armed; "strike LABEL SITE" when it strikes.
type fault struct {
	file string
	log  *os.File

	mu   sync.Mutex
	text string
	spec faultSpec
	seen int
	due  func() error // strikes before the next call
}

// idle is how long a fault that waits for the next call waits before it strikes anyway.
const idle = 50 * time.Millisecond

type faultSpec struct {
	label, site, point, action string
	nth                        int
	delay                      time.Duration
}

// Hook returns the hook that injects the fault of the environment.
func Hook() (host.Hook, error) {
	f := &fault{}
	if path := os.Getenv("BOWLINE_FAULT_LOG"); path != "" {
		log, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return nil, err
		}
		f.log = log
		f.write("begin")
	}
	text := os.Getenv("BOWLINE_FAULT")
	if file, ok := strings.CutPrefix(text, "@"); ok {
		f.file = file
		return f.hook, nil
	}
	return f.hook, f.arm(text)
}

// SweepPeriod is BOWLINE_SWEEP, so that a test sees GC sweeps, and faults in them, within the
// seconds that its pods live.
func SweepPeriod() time.Duration {
	d, _ := time.ParseDuration(os.Getenv("BOWLINE_SWEEP"))
	return d
}

func (f *fault) arm(text string) error {
	spec, err := parseFault(text)
	if err != nil {
		return err
	}
	f.text, f.spec, f.seen = text, spec, 0
	f.write("arm " + text)
	return nil
}

func parseFault(text string) (faultSpec, error) {
	s := faultSpec{nth: 1, delay: 5 * time.Millisecond}
	for _, field := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' }) {
		key, value, _ := strings.Cut(field, "=")
		var err error
		switch key {
		case "label":
			s.label = value
		case "site":
			s.site = value
		case "point":
			s.point = value
		case "action":
			s.action = value
		case "nth":
			s.nth, err = strconv.Atoi(value)
		case "delay":
			s.delay, err = time.ParseDuration(value)
		case "id": // ignored; distinguishes a fault from an equal one before it
		default:
			err = fmt.Errorf("no such field")
		}
		if err != nil {
			return s, fmt.Errorf("BOWLINE_FAULT: %s: %w", field, err)
		}
	}
	return s, nil
}

func (f *fault) hook(ctx context.Context, label string, carry func(context.Context) error) error {
	site := caller()
	call := func(ctx context.Context) error {
		defer f.write("done " + label + " " + site)
		return carry(ctx)
	}
	spec, struck := f.strikes(label, site)
	if !struck {
		return call(ctx)
	}
	act := func() error { return f.act(spec, label, site) }
	switch spec.point {
	case "before":
		return act()
	case "during":
		done := make(chan error, 1)
		go func() { done <- call(ctx) }()
		select {
		case <-time.After(spec.delay):
		case err := <-done:
			done <- err
		}
		err := act()
		if spec.action == "stop" {
			err = <-done
		}
		return err
	case "withheld":
		_ = call(ctx)
		return act()
	default: // after
		err := call(ctx)
		f.mu.Lock()
		f.due = act
		f.mu.Unlock()
		time.AfterFunc(idle, func() { _ = act() })
		return err
	}
}

func (f *fault) strikes(label, site string) (faultSpec, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.due != nil {
		_ = f.due()
	}
	if f.file != "" {
		if data, err := os.ReadFile(f.file); err == nil && string(data) != f.text {
			if err := f.arm(string(data)); err != nil {
				panic(err)
			}
		}
	}
	f.write("call " + label + " " + site)
	if label != f.spec.label || f.spec.site != "" && site != f.spec.site {
		return f.spec, false
	}
	f.seen++
	return f.spec, f.seen == f.spec.nth
}

func (f *fault) act(s faultSpec, label, site string) error {
	f.write("strike " + label + " " + site)
	switch s.action {
	case "kill":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // no further instruction
	case "stop":
		return syscall.Kill(os.Getpid(), syscall.SIGTERM)
	}
	if strings.HasPrefix(label, "host/") {
		return fmt.Errorf("injected at %s: %w", label, host.ErrUnreachable)
	}
	return grpcstatus.Error(codes.Unavailable, "injected at "+label)
}

// write appends one line in one system call, so that lines of several threads do not mix.
func (f *fault) write(line string) {
	if f.log != nil {
		_, _ = f.log.WriteString(line + "\n")
	}
}

// closure matches the suffix of a function literal's name.
var closure = regexp.MustCompile(`(\.func\d+|\.gowrap\d+|\.\d+)+$|\[\.\.\.\]`)

// carriers are the packages that carry calls out or wrap their hook, and those that wire a node:
// prefixes of function names without the module path.
var carriers = []string{"host", "cri.", "cmd/", "node.", "connect.", "ownership.", "cluster.", "readiness.", "fleet.", "release.", "faultinject.", "kubeletmetrics.", "tracing."}

// caller returns the innermost function of this module outside the packages that carry calls out,
// without the module path.
func caller() string {
	const module = "github.com/bowline-k8s/bowline/"
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	for {
		frame, more := frames.Next()
		name, ours := strings.CutPrefix(frame.Function, module)
		if ours && !slices.ContainsFunc(carriers, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			return closure.ReplaceAllString(name, "")
		}
		if !more {
			return "start" // the wiring itself, during startup
		}
	}
}
