package provider

import (
	"context"
	"fmt"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Current is the node as pods are judged by it: labels and taints as the API server
// last showed them, where anybody may have changed them, and the rest as we report it.
// Before the API server has shown it, all is as we register it.
func (n *Node) Current() *v1.Node {
	ours := n.status.node(time.Now(), false)
	for _, obj := range n.self.GetStore().List() {
		if theirs := nodeOf(obj); theirs != nil {
			return merged(ours, theirs)
		}
	}
	return ours
}

// Reread is Current with what the API server has now.
func (n *Node) Reread(ctx context.Context) (*v1.Node, error) {
	theirs, err := n.cfg.Client.CoreV1().Nodes().Get(ctx, n.cfg.Registration.NodeName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read the node object anew: %w", err)
	}
	return merged(n.status.node(time.Now(), false), theirs), nil
}

// ObjectTTL is for how long the cluster lets a node keep what it was told of a configMap or
// a secret (the annotation node.alpha.kubernetes.io/ttl, in seconds); false: it does not say.
func (n *Node) ObjectTTL() (time.Duration, bool) {
	for _, obj := range n.self.GetStore().List() {
		if theirs := nodeOf(obj); theirs != nil {
			return objectTTL(theirs)
		}
	}
	return 0, false
}

func objectTTL(n *v1.Node) (time.Duration, bool) {
	seconds, err := strconv.Atoi(n.Annotations[v1.ObjectTTLAnnotationKey])
	return time.Duration(seconds) * time.Second, err == nil
}

func merged(ours, theirs *v1.Node) *v1.Node {
	ours.Labels, ours.Spec.Taints = theirs.Labels, theirs.Spec.Taints
	return ours
}
