package nodecert

import (
	"context"
	"crypto/tls"
	"sync/atomic"

	"k8s.io/client-go/util/certificate"
	"k8s.io/klog/v2"
)

// quiet returns a context with a logger for a manager, and without an end: a manager ends with Run,
// and one that was never run has nothing to end. While hush is set its errors are not logged,
// because the caller of Wait reports them once.
func quiet(ctx context.Context, hush *atomic.Bool) *context.Context {
	log := klog.FromContext(ctx)
	if sink := log.GetSink(); sink != nil {
		log = log.WithSink(hushed{sink, hush}) // klog.New would change the sink, which others use
	}
	ctx = klog.NewContext(context.WithoutCancel(ctx), log)
	return &ctx
}

type hushed struct {
	klog.LogSink
	hush *atomic.Bool
}

func (h hushed) Error(err error, msg string, keysAndValues ...any) {
	if !h.hush.Load() {
		h.LogSink.Error(err, msg, keysAndValues...)
	}
}

func (h hushed) WithValues(keysAndValues ...any) klog.LogSink {
	return hushed{h.LogSink.WithValues(keysAndValues...), h.hush}
}

func (h hushed) WithName(name string) klog.LogSink {
	return hushed{h.LogSink.WithName(name), h.hush}
}

// store logs each new certificate.
type store struct {
	certificate.FileStore
	log  klog.Logger
	what string
}

func (s store) Update(cert, key []byte) (*tls.Certificate, error) {
	out, err := s.FileStore.Update(cert, key)
	if err == nil {
		s.log.Info("Received a signed certificate", "usage", s.what, "until", out.Leaf.NotAfter)
	}
	return out, err
}
