package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

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

// showQuarantine tells the cluster why the node is not driven any more. It comes after
// everything else of the driver has ended.
func showQuarantine(ctx context.Context, client kubernetes.Interface, nodeName string, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
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
	now := metav1.Now()
	message := "the host is not driven for a while: " + cause.Error()
	data, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []v1.NodeCondition{
		{Type: hostQuarantined, Status: v1.ConditionTrue, Reason: budgetReason(cause), Message: message, LastHeartbeatTime: now, LastTransitionTime: now},
		{Type: v1.NodeReady, Status: v1.ConditionFalse, Reason: reasonQuarantined, Message: message, LastHeartbeatTime: now, LastTransitionTime: now},
	}}})
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
