//go:build faults

package main

import (
	"context"
	"fmt"
	"os"
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
//	label=cri/CreateContainer,nth=1,point=before,action=kill
//
// point is before (the request is not sent), withheld (it is carried out, its
// reply never seen) or after (the reply is seen, and shortly after it the fault
// strikes; with kill only). action is kill (SIGKILL of this process) or error (a
// transport error). BOWLINE_FAULT_LOG names a file to which the label of every
// call is appended, so that a call nobody thought of is found.
type fault struct {
	label, point, action string
	nth                  int

	mu   sync.Mutex
	seen int
	log  *os.File
}

func faultHook() (host.Hook, error) {
	f := &fault{nth: 1}
	if path := os.Getenv("BOWLINE_FAULT_LOG"); path != "" {
		log, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return nil, err
		}
		f.log = log
	}
	for _, field := range strings.FieldsFunc(os.Getenv("BOWLINE_FAULT"), func(r rune) bool { return r == ',' }) {
		key, value, _ := strings.Cut(field, "=")
		switch key {
		case "label":
			f.label = value
		case "point":
			f.point = value
		case "action":
			f.action = value
		case "nth":
			n, err := strconv.Atoi(value)
			if err != nil {
				return nil, fmt.Errorf("BOWLINE_FAULT: nth=%q is no number", value)
			}
			f.nth = n
		default:
			return nil, fmt.Errorf("BOWLINE_FAULT: unknown field %q", key)
		}
	}
	return f.hook, nil
}

func (f *fault) hook(ctx context.Context, label string, call func(context.Context) error) error {
	if !f.strikes(label) {
		return call(ctx)
	}
	switch f.point {
	case "before":
		return f.act(label)
	case "withheld":
		_ = call(ctx)
		return f.act(label)
	default: // after
		err := call(ctx)
		// Long enough for the reply to be used, short enough that the next step
		// is under way.
		time.AfterFunc(20*time.Millisecond, func() { _ = f.act(label) })
		return err
	}
}

func (f *fault) strikes(label string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.log != nil {
		fmt.Fprintln(f.log, label)
	}
	if label != f.label {
		return false
	}
	f.seen++
	return f.seen == f.nth
}

func (f *fault) act(label string) error {
	if f.log != nil {
		fmt.Fprintln(f.log, "FAULT "+f.point+" "+f.action+" "+label)
	}
	if f.action == "kill" {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // no step further
	}
	if strings.HasPrefix(label, "host/") {
		return fmt.Errorf("injected at %s: %w", label, host.ErrUnreachable)
	}
	return grpcstatus.Error(codes.Unavailable, "injected at "+label)
}
