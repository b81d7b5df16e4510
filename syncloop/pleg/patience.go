package pleg

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/pod"
)

// patience is how long a relist, or the handling of hints, waits for the look at one pod. A status
// call may hang until its deadline, for example on a stuck shim, while the runtime answers all
// other calls.
const patience = 2 * time.Second

// lookPatiently looks at one pod for a relist. A look that takes too long makes that pod's
// observation stale and continues in the background; no relist begins another look at the pod until
// it has ended. lookPatiently reports whether the look succeeded. An error concerns every pod.
func (g *Generator) lookPatiently(ctx context.Context, l *listed, old pod.Observed, seq uint64, at time.Time) (bool, error) {
	type result struct {
		alone bool
		err   error
	}
	r := result{err: budget.ErrPanicked}
	ended, begun := g.within(l.ref.UID, func() {
		err := g.look(ctx, l, old, prefetched{}, seq, at)
		if err == nil {
			r.err = nil
			return
		}
		r.alone, r.err = g.lookFailed(ctx, l.ref, seq, err)
	})
	switch {
	case !begun:
		return false, nil
	case !ended:
		g.failedOne(ctx, l.ref, seq, fmt.Errorf("the runtime has not reported the pod's state within %v", patience))
		return false, nil
	case r.alone:
		return false, nil
	}
	return r.err == nil, r.err
}

// within runs f in a goroutine and waits for it, at most for patience. The caller may read what f
// writes only if ended is true. A pod has one such f at a time: begun is false if an earlier one is
// still running.
func (g *Generator) within(uid types.UID, f func()) (ended, begun bool) {
	g.mu.Lock()
	_, busy := g.looking[uid]
	if !busy {
		g.looking[uid] = struct{}{}
	}
	g.mu.Unlock()
	if busy {
		return false, false
	}
	done := make(chan struct{})
	g.cfg.Budget.Go("look at a pod", func() {
		defer close(done)
		defer func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			delete(g.looking, uid)
		}()
		f()
	})
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-done:
		return true, true
	case <-timer.C:
		return false, true
	}
}

// lookFailed handles an error of a look: it marks that pod alone stale, or everything. A call
// without an answer concerns only this pod if the runtime still answers the list calls.
func (g *Generator) lookFailed(ctx context.Context, ref pod.Ref, seq uint64, err error) (alone bool, _ error) {
	var exceeded *budget.ExceededError
	if errors.As(err, &exceeded) {
		return false, g.failed(ctx, err)
	}
	if ctx.Err() == nil && g.cfg.IsTransport(err) {
		if _, all := g.list(ctx, ref.UID); all != nil {
			return false, g.failed(ctx, all)
		}
	}
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	g.failedOne(ctx, ref, seq, err)
	return true, err
}
