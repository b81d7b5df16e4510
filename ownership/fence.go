package ownership

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/ssh/link"
)

// Fence blocks every call to a remote host and its runtime while another process may hold the
// host's lock. A blocked call has certainly not happened, as over a link that is down.
//
// The lock and the calls share one connection: a process that takes the lock ends the connection
// that holds it. So an open fence lets calls through on that connection only, however long they
// have waited for it.
type Fence struct {
	next       host.Hook
	connection func() int // number of the link's connection, see link.State
	shut       atomic.Bool
	held       atomic.Int64 // the connection that holds the lock; 0 before the first
}

// NewFence returns an open fence around next. connection returns the number of the link's
// connection.
func NewFence(next host.Hook, connection func() int) *Fence {
	return &Fence{next: next, connection: connection}
}

// open lets calls through on connection, which holds the lock. It returns false if that connection
// has ended.
func (f *Fence) open(connection int) bool {
	if f.connection() != connection {
		return false
	}
	f.held.Store(int64(connection))
	f.shut.Store(false)
	return true
}

// Close stops every call.
func (f *Fence) Close() { f.shut.Store(true) }

type bypassKey struct{}

// WithFenceBypass lets the calls of ctx through a shut fence. Only calls that take the lock use it.
func WithFenceBypass(ctx context.Context) context.Context {
	return context.WithValue(ctx, bypassKey{}, true)
}

// BypassesFence reports whether the calls of ctx go through a shut fence.
func BypassesFence(ctx context.Context) bool { return ctx.Value(bypassKey{}) != nil }

// Hook is the fence as a host.Hook.
func (f *Fence) Hook(ctx context.Context, label string, call func(context.Context) error) error {
	if BypassesFence(ctx) {
		return f.next.Do(ctx, label, call)
	}
	if f.shut.Load() {
		return fmt.Errorf("%s: the host's lock was lost together with the link and is not held again yet: %w", label, host.ErrUnreachable)
	}
	held := int(f.held.Load())
	return f.next.Do(ctx, label, func(ctx context.Context) error { return call(link.Only(ctx, held)) })
}
