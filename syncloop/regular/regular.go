// Package regular is the loop that regular work of a node has in common: a turn each
// period, which fails now and then and is tried again.
package regular

import (
	"context"
	"time"

	"k8s.io/klog/v2"
)

// Run has turn done once each period until ctx ends, the first time a period from now. A
// turn's error is logged as complaint, once for as long as it stays the same.
func Run(ctx context.Context, period time.Duration, complaint string, turn func(context.Context) error) error {
	tick := time.NewTicker(period)
	defer tick.Stop()
	failing := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		err := turn(ctx)
		switch {
		case err == nil || ctx.Err() != nil:
			failing = ""
		case err.Error() != failing:
			failing = err.Error()
			klog.FromContext(ctx).Error(err, complaint+", will try again")
		}
	}
}
