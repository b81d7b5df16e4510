package main

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/host"
)

// traceLevel of the log shows every call to the machine and to its runtime.
const traceLevel = 5

// traced logs each call that next makes, with what it took, where the log is that
// detailed.
func traced(ctx context.Context, next host.Hook) host.Hook {
	log := klog.FromContext(ctx).V(traceLevel)
	if !log.Enabled() {
		return next
	}
	return func(ctx context.Context, label string, call func(context.Context) error) error {
		began := time.Now()
		err := next.Do(ctx, label, call)
		log.Info("Call", "label", label, "took", time.Since(began).Round(10*time.Microsecond), "err", err)
		return err
	}
}
