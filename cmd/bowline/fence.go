package main

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/ssh/link"
)

// fence stands before every call to a far machine and its runtime. It is shut from
// the moment that the machine's lock may be another's until it is held again: what
// is asked for meanwhile has certainly not happened, as over a link that is down.
//
// The lock and the calls share the fate of one connection: who takes the lock from us
// ends the connection that we held it by. So an open fence lets calls through by that
// connection only, however long they have waited for one.
type fence struct {
	next       host.Hook
	connection func() int // the number of the link's connection, as of link.State
	shut       atomic.Bool
	held       atomic.Int64 // the connection that the lock is held by; 0 before the first
}

func newFence(next host.Hook, connection func() int) *fence {
	return &fence{next: next, connection: connection}
}

// open lets calls through by a connection, which holds the lock; false if that is over.
func (f *fence) open(connection int) bool {
	if f.connection() != connection {
		return false
	}
	f.held.Store(int64(connection))
	f.shut.Store(false)
	return true
}

type passKey struct{}

// pass lets the calls of ctx through a shut fence: those that take the lock.
func pass(ctx context.Context) context.Context { return context.WithValue(ctx, passKey{}, true) }

func (f *fence) hook(ctx context.Context, label string, call func(context.Context) error) error {
	if ctx.Value(passKey{}) != nil {
		return f.next.Do(ctx, label, call)
	}
	if f.shut.Load() {
		return fmt.Errorf("%s: the lock of the machine went with the link and is not held again yet: %w", label, host.ErrUnreachable)
	}
	held := int(f.held.Load())
	return f.next.Do(ctx, label, func(ctx context.Context) error { return call(link.Only(ctx, held)) })
}
