package labtest

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// pollPeriod is the polling period of conditions.
const pollPeriod = 50 * time.Millisecond

// askTimeout bounds one evaluation of a condition, so that the result is the condition's own error
// and not a timeout.
const askTimeout = 10 * time.Second

// Until evaluates condition until it returns nil, or returns its last error once timeout has passed
// or ctx has ended.
func Until(ctx context.Context, timeout time.Duration, what string, condition func(context.Context) error) error {
	end := time.NewTimer(timeout)
	defer end.Stop()
	tick := time.NewTicker(pollPeriod)
	defer tick.Stop()
	for {
		last := ask(ctx, condition)
		if last == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-end.C:
			return fmt.Errorf("%s: not within %s: %w", what, timeout, last)
		case <-ctx.Done():
			return fmt.Errorf("%s: %w; last: %w", what, ctx.Err(), last)
		}
	}
}

func ask(ctx context.Context, condition func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return condition(ctx)
}

// Holds evaluates condition for the whole time and returns its first error.
func Holds(ctx context.Context, d time.Duration, what string, condition func(context.Context) error) error {
	end := time.NewTimer(d)
	defer end.Stop()
	tick := time.NewTicker(pollPeriod)
	defer tick.Stop()
	for {
		if err := ask(ctx, condition); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		select {
		case <-tick.C:
		case <-end.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// NodeReady waits for the node's Ready condition to be status ("True", "False") and returns it.
func (l *Lab) NodeReady(ctx context.Context, name string, status v1.ConditionStatus, timeout time.Duration) (v1.NodeCondition, error) {
	var ready v1.NodeCondition
	err := Until(ctx, timeout, "node "+name+" Ready="+string(status), func(ctx context.Context) error {
		node, err := l.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if ready = NodeCondition(node, v1.NodeReady); ready.Status != status {
			return fmt.Errorf("it is %q: %s", ready.Status, ready.Message)
		}
		return nil
	})
	return ready, err
}

// NodeCondition returns a condition of a node; it is empty if the node has none of this type.
func NodeCondition(n *v1.Node, t v1.NodeConditionType) v1.NodeCondition {
	for _, c := range n.Status.Conditions {
		if c.Type == t {
			return c
		}
	}
	return v1.NodeCondition{}
}

// Pod waits until condition holds for a pod and returns the pod.
func (l *Lab) Pod(ctx context.Context, namespace, name string, timeout time.Duration, what string, condition func(*v1.Pod) error) (*v1.Pod, error) {
	var p *v1.Pod
	err := Until(ctx, timeout, "pod "+namespace+"/"+name+" "+what, func(ctx context.Context) error {
		got, err := l.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		p = got
		if err := condition(got); err != nil {
			return fmt.Errorf("%w (%s)", err, Describe(got))
		}
		return nil
	})
	return p, err
}

// PodReady waits for a pod to be Ready.
func (l *Lab) PodReady(ctx context.Context, namespace, name string, timeout time.Duration) (*v1.Pod, error) {
	return l.Pod(ctx, namespace, name, timeout, "Ready", func(p *v1.Pod) error {
		if !IsReady(p) {
			return fmt.Errorf("it is not Ready")
		}
		return nil
	})
}

// PodGone waits for the pod to be gone from the API.
func (l *Lab) PodGone(ctx context.Context, namespace, name string, timeout time.Duration) error {
	return Until(ctx, timeout, "pod "+namespace+"/"+name+" gone", func(ctx context.Context) error {
		p, err := l.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		return fmt.Errorf("it is there: %s", Describe(p))
	})
}

// ReadyPods waits until exactly n pods match the selector, all Ready, none terminating.
func (l *Lab) ReadyPods(ctx context.Context, namespace, selector string, n int, timeout time.Duration) ([]v1.Pod, error) {
	var pods []v1.Pod
	err := Until(ctx, timeout, fmt.Sprintf("%d Ready pods %s of %s", n, selector, namespace), func(ctx context.Context) error {
		list, err := l.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return err
		}
		pods = list.Items
		ready, example := 0, ""
		for i := range pods {
			if IsReady(&pods[i]) && pods[i].DeletionTimestamp == nil {
				ready++
			} else {
				example = Describe(&pods[i])
			}
		}
		if ready != n || len(pods) != n {
			return fmt.Errorf("%d of %d are Ready; %s", ready, len(pods), example)
		}
		return nil
	})
	return pods, err
}

// IsReady reports whether the pod's condition Ready is True.
func IsReady(p *v1.Pod) bool {
	c := Condition(p, v1.PodReady)
	return c != nil && c.Status == v1.ConditionTrue
}

// Condition returns a condition of a pod, or nil.
func Condition(p *v1.Pod, t v1.PodConditionType) *v1.PodCondition {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == t {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}

// Container returns the status of a container of any kind by name, or nil.
func Container(p *v1.Pod, name string) *v1.ContainerStatus {
	return pod.FindStatus(&p.Status, name)
}

// Restarts returns the restarts of all containers of a pod.
func Restarts(p *v1.Pod) int32 {
	var n int32
	for c := range pod.Statuses(&p.Status) {
		n += c.RestartCount
	}
	return n
}

// Describe returns a pod's state in one line.
func Describe(p *v1.Pod) string {
	s := fmt.Sprintf("%s %s", p.Name, p.Status.Phase)
	if p.DeletionTimestamp != nil {
		s += " ending"
	}
	if p.Status.Reason != "" {
		s += " " + p.Status.Reason + " " + p.Status.Message
	}
	for c := range pod.Statuses(&p.Status) {
		switch {
		case c.State.Waiting != nil:
			s += fmt.Sprintf(", %s waits: %s %s", c.Name, c.State.Waiting.Reason, c.State.Waiting.Message)
		case c.State.Running != nil:
			s += fmt.Sprintf(", %s runs, ready=%v", c.Name, c.Ready)
		case c.State.Terminated != nil:
			s += fmt.Sprintf(", %s ended: %d %s %s", c.Name, c.State.Terminated.ExitCode, c.State.Terminated.Reason, c.State.Terminated.Message)
		}
		if c.RestartCount > 0 {
			s += fmt.Sprintf(" (%d restarts)", c.RestartCount)
		}
	}
	return s
}
