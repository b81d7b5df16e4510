package store

import (
	"context"
	"errors"

	contentapi "github.com/containerd/containerd/api/services/content/v1"

	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/linkpull/oci"
)

// errProtocol means that containerd acknowledged what was not sent, or committed something else.
var errProtocol = errors.New("containerd answers a write with something else")

// receive is the goroutine that takes the acknowledgements of a stream until the commit or an error, which
// also ends the sending side.
func (u *upload) receive(ctx context.Context, cancel context.CancelCauseFunc, c *call) {
	defer budget.From(ctx).Recover("read the acknowledgements of a blob")
	err := budget.ErrPanicked // stays if a panic is recovered
	defer func() {
		c.received <- err
		if err != nil {
			cancel(err)
		}
	}()
	for committed := false; !committed; {
		if committed, err = u.acknowledge(c); err != nil {
			return
		}
	}
}

// acknowledge takes one answer, and reports whether it is that to the commit.
func (u *upload) acknowledge(c *call) (committed bool, err error) {
	r, err := c.Recv()
	if err != nil {
		return false, err
	}
	select {
	case <-c.waiting:
	default:
		return false, errProtocol
	}
	switch {
	case r.Action == contentapi.WriteAction_COMMIT && oci.Digest(r.Digest) == u.blob.Digest:
		return true, nil
	case r.Action != contentapi.WriteAction_WRITE || r.Offset <= u.acked || r.Offset > u.blob.Size:
		return false, errProtocol
	}
	c.watch.Reset(ackTime)
	u.reach(r.Offset)
	return false, nil
}
