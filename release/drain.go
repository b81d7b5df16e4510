package release

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/bowline-k8s/bowline/cluster"
	"github.com/bowline-k8s/bowline/drain"
	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/kubeclient"
	"github.com/bowline-k8s/bowline/provider"
	"github.com/bowline-k8s/bowline/syncloop/owner"
)

// draining drains a node for a release. Bowline does not manage the host meanwhile, so only the
// release stops its pods.
type draining struct {
	node drain.Node
	step func(Step)
}

// drainPause is the time between two tries of refused evictions.
const drainPause = 2 * time.Second

// newDraining finds the node in the cluster. It returns nil if the node does not exist or no
// kubeconfig is given. name is the node of a host that has no owner any more.
func newDraining(ctx context.Context, kubeconfig string, file *owner.Record, id owner.Identity, running []owner.Sandbox, name string, step func(Step)) (*draining, error) {
	if kubeconfig == "" {
		return nil, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	config.Timeout = 30 * time.Second
	client, err := kubeclient.New(kubeclient.Configure(config))
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	if id != noOwner {
		name = id.NodeName
	}
	w, node, err := cluster.Witnesses(ctx, client, config, name)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	ours := true // a host without an owner may be any node of that name
	if id == noOwner {
		id = owner.Identity{ClusterUID: w.Service, NodeName: name}
	} else if ours, err = (cluster.Seen{Client: client, Witnesses: w}).Has(ctx, file, id, running); err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	if !ours {
		return nil, hint.Add(fmt.Errorf("kubeconfig %s is for %s, but the host is %s", kubeconfig, cluster.Name(w), id), "use the kubeconfig of that cluster")
	}
	if node == nil {
		step(Step{What: NodeMissing, Object: id.NodeName})
		return nil, nil
	}
	if provider.CheckOwn(node) != nil {
		step(Step{What: NodeForeign, Object: id.NodeName})
		return nil, nil
	}
	return &draining{drain.Node{Client: client, Name: id.NodeName}, step}, nil
}

// evict cordons the node and evicts its pods, as their disruption budgets allow. It returns once
// every deletion is accepted.
func (d *draining) evict(ctx context.Context, limit time.Duration) error {
	if err := d.node.Cordon(ctx); err != nil {
		return err
	}
	d.step(Step{What: Cordoned, Object: d.node.Name})
	enough := time.After(limit)
	for {
		refused, err := d.round(ctx)
		if err != nil || refused == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-enough:
			return fmt.Errorf("not drained within %s, and nothing was stopped: %w", limit, refused)
		case <-time.After(drainPause):
		}
	}
}

// round tries to evict every pod that is not being deleted yet. refused is a refusal, if there was
// one.
func (d *draining) round(ctx context.Context) (refused, err error) {
	pods, err := d.node.Pods(ctx)
	if err != nil {
		return nil, err
	}
	round, err := d.node.EvictAll(ctx, pods)
	for _, name := range round.Evicted {
		d.step(Step{What: Evicted, Object: name})
	}
	if n := len(round.Refused); n > 0 {
		last := round.Refused[n-1]
		refused = fmt.Errorf("pod %s: %w", last.Pod, last.Err)
	}
	return refused, err
}

// forget deletes the node and its pods from the cluster once nothing of them runs.
func (d *draining) forget(ctx context.Context) error {
	pods, err := d.node.Pods(ctx)
	if err != nil {
		return err
	}
	if err := d.node.Delete(ctx, pods); err != nil {
		return err
	}
	d.step(Step{What: NodeDeleted, Object: d.node.Name})
	return nil
}
