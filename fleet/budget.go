package fleet

import (
	"context"
	"errors"

	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/host/budget"
)

// hostileError is the error of a driver that was ended because its host exceeded a budget.
type hostileError struct{ error }

func (e *hostileError) Unwrap() error { return e.error }

// IsHostile implements pool.Options.Hostile.
func IsHostile(err error) bool {
	var e *hostileError
	return errors.As(err, &e)
}

// limitsOf returns the limits of a host whose node takes this number of pods. They are the defaults,
// or more if the pods that such a node admits can need more.
func limitsOf(maxPods int32) budget.Limits {
	var l budget.Limits
	b := spec.BoundsOf(int64(maxPods))
	// others is what a runtime lists beside the node's pods: those of another owner, and images.
	const others = 2 << 10
	return budget.Limits{
		ReplyBytes: max(l.Of(budget.ReplyBytes), b.ListBytes),
		Memory:     max(l.Of(budget.Memory), b.ListMemory, 2*b.Kept),
		Items:      max(l.Of(budget.Items), b.ListItems+others, b.HostMounts+others),
		Pods:       max(l.Of(budget.Pods), b.Pods),
	}
}

// withinBudget runs manage for one host, with a budget account in its context. If a budget is
// exceeded, or a goroutine that reads what the host says panics, manage's context ends, and
// withinBudget returns that budget's error, whatever manage returns.
func withinBudget(ctx context.Context, name string, limits budget.Limits, manage func(context.Context) error) error {
	account := budget.New(limits)
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
		return manage(inner)
	}()
	cancel(nil)
	<-watched
	exceeded := account.Err()
	if exceeded == nil || ctx.Err() != nil {
		return err
	}
	budgets.exceeded(name, exceeded)
	if stack := account.Stack(); stack != nil {
		klog.FromContext(ctx).Error(nil, "Recovered the driver's panic", "stack", string(stack))
	}
	return &hostileError{exceeded}
}
