package syncloop

import (
	"context"
	"errors"
	"time"
)

// settleTime is how long the start of a container may take after the process was asked to stop or
// to hand over the host. It is shorter than the time that the chart and systemd give a process to stop.
const settleTime = 10 * time.Second

// errAborted is the cause of the context of an operation that its worker has cancelled.
var errAborted = errors.New("the pod's worker cancelled the operation")

// settled returns a context for a call that must not be cut off when the process stops. containerd
// aborts a start whose caller goes away, and the container fails with StartError, which ends a pod
// that may not restart. Once ctx has ended, the call has settleTime to finish; until then this
// process keeps the host's lock. If the worker has cancelled the operation, the call ends at once.
func settled(ctx context.Context) (context.Context, context.CancelFunc) {
	call, end := context.WithCancelCause(context.WithoutCancel(ctx))
	finished := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		if cause := context.Cause(ctx); errors.Is(cause, errAborted) {
			end(cause)
			return
		}
		late := time.NewTimer(settleTime)
		defer late.Stop()
		select {
		case <-late.C:
			end(context.DeadlineExceeded)
		case <-finished:
		}
	})
	return call, func() {
		stop()
		close(finished)
		end(context.Canceled)
	}
}
