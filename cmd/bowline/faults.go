//go:build faults

package main

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/bowline-k8s/bowline/host"
)

// fault is one fault at one call, read from BOWLINE_FAULT:
//
//	label=cri/CreateContainer,site=syncloop.(*job).start,nth=2,point=before,action=kill
//
// or from the file of BOWLINE_FAULT=@FILE, looked at before every call: what is
// written there arms a process that runs already, and counting begins anew.
//
// site is the caller (see caller); without it any caller counts. point is
// before (the request is not sent), during (it has been sent, delay= later the
// fault strikes), withheld (it is carried out, its reply never seen) or after
// (the reply is seen, and used until the next call, whose request is not sent;
// with kill only). action is kill (SIGKILL of this process) or error (a
// transport error).
//
// BOWLINE_FAULT_LOG names a file to which a line is appended for every call,
// "call LABEL SITE", so that a call nobody thought of is found, and "done LABEL
// SITE" when it has returned; "begin" when a process begins, "arm SPEC" when a fault is armed, and "strike LABEL SITE" when
// it strikes.
type fault struct {
	file string
	log  *os.File

	mu   sync.Mutex
	text string
	spec faultSpec
	seen int
	due  func() error // strikes at the next call
}

// idle is how long a fault that is due at the next call waits for one.
const idle = 50 * time.Millisecond

type faultSpec struct {
	label, site, point, action string
	nth                        int
	delay                      time.Duration
}

func faultHook() (host.Hook, error) {
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

// sweepPeriod is BOWLINE_SWEEP, so that a test sees sweeps, and faults in them,
// within the seconds that a pod of its lives.
func sweepPeriod() time.Duration {
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
		case "id": // tells a fault from an equal one before it
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
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = call(ctx)
		}()
		select {
		case <-time.After(spec.delay):
		case <-done:
		}
		return act()
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
	if s.action == "kill" {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // no step further
	}
	if strings.HasPrefix(label, "host/") {
		return fmt.Errorf("injected at %s: %w", label, host.ErrUnreachable)
	}
	return grpcstatus.Error(codes.Unavailable, "injected at "+label)
}

// write appends one line in one call: lines of threads do not mix.
func (f *fault) write(line string) {
	if f.log != nil {
		_, _ = f.log.WriteString(line + "\n")
	}
}

// closure is the end of a function literal's name.
var closure = regexp.MustCompile(`(\.func\d+|\.gowrap\d+|\.\d+)+$|\[\.\.\.\]`)

// caller names the function that asked for the call: the nearest one of ours
// above the packages that carry calls out, without the module's path.
func caller() string {
	const module = "github.com/bowline-k8s/bowline/"
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	for {
		frame, more := frames.Next()
		name, ours := strings.CutPrefix(frame.Function, module)
		carries := strings.HasPrefix(name, "host") || strings.HasPrefix(name, "cri.") ||
			strings.HasPrefix(name, "cmd/") || strings.HasPrefix(frame.Function, "main.")
		if ours && !carries {
			return closure.ReplaceAllString(name, "")
		}
		if !more {
			return "start" // cmd itself: while the program starts
		}
	}
}
