// Package periodic runs the periodic work of a node: one turn each period, repeated after an error.
package periodic

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/logonce"
)

// Run calls turn once each period until ctx ends; the first call is one period from now. It has a
// turn's error logged by failed, once for as long as the error stays the same.
func Run(ctx context.Context, period time.Duration, turn func(context.Context) error, failed func(klog.Logger, error)) error {
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
			failed(klog.FromContext(ctx), err)
		}
	}
}
