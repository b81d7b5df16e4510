package main

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/provider"
)

const (
	// imagesPeriod is how often the node's images are listed in any case: others
	// may pull and remove on the machine.
	imagesPeriod = 5 * time.Minute
	// imagesPause gathers the pulls of pods that start together.
	imagesPause = 10 * time.Second
)

// imageEvents hears of pulls by the events that are recorded of them.
type imageEvents struct {
	podEvents
	pulled nudge
}

func (e imageEvents) Event(p *v1.Pod, container, kind, reason, message string) {
	e.podEvents.Event(p, container, kind, reason, message)
	if reason == "Pulled" {
		e.pulled.poke()
	}
}

// watchImages keeps node.status.images, by which the scheduler prefers nodes that
// have an image.
func watchImages(ctx context.Context, pulled nudge,
	list func(context.Context) ([]*runtimeapi.Image, error), set func([]v1.ContainerImage)) error {
	for {
		images, err := list(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil: // the node's condition tells of a runtime that is away
			klog.FromContext(ctx).V(2).Info("The runtime does not list its images", "err", err)
		default:
			set(provider.NodeImages(images))
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
		select { // pulls until now are in the list that follows
		case <-pulled:
		default:
		}
	}
}
