package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/provider"
)

// hostQuarantined is the node's condition that tells of a host which cost too much. A
// node whose host never did has no such condition.
const hostQuarantined v1.NodeConditionType = "HostQuarantined"

// reasonQuarantined is the reason of Ready meanwhile, and of the event.
const reasonQuarantined = "HostQuarantined"

// hostileError is how a driver ends that was ended for what its host cost.
type hostileError struct{ error }

func (e *hostileError) Unwrap() error { return e.error }

// isHostile is pool.Options.Hostile.
func isHostile(err error) bool {
	var e *hostileError
	return errors.As(err, &e)
}

// withinBudget runs what drives a host, with an account in its context. When a budget is
// exceeded, or a goroutine that reads what the host says panics, drive's context ends, and
// the error is that budget's, whatever drive returns.
func withinBudget(ctx context.Context, name string, drive func(context.Context) error) error {
	account := budget.New(budget.Limits{})
	budgets.begin(name, account)
	inner, cancel := context.WithCancelCause(budget.With(ctx, account))
	defer cancel(nil)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-account.Exceeded():
			cancel(account.Err())
		case <-inner.Done():
		}
	}()
	err := func() error {
		defer account.Recover("the driver")
		return drive(inner)
	}()
	cancel(nil)
	<-watched
	exceeded := account.Err()
	if exceeded == nil || ctx.Err() != nil {
		return err
	}
	budgets.exceeded(name, exceeded)
	if stack := account.Stack(); stack != nil {
		klog.FromContext(ctx).Info("Where the driver panicked", "stack", string(stack))
	}
	return &hostileError{exceeded}
}

// quarantine tells the cluster, once, that a host which was to be driven is not.
type quarantine struct {
	cfg      *config.Host
	nodeName string // empty: it was to be the machine's own, and is not known yet
	told     bool
}

// quarantineTime bounds the telling; a connection to the API server is within it.
const quarantineTime = 25 * time.Second

// show tells of the budget that has been exceeded, if one has, where the API server is
// known to be the node's. cl is nil where it was not asked yet. claimed: the machine is
// held, so that no other process speaks for the node.
func (q *quarantine) show(ctx context.Context, cl *cluster, claimed bool) {
	cause := budget.From(ctx).Err()
	if cause == nil || q.told || q.nodeName == "" {
		return
	}
	q.told = true
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), quarantineTime)
	defer cancel()
	if err := q.tell(ctx, cl, claimed, cause); err != nil {
		klog.FromContext(ctx).Info("The quarantine is not shown in the cluster", "err", err)
	}
}

func (q *quarantine) tell(ctx context.Context, cl *cluster, claimed bool, cause error) error {
	if cl == nil {
		var err error
		if cl, err = connectCluster(ctx, q.cfg, q.nodeName, nil); err != nil {
			return err
		}
		defer cl.close()
	}
	switch {
	case !cl.isMet():
		return nil
	case claimed:
		return showQuarantine(ctx, cl.client, q.nodeName, cause)
	}
	return showUnclaimed(ctx, cl.client, q.cfg, q.nodeName, cause)
}

// showUnclaimed is showQuarantine where the machine is not held: only a node that says by
// itself that it was made of this host is written. Where its lease has not ended, another
// process may be driving it, or may have been a moment ago: that one says whether the node
// is Ready, and takes the condition back. If there is none, the lease ends before the host
// is tried again.
func showUnclaimed(ctx context.Context, client kubernetes.Interface, cfg *config.Host, nodeName string, cause error) error {
	node, err := client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("show that the host of node %s is quarantined: %w", nodeName, err)
	case node.Annotations[provider.AnnotationDriver] == "" || provider.CheckOwn(node) != nil ||
		node.Annotations[v1alpha1.HostAnnotation] != cfg.HostObject:
		return fmt.Errorf("the node %s was not made of this host, and is left as it is", nodeName)
	}
	lease, err := client.CoordinationV1().Leases(v1.NamespaceNodeLease).Get(ctx, nodeName, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("show that the host of node %s is quarantined: %w", nodeName, err)
	}
	return writeQuarantine(ctx, client, nodeName, cause, err != nil || leaseEnded(lease, time.Now()))
}

func leaseEnded(l *coordinationv1.Lease, now time.Time) bool {
	if l.Spec.RenewTime == nil || l.Spec.LeaseDurationSeconds == nil {
		return true
	}
	return now.After(l.Spec.RenewTime.Add(time.Duration(*l.Spec.LeaseDurationSeconds) * time.Second))
}

// showQuarantine tells the cluster why the node is not driven any more. It comes after
// everything else of the driver has ended.
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

// writeQuarantine sets the condition, with ready also Ready, and records the event.
func writeQuarantine(ctx context.Context, client kubernetes.Interface, nodeName string, cause error, ready bool) error {
	now := metav1.Now()
	message := "the host is not driven for a while: " + cause.Error()
	conditions := []v1.NodeCondition{{Type: hostQuarantined, Status: v1.ConditionTrue, Reason: budgetReason(cause), Message: message, LastHeartbeatTime: now, LastTransitionTime: now}}
	if ready {
		conditions = append(conditions, v1.NodeCondition{Type: v1.NodeReady, Status: v1.ConditionFalse, Reason: reasonQuarantined, Message: message, LastHeartbeatTime: now, LastTransitionTime: now})
	}
	data, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": conditions}})
	if err != nil {
		return err
	}
	if _, err := client.CoreV1().Nodes().Patch(ctx, nodeName, types.StrategicMergePatchType, data, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("show that the host of node %s is quarantined: %w", nodeName, err)
	}
	event := &v1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s.%x", nodeName, now.UnixNano()), Namespace: metav1.NamespaceDefault},
		// As a kubelet refers to its node: kubectl describe finds its events so.
		InvolvedObject: v1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: nodeName, UID: types.UID(nodeName)},
		Type:           v1.EventTypeWarning, Reason: reasonQuarantined, Message: message,
		Source:         v1.EventSource{Component: "kubelet", Host: nodeName},
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
	if _, err := client.CoreV1().Events(metav1.NamespaceDefault).Create(ctx, event, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("tell that the host of node %s is quarantined: %w", nodeName, err)
	}
	return nil
}

// budgetReason is the condition's reason: the budget's name.
func budgetReason(cause error) string {
	var e *budget.ExceededError
	if errors.As(cause, &e) {
		return "Budget" + e.Kind.String()
	}
	return reasonQuarantined
}

// endQuarantine turns the condition off, where the server shows it: the host is driven.
func (n *node) endQuarantine(node *v1.Node) {
	for _, c := range node.Status.Conditions {
		if c.Type == hostQuarantined && c.Status == v1.ConditionTrue {
			n.node.SetCondition(provider.Condition{Type: hostQuarantined, Status: v1.ConditionFalse,
				Reason: "WithinBudget", Message: "the host is driven again"})
		}
	}
}
