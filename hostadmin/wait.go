package hostadmin

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/hosts"
)

// lonely is how long a Host may stay without a status before the user is warned.
const lonely = 20 * time.Second

// wait follows a Host until its node is Ready. When ctx ends, the error says what is missing.
func (e *Editor) wait(ctx context.Context, h *v1alpha1.Host) error {
	e.step("Waiting for the node %s to become Ready.", nodeName(h))
	shown := map[string]string{}
	stepOnce := func(about, text string) {
		if text != "" && shown[about] != text {
			shown[about] = text
			e.step("%s", text)
		}
	}
	uid, began := h.UID, time.Now()
	for {
		now, err := e.Hosts.Get(ctx, h.Name)
		switch {
		case ctx.Err() != nil:
		case apierrors.IsNotFound(err) || err == nil && now.UID != uid:
			return fmt.Errorf("the Host %s was deleted in the meantime", h.Name)
		case err != nil:
			stepOnce("api", fmt.Sprintf("Cannot read the Host, will retry: %v", err))
		case now.DeletionTimestamp != nil:
			return fmt.Errorf("the Host %s is being removed: it was deleted", h.Name)
		default:
			h = now
			if current(h, v1alpha1.ConditionReady) == nil && time.Since(began) > lonely {
				stepOnce("unread", "No Bowline has read the Host yet: is one running in this cluster, with hostObjects in its configuration?")
			}
			for _, s := range stepsOf(h) {
				stepOnce(s[0], s[1])
			}
			if err := e.hopeless(h); err != nil {
				return err
			}
			node, ready := e.node(ctx, h)
			stepOnce("node", node)
			if ready {
				e.Reporter.Show(fmt.Sprintf("\nThe node %s joined the cluster:\n  kubectl get node %s\n  %s top\n", nodeName(h), nodeName(h), e.Command))
				e.remains(ctx, h)
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return e.late(ctx, h)
		case <-time.After(e.Poll):
		}
	}
}

// current is a condition if it is of the current generation, or nil.
func current(h *v1alpha1.Host, kind string) *metav1.Condition {
	c := meta.FindStatusCondition(h.Status.Conditions, kind)
	if c == nil || c.ObservedGeneration != h.Generation {
		return nil
	}
	return c
}

// stepsOf is what a Host's status says, in the order in which it happens. The first of each pair is
// the topic.
func stepsOf(h *v1alpha1.Host) (steps [][2]string) {
	add := func(about, format string, args ...any) {
		steps = append(steps, [2]string{about, fmt.Sprintf(format, args...)})
	}
	ready := current(h, v1alpha1.ConditionReady)
	if ready == nil {
		return nil
	}
	if up := current(h, v1alpha1.ConditionLinkUp); up != nil {
		if up.Status == metav1.ConditionTrue {
			add("link", "The link is up.")
		} else {
			add("link", "The link is down: %s", up.Message)
		}
	}
	if r := h.Status.Runtime; r != nil {
		add("runtime", "The runtime is %s %s.", r.Name, r.Version)
	}
	add("ready", "%s: %s", ready.Reason, ready.Message)
	return steps
}

// hopeless returns an error for a state that does not change by waiting.
func (e *Editor) hopeless(h *v1alpha1.Host) error {
	c := current(h, v1alpha1.ConditionReady)
	if c == nil {
		return nil
	}
	switch c.Reason {
	case hosts.ReasonInvalid, hosts.ReasonNodeTaken, hosts.ReasonHostTaken:
		return hint.Add(fmt.Errorf("the Host %s cannot be a node (%s): %s", h.Name, c.Reason, c.Message), "to remove it, run %s host remove %s", e.Command, h.Name)
	}
	return nil
}

// node describes the Host's node, and reports whether it is Ready.
func (e *Editor) node(ctx context.Context, h *v1alpha1.Host) (string, bool) {
	n, err := e.Client.CoreV1().Nodes().Get(ctx, nodeName(h), metav1.GetOptions{})
	if err != nil || n.Annotations[v1alpha1.HostAnnotation] != h.Name {
		return "", false
	}
	ready := false
	for _, c := range n.Status.Conditions {
		ready = ready || c.Type == v1.NodeReady && c.Status == v1.ConditionTrue
	}
	if c := current(h, v1alpha1.ConditionReady); !ready || c == nil || c.Status != metav1.ConditionTrue {
		return fmt.Sprintf("The node %s is registered.", n.Name), false
	}
	return fmt.Sprintf("The node %s is Ready: %s, %s CPUs, %s of memory, %s pods.", n.Name, n.Status.NodeInfo.KubeletVersion,
		n.Status.Capacity.Cpu(), n.Status.Capacity.Memory(), n.Status.Capacity.Pods()), true
}

// late says what was missing when ctx ended.
func (e *Editor) late(ctx context.Context, h *v1alpha1.Host) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return hint.Add(fmt.Errorf("interrupted; the Host %s exists and still becomes a node", h.Name), "run the command again to watch, or run %s host remove %s", e.Command, h.Name)
	}
	c := current(h, v1alpha1.ConditionReady)
	var what string
	switch {
	case c == nil:
		return hint.Add(fmt.Errorf("node %s is not Ready: no Bowline reads Hosts here", nodeName(h)),
			"run one in this cluster, with hostObjects in its configuration and the right to read Hosts (docs/hosts.md), and run the command again")
	case c.Status == metav1.ConditionTrue:
		what = "the Host is Ready, but its node is not: kubectl describe node " + nodeName(h)
	default:
		what = c.Reason + ": " + c.Message
		if h.Status.LastError != "" && h.Status.LastError != c.Message {
			what += " (" + h.Status.LastError + ")"
		}
	}
	return hint.Add(fmt.Errorf("node %s is not Ready: %s", nodeName(h), what), "fix that, and run the command again to wait: Bowline keeps trying")
}
