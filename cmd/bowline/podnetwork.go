package main

import (
	"context"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
)

// podNetwork carries the node's pod network from the cluster, which gives it
// some time after the node has registered, to the runtime.
type podNetwork chan string // of one: the newest

// networkRetry is how long a runtime that did not take the network is left alone.
const networkRetry = 5 * time.Second

// offer is called by the node's informer, from one goroutine, and never blocks.
func (c podNetwork) offer(node *v1.Node) {
	if node.Spec.PodCIDR == "" {
		return
	}
	cidr := strings.Join(node.Spec.PodCIDRs, ",")
	if cidr == "" {
		cidr = node.Spec.PodCIDR
	}
	select {
	case <-c:
	default:
	}
	c <- cidr
}

// deliver hands each new network to the runtime, until it takes it or ctx ends.
func (c podNetwork) deliver(ctx context.Context, update func(context.Context, string) error) error {
	log := klog.FromContext(ctx)
	taken, wanted, told := "", "", ""
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case wanted = <-c:
		case <-retry:
		}
		retry = nil
		if wanted == taken {
			continue
		}
		err := update(ctx, wanted)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			taken, told = wanted, ""
			log.Info("The runtime has the node's pod network", "podCIDR", wanted)
		default:
			if told != wanted {
				told = wanted
				log.Info("The runtime does not take the node's pod network yet", "podCIDR", wanted, "err", err)
			}
			retry = time.After(networkRetry)
		}
	}
}
