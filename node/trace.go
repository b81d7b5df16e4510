package node

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/host"
)

// traceLevel is the log level that shows every call to the host and its runtime.
const traceLevel = 5

// traced logs each call of next and how long it took, if the log level is high enough.
func traced(ctx context.Context, next host.Hook) host.Hook {
	log := klog.FromContext(ctx).V(traceLevel)
	if !log.Enabled() {
		return next
	}
	return func(ctx context.Context, label string, call func(context.Context) error) error {
		began := time.Now()
		err := next.Do(ctx, label, call)
		log.Info("Called the host", "label", label, "took", time.Since(began).Round(10*time.Microsecond), "err", err)
		return err
	}
}
