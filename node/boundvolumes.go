package node

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// boundVolumes reads the claims and persistent volumes of the node's pods, with the node's
// credential: the Node authorizer lets a node read those of its own pods, and its own Node.
type boundVolumes struct {
	core corev1client.CoreV1Interface
	node string
}

// claimTimeout bounds one read if its context does not end sooner. The pod waits for this read
// alone, and retries.
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
