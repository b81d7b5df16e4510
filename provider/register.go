package provider

import (
	"context"
	"fmt"
	"time"

	vknode "github.com/virtual-kubelet/virtual-kubelet/node"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
)

// pingTimeout bounds a ping that returns at once; without a timeout virtual-kubelet waits forever.
const pingTimeout = 10 * time.Second

// keepRegistered runs one NodeController after another, because a controller that cannot register
// (API server down, credential not yet valid) gives up and never retries.
func (n *Node) keepRegistered(ctx context.Context) error {
	first := wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Steps: 10, Cap: 7 * time.Second}
	for retry := first; ; {
		began := time.Now()
		err := n.runController(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("node controller of %q ended by itself", n.cfg.Registration.NodeName)
		}
		n.registerLog.note(ctx, err)
		if time.Since(began) > time.Minute {
			retry = first
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retry.Step()):
		}
	}
}

func (n *Node) runController(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer n.status.senders.Wait()
	defer cancel()

	n.startup.asked(time.Now())
	if v, err := n.cfg.Client.Discovery().ServerVersion(); err == nil {
		n.status.setVersion(ReportedVersion(v.GitVersion))
	} else {
		return fmt.Errorf("ask the API server for its version: %w", err)
	}
	nodes := n.nodes
	leases := leaseClient{n.cfg.LeaseClient.CoordinationV1().Leases(v1.NamespaceNodeLease), n.leaseLog, &n.standby}
	controller, err := vknode.NewNodeController(n.status, n.status.node(time.Now(), false), nodes,
		vknode.WithNodeEnableLeaseV1(leases, int32(n.cfg.LeaseDuration/time.Second)),
		vknode.WithNodeStatusUpdateInterval(n.cfg.StatusInterval),
		vknode.WithNodePingTimeout(pingTimeout),
		vknode.WithNodeStatusUpdateErrorHandler(n.reregister),
	)
	if err != nil {
		return fmt.Errorf("node controller: %w", err)
	}
	done := make(chan struct{})
	defer func() { <-done }()
	go func() {
		defer close(done)
		select {
		case <-controller.Ready():
			n.registerLog.note(ctx, nil)
			n.once.Do(func() { close(n.registered) })
			n.status.changed.Send() // an existing object has the status of an earlier run
		case <-controller.Done():
		}
	}()
	return controller.Run(ctx)
}

// reregister recreates a deleted node. virtual-kubelet retries after other errors.
func (n *Node) reregister(ctx context.Context, err error) error {
	if !errors.IsNotFound(err) || ctx.Err() != nil {
		return err
	}
	klog.FromContext(ctx).Info("Registering the deleted node again", "node", n.cfg.Registration.NodeName)
	if _, err := n.nodes.Create(ctx, n.status.node(time.Now(), false), metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("register node %q again: %w", n.cfg.Registration.NodeName, err)
	}
	return nil
}
