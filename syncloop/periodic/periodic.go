// Package periodic runs the periodic work of a node: one turn each period, repeated after an error.
package periodic

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/logonce"
)

// Run calls turn once each period until ctx ends; the first call is one period from now. It logs a
// turn's error with the name of the operation, once for as long as the error stays the same.
func Run(ctx context.Context, period time.Duration, operation string, turn func(context.Context) error) error {
	tick := time.NewTicker(period)
	defer tick.Stop()
	var logged logonce.Failure
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		err := turn(ctx)
		switch {
		case err == nil || ctx.Err() != nil:
			logged = logonce.Failure{}
		case logged.Changed(err):
			klog.FromContext(ctx).Error(err, "Failed, will retry", "operation", operation)
		}
	}
}
