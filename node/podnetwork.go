package node

import (
	"context"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
)

// podNetwork passes the node's podCIDR to the runtime. The cluster assigns it some time after the
// node has registered.
type podNetwork chan string // holds the newest only

// networkRetry is the pause after the runtime refused a network.
const networkRetry = 5 * time.Second

// offer is called by the Node informer, from one goroutine, and never blocks.
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

// deliver passes each new network to the runtime and retries until the runtime accepts it.
func (c podNetwork) deliver(ctx context.Context, update func(context.Context, string) error) error {
	log := klog.FromContext(ctx)
	taken, wanted, logged := "", "", ""
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
			taken, logged = wanted, ""
			log.Info("Set the runtime's pod CIDR", "podCIDR", wanted)
		default:
			if logged != wanted {
				logged = wanted
				log.Error(err, "Failed to set the runtime's pod CIDR, will retry", "podCIDR", wanted)
			}
			retry = time.After(networkRetry)
		}
	}
}
