package syncloop

import (
	"context"
	"sync"

	"github.com/bowline-k8s/bowline/host/budget"
)

// resolvReads reads the host's resolv.conf for new sandboxes. Sandboxes that are made at the same
// time share a read: on a remote host it is a round trip and starts programs. A caller that comes
// during a read gets the next one, so the content is never older than the call.
type resolvReads struct {
	read func(context.Context) ([]byte, error)

	mu      sync.Mutex
	running bool
	next    *resolvRead // begins when the running one ends; nil without a caller
}

type resolvRead struct {
	ctx     context.Context // of the first caller, but it ends after the last one has given up
	cancel  context.CancelFunc
	callers int // that have not given up; guarded by resolvReads.mu
	done    chan struct{}
	data    []byte
	err     error
}

// get returns the content of a read that began after the call.
func (r *resolvReads) get(ctx context.Context) ([]byte, error) {
	mine := r.join(ctx)
	select {
	case <-mine.done:
		return mine.data, mine.err
	case <-ctx.Done():
		r.leave(mine)
		return nil, context.Cause(ctx)
	}
}

func (r *resolvReads) join(ctx context.Context) *resolvRead {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next == nil {
		r.next = &resolvRead{done: make(chan struct{}), err: budget.ErrPanicked}
		r.next.ctx, r.next.cancel = context.WithCancel(context.WithoutCancel(ctx))
	}
	mine := r.next
	mine.callers++
	r.begin()
	return mine
}

// leave gives up a read. Without callers it does not begin, or is cut short: then leave waits for
// its end, so that no read outlives its callers.
func (r *resolvReads) leave(mine *resolvRead) {
	r.mu.Lock()
	mine.callers--
	last, waits := mine.callers == 0, r.next == mine
	if last && waits {
		r.next = nil
	}
	r.mu.Unlock()
	if last {
		mine.cancel()
		if !waits {
			<-mine.done
		}
	}
}

// begin starts the next read unless one runs. The caller holds mu.
func (r *resolvReads) begin() {
	if r.running || r.next == nil {
		return
	}
	now := r.next
	r.running, r.next = true, nil
	go func() {
		defer budget.From(now.ctx).Recover("read the host's resolv.conf")
		defer func() {
			now.cancel()
			r.mu.Lock()
			defer r.mu.Unlock()
			close(now.done)
			r.running = false
			r.begin()
		}()
		now.data, now.err = r.read(now.ctx)
	}()
}
