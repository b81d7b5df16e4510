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
	// failed and worked log. The messages are theirs, so that each names what fails.
	failed func(klog.Logger, error)
	worked func(klog.Logger)
	again  func() // called when it works again; may be nil, must not block

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
		s.failed(klog.FromContext(ctx), err)
	default:
		s.worked(klog.FromContext(ctx))
		if s.again != nil {
			s.again()
		}
	}
}

func registrationLog() *stateLog {
	return &stateLog{
		failed: func(log klog.Logger, err error) {
			log.Error(err, "Failed to register the node, will retry", hint.With(err)...)
		},
		worked: func(log klog.Logger) { log.Info("Registered the node after failures") },
	}
}

func renewalLog() *stateLog {
	return &stateLog{
		failed: func(log klog.Logger, err error) {
			log.Error(err, "Failed to renew the node's lease, will retry", hint.With(err)...)
		},
		worked: func(log klog.Logger) { log.Info("Renewed the node's lease after failures") },
	}
}

func reportLog() *stateLog {
	return &stateLog{
		failed: func(log klog.Logger, err error) {
			log.Error(err, "Failed to report the node's status, will retry", hint.With(err)...)
		},
		worked: func(log klog.Logger) { log.Info("Reported the node's status after failures") },
	}
}
