package node

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/cluster"
	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/provider"
	"github.com/bowline-k8s/bowline/readiness"
)

// quarantine reports to the cluster, once, that a host is quarantined.
type quarantine struct {
	cfg      *config.Host
	nodeName string // empty while it is the host's own name, not yet read
	shown    bool
}

// quarantineTime bounds the report, including a connection to the API server.
const quarantineTime = 25 * time.Second

// show reports the exceeded budget, if any, provided that the API server is known to be the node's.
// cl is nil if the API server was not asked yet. claimed means that this process holds the host's
// claim, so that no other process reports for the node.
func (q *quarantine) show(ctx context.Context, cl *cluster.Connection, claimed bool) {
	cause := budget.From(ctx).Err()
	if cause == nil || q.shown || q.nodeName == "" {
		return
	}
	q.shown = true
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), quarantineTime)
	defer cancel()
	if err := q.report(ctx, cl, claimed, cause); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to show the quarantine in the cluster")
	}
}

func (q *quarantine) report(ctx context.Context, cl *cluster.Connection, claimed bool, cause error) error {
	if cl == nil {
		var err error
		if cl, err = cluster.Connect(ctx, q.cfg, q.nodeName, nil, cluster.Counts{}); err != nil {
			return err
		}
		defer cl.Close()
	}
	switch {
	case !cl.IsReady():
		return nil
	case claimed:
		return showQuarantine(ctx, cl.Client, q.nodeName, cause)
	}
	return showUnclaimed(ctx, cl.Client, q.cfg, q.nodeName, cause)
}

// showUnclaimed is showQuarantine for a host that this process has not claimed. It writes only to a
// Node whose annotations say that it was made for this host. While the node's Lease has not
// expired, another process may be managing the host, or was a moment ago: that one sets Ready and
// takes the condition back. If there is none, the Lease expires before the host is tried again.
func showUnclaimed(ctx context.Context, client kubernetes.Interface, cfg *config.Host, nodeName string, cause error) error {
	node, err := client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("show that the host of node %s is quarantined: %w", nodeName, err)
	case !madeFor(node, cfg):
		return fmt.Errorf("the node %s does not belong to this host, and stays unchanged", nodeName)
	}
	lease, err := client.CoordinationV1().Leases(v1.NamespaceNodeLease).Get(ctx, nodeName, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("show that the host of node %s is quarantined: %w", nodeName, err)
	}
	return writeQuarantine(ctx, client, nodeName, cause, err != nil || leaseEnded(lease, time.Now()))
}

// madeFor reports whether a Node's annotations say that it was made for this host.
func madeFor(node *v1.Node, cfg *config.Host) bool {
	return node.Annotations[provider.AnnotationDriver] != "" && provider.CheckOwn(node) == nil && node.Annotations[v1alpha1.HostAnnotation] == cfg.HostObject
}

func leaseEnded(l *coordinationv1.Lease, now time.Time) bool {
	if l.Spec.RenewTime == nil || l.Spec.LeaseDurationSeconds == nil {
		return true
	}
	return now.After(l.Spec.RenewTime.Add(time.Duration(*l.Spec.LeaseDurationSeconds) * time.Second))
}

// showQuarantine reports why the node is not managed any more. It runs after everything else of the
// driver has ended.
func showQuarantine(ctx context.Context, client kubernetes.Interface, nodeName string, cause error) error {
	node, err := client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		err = provider.CheckOwn(node)
	}
	if err != nil {
		return fmt.Errorf("show that the host of node %s is quarantined: %w", nodeName, err)
	}
	return writeQuarantine(ctx, client, nodeName, cause, true)
}

// writeQuarantine writes the conditions of the quarantine, and records the event.
func writeQuarantine(ctx context.Context, client kubernetes.Interface, nodeName string, cause error, unmanaged bool) error {
	now, conditions := metav1.Now(), readiness.Quarantined(cause, unmanaged)
	if err := provider.PatchConditions(ctx, client, nodeName, now, conditions); err != nil {
		return fmt.Errorf("show that the host of node %s is quarantined: %w", nodeName, err)
	}
	event := nodeEvent(nodeName, fmt.Sprintf("%x", now.UnixNano()), now, readiness.ReasonQuarantined, conditions[0].Message)
	if _, err := client.CoreV1().Events(metav1.NamespaceDefault).Create(ctx, event, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("record that the host of node %s is quarantined: %w", nodeName, err)
	}
	return nil
}

// endQuarantine takes the condition of a quarantine back: the host is managed again.
func (n *Node) endQuarantine(node *v1.Node) {
	c, ended := readiness.QuarantineEnded(node)
	if !ended {
		return
	}
	n.node.SetCondition(c)
	if !n.freed.Swap(true) { // the object shows the old condition for a while
		n.node.RecordEvent(v1.EventTypeNormal, readiness.ReasonQuarantineEnded, c.Message)
	}
}
