package node

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/cri/shims"
	"github.com/bowline-k8s/bowline/notify"
)

// orphanedShims ends the shims that containerd forgot when a start was interrupted. It looks for them
// each time the runtime's socket is dialled, because the previous connection was lost, and when GC
// removes remnants.
type orphanedShims struct {
	due    notify.Signal
	reaper *shims.Reaper
}

const (
	// orphanPause is the refresh interval while shims come and go.
	orphanPause = 5 * time.Second
	// orphanLooks is the number of looks after one signal: containerd takes up to a minute to clean up
	// after an interrupted call.
	orphanLooks = 15
)

func (s orphanedShims) run(ctx context.Context) error {
	log := klog.FromContext(ctx)
	looks := 0
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.due:
			looks = orphanLooks
		case <-again:
		}
		again = nil
		result, err := s.reaper.Reap(ctx)
		if len(result.Ended) > 0 {
			log.Info("Stopped shims that the runtime had lost track of", "ids", result.Ended)
		}
		if err != nil && ctx.Err() == nil {
			log.V(1).Info("Failed to check all shims", "err", err)
		}
		if looks--; looks > 0 && (err != nil || result.Starting > 0) {
			again = time.After(orphanPause)
		}
	}
}
