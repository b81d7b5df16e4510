package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/config"
)

// Pauses before a host that could not be driven is tried again.
const (
	retryFirst = 5 * time.Second
	retryLast  = time.Minute
)

// fleet is the hosts of one process. One that fails does not take the others
// down; when none is driven the process has nothing left to lose by ending, and
// ending tells whoever started it.
type fleet struct {
	drive func(context.Context, *config.Host) error
	end   context.CancelFunc

	mu     sync.Mutex
	driven int // hosts that are driven, or being tried
	errs   []error
}

// driveAll drives every host until ctx ends, which is no error, or none is left.
func driveAll(ctx context.Context, hosts []config.Host, drive func(context.Context, *config.Host) error) error {
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	f := &fleet{drive: drive, end: cancel, driven: len(hosts), errs: make([]error, len(hosts))}
	var all sync.WaitGroup
	for i := range hosts {
		all.Go(func() {
			cfg := &hosts[i]
			logger := klog.FromContext(inner).WithValues("host", cfg.Name)
			f.keep(klog.NewContext(inner, logger), i, cfg)
		})
	}
	all.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return errors.Join(f.errs...)
}

// keep drives one host, again after each failure.
func (f *fleet) keep(ctx context.Context, i int, cfg *config.Host) {
	pause := retryFirst
	for {
		began := time.Now()
		err := f.drive(ctx, cfg)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errors.New("it ended by itself")
		}
		if !f.failed(i, fmt.Errorf("host %s: %w", cfg.Name, err)) {
			return
		}
		if time.Since(began) > retryLast {
			pause = retryFirst
		}
		klog.FromContext(ctx).Info("The host cannot be driven; it is tried again", "err", err, "in", pause)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, retryLast)
		f.again()
	}
}

// failed notes a failure, and says whether another host is still driven.
func (f *fleet) failed(i int, err error) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.errs[i] = err
	if f.driven--; f.driven == 0 {
		f.end()
	}
	return f.driven > 0
}

func (f *fleet) again() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.driven++
}
