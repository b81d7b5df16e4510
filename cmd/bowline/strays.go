package main

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/cri/shims"
)

// strayShims ends the shims that containerd forgot when a start was cut off: each
// time that the runtime's socket has been dialled, as the connection before it has
// gone, and when the last of a pod goes from the machine.
type strayShims struct {
	due    nudge
	reaper *shims.Reaper
}

const (
	// strayPause is the time between two looks while shims come and go.
	strayPause = 5 * time.Second
	// strayLooks after one word: containerd takes up to a minute over what a call
	// that was cut off has left.
	strayLooks = 15
)

func (s strayShims) run(ctx context.Context) error {
	log := klog.FromContext(ctx)
	looks := 0
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.due:
			looks = strayLooks
		case <-again:
		}
		again = nil
		result, err := s.reaper.Reap(ctx)
		if len(result.Ended) > 0 {
			log.Info("Ended shims that the runtime had forgotten", "ids", result.Ended)
		}
		if err != nil && ctx.Err() == nil {
			log.V(1).Info("Not all shims could be looked at", "err", err)
		}
		if looks--; looks > 0 && (err != nil || result.Starting > 0) {
			again = time.After(strayPause)
		}
	}
}
