package node

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/notify"
	"github.com/bowline-k8s/bowline/provider"
)

const (
	// imagesPeriod is how often images are listed in any case: others may pull and remove images on
	// the host.
	imagesPeriod = 5 * time.Minute
	// imagesPause batches the pulls of pods that start together.
	imagesPause = 10 * time.Second
)

// imageEvents detects pulls by the events that are recorded for them.
type imageEvents struct {
	podEvents
	pulled notify.Signal
}

func (e imageEvents) Event(p *v1.Pod, container, kind, reason, message string) {
	e.podEvents.Event(p, container, kind, reason, message)
	if reason == "Pulled" {
		e.pulled.Send()
	}
}

// watchImages keeps node.status.images up to date, by which the scheduler prefers nodes that have
// an image. most is as in provider.NodeImages.
func watchImages(ctx context.Context, pulled notify.Signal, most int,
	list func(context.Context) ([]*runtimeapi.Image, error), set func([]v1.ContainerImage)) error {
	for {
		images, err := list(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil: // the Ready condition reports a runtime that is away
			klog.FromContext(ctx).V(2).Info("Failed to list the runtime's images", "err", err)
		default:
			set(provider.NodeImages(images, most))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(imagesPeriod):
			continue
		case <-pulled:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(imagesPause):
		}
		select { // the next list includes all pulls until now
		case <-pulled:
		default:
		}
	}
}
