package main

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/bowline-k8s/bowline/host"
)

// fence stands before every call to a far machine and its runtime. It is shut from
// the moment that the machine's lock may be another's until it is held again: what
// is asked for meanwhile has certainly not happened, as over a link that is down.
type fence struct {
	next host.Hook
	shut atomic.Bool
}

func newFence(next host.Hook) *fence { return &fence{next: next} }

type passKey struct{}

// pass lets the calls of ctx through a shut fence: those that take the lock.
func pass(ctx context.Context) context.Context { return context.WithValue(ctx, passKey{}, true) }

func (f *fence) hook(ctx context.Context, label string, call func(context.Context) error) error {
	if f.shut.Load() && ctx.Value(passKey{}) == nil {
		return fmt.Errorf("%s: the lock of the machine went with the link and is not held again yet: %w", label, host.ErrUnreachable)
	}
	return f.next.Do(ctx, label, call)
}
