package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/bowline-k8s/bowline/test/labtest"
)

// theHost is the lab host that every system manages.
const theHost = "host1"

// The container runtimes, under the names that the lab uses for them and for their processes.
const (
	runtimeContainerd = "containerd"
	runtimeCRIO       = "crio"
)

// lab is a lab with one host.
type lab struct {
	*labtest.Lab
	owned   bool   // this program removes it at the end
	runtime string // of its host
}

func openLab(ctx context.Context, dir, runtime string) (l *lab, err error) {
	l = &lab{owned: dir == "", runtime: runtime}
	if l.owned {
		if dir, err = os.MkdirTemp("", "bowline-bench-"); err != nil {
			return nil, err
		}
	}
	if l.Lab, err = labtest.Start(ctx, dir, 1, "--runtime", runtime); err != nil {
		return nil, err
	}
	if !l.owned {
		l.Stay()
	}
	// The cluster's DNS would add two pods to whichever node comes first.
	if err := l.Empty(ctx); err != nil {
		return nil, errors.Join(err, l.close())
	}
	return l, nil
}

// close removes the lab if this program started it.
func (l *lab) close() error {
	if !l.owned {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return errors.Join(l.Down(ctx), os.RemoveAll(l.Dir))
}

// do runs one command of the lab.
func (l *lab) do(ctx context.Context, args ...string) error {
	if out, err := l.Command(ctx, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("bowline-lab %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

func (l *lab) host() *labtest.Host { return l.Host(theHost) }

// pid returns the pid of a process of the host: its runtime or "kubelet".
func (l *lab) pid(ctx context.Context, component string) (int, error) {
	if err := l.Refresh(ctx); err != nil {
		return 0, err
	}
	for _, p := range l.host().Processes {
		if p.Name == theHost+"-"+component && p.PID > 0 {
			return p.PID, nil
		}
	}
	return 0, fmt.Errorf("%s has no running %s", theHost, component)
}
