package provider

import (
	"context"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

// leaseClient logs once that the lease cannot be renewed, and once that it can again.
// virtual-kubelet retries without a log.
type leaseClient struct {
	coordclient.LeaseInterface
	log     *stateLog
	standby *standby
}

func (c leaseClient) Get(ctx context.Context, name string, o metav1.GetOptions) (*coordinationv1.Lease, error) {
	l, err := c.LeaseInterface.Get(ctx, name, o)
	if !errors.IsNotFound(err) {
		c.log.note(ctx, err)
	}
	return l, err
}

func (c leaseClient) Create(ctx context.Context, l *coordinationv1.Lease, o metav1.CreateOptions) (*coordinationv1.Lease, error) {
	l, err := c.LeaseInterface.Create(ctx, l, o)
	c.log.note(ctx, err)
	return l, err
}

func (c leaseClient) Update(ctx context.Context, l *coordinationv1.Lease, o metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	if c.standby.active() {
		return l, nil // another process renews it
	}
	l, err := c.LeaseInterface.Update(ctx, l, o)
	if !errors.IsConflict(err) && !errors.IsNotFound(err) { // the next call resolves both
		c.log.note(ctx, err)
	}
	return l, err
}
