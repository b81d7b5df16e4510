package main

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// boundVolumes reads what the pods' persistent volumes are, as the node: the Node
// authorizer lets it read those of its own pods, and itself.
type boundVolumes struct {
	core corev1client.CoreV1Interface
	node string
}

// claimTimeout is for one read, where its context ends no sooner: a pod waits for
// nothing else, and tries again.
const claimTimeout = 10 * time.Second

func (c boundVolumes) PersistentVolumeClaim(ctx context.Context, namespace, name string) (*v1.PersistentVolumeClaim, error) {
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	return c.core.PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
}

func (c boundVolumes) PersistentVolume(ctx context.Context, name string) (*v1.PersistentVolume, error) {
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	return c.core.PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
}

func (c boundVolumes) Node(ctx context.Context) (*v1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	return c.core.Nodes().Get(ctx, c.node, metav1.GetOptions{})
}
