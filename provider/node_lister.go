package provider

import (
	"context"
	"fmt"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Current is the node against which pods are admitted: labels and taints as the API server last
// showed them, because other clients may change them, and the rest as we report it. Until the API
// server has shown the node, everything is as we register it.
func (n *Node) Current() *v1.Node {
	ours := n.status.node(time.Now(), false)
	for _, obj := range n.self.GetStore().List() {
		if theirs := nodeOf(obj); theirs != nil {
			return merged(ours, theirs)
		}
	}
	return ours
}

// Reread is Current with labels and taints read from the API server now.
func (n *Node) Reread(ctx context.Context) (*v1.Node, error) {
	theirs, err := n.cfg.Client.CoreV1().Nodes().Get(ctx, n.cfg.Registration.NodeName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("re-read the node object: %w", err)
	}
	return merged(n.status.node(time.Now(), false), theirs), nil
}

// ObjectTTL is how long the cluster allows a node to cache a configMap or secret (annotation
// node.alpha.kubernetes.io/ttl, in seconds); false: the annotation is missing.
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
