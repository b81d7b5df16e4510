package provider

import (
	"context"
	"sync"

	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/logonce"
)

// stateLog logs when something starts to fail, fails with another error, or works again, and
// nothing in between.
type stateLog struct {
	what  string // "report the node's status"
	again func() // called when it works again; may be nil, must not block

	mu   sync.Mutex
	last logonce.Failure
}

func (s *stateLog) note(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return // we are being stopped
	}
	s.mu.Lock()
	changed := s.last.Changed(err)
	s.mu.Unlock()
	switch {
	case !changed:
	case err != nil:
		klog.FromContext(ctx).Error(err, "Failed, will retry", hint.With(err, "operation", s.what)...)
	default:
		klog.FromContext(ctx).Info("Recovered", "operation", s.what)
		if s.again != nil {
			s.again()
		}
	}
}
