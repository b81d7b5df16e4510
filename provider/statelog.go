package provider

import (
	"context"
	"sync"

	"k8s.io/klog/v2"
)

// stateLog logs when something starts to fail, fails with another error, or works again, and
// nothing in between.
type stateLog struct {
	what  string // "report the node's status"
	again func() // called when it works again; may be nil, must not block

	mu   sync.Mutex
	last string
}

func (s *stateLog) note(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return // we are being stopped
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	s.mu.Lock()
	before := s.last
	s.last = text
	s.mu.Unlock()
	switch {
	case before == text:
	case err != nil:
		klog.FromContext(ctx).Error(err, "Cannot "+s.what+"; retrying")
	default:
		klog.FromContext(ctx).Info("Can " + s.what + " again")
		if s.again != nil {
			s.again()
		}
	}
}
