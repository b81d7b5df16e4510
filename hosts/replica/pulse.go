package replica

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/bowline-k8s/bowline/hint"
)

const (
	replicaPrefix = "bowline-replica-"
	// KindLabel is on all Leases of this package; its value is replica or host.
	KindLabel = "bowline.io/lease"
	// leavingAnnotation is on the Lease of a replica that is leaving.
	leavingAnnotation = "bowline.io/leaving"
)

// errTaken: two processes have the same name.
var errTaken = hint.Add(errors.New("another process uses the name of this replica"),
	"give each replica its own name (hostObjects.replicas.name, or POD_NAME in its environment)")

func isLeaving(l *coordinationv1.Lease) bool { return l.Annotations[leavingAnnotation] != "" }

// renew renews our Lease until ctx ends. It returns errTaken if another process has taken it.
func (r *Replica) renew(ctx context.Context) error {
	var ours *coordinationv1.Lease // as last written; nil: not known
	failing := false
	for {
		began := time.Now()
		written, err := r.renewOnce(ctx, ours)
		pause := renewAgain
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errTaken):
			return fmt.Errorf("the Lease %s: %w", replicaPrefix+r.cfg.Name, err)
		case err != nil:
			if !failing {
				klog.FromContext(ctx).Error(err, "Failed to renew this replica's Lease, will retry every second", "lease", replicaPrefix+r.cfg.Name)
			}
			failing = true
		default:
			ours, failing = written, false
			pause = renewPeriod - time.Since(began)
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-r.beat:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// renewOnce writes our Lease, and returns it as the API server stored it.
func (r *Replica) renewOnce(ctx context.Context, ours *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, answer)
	defer cancel()
	mine := func(l *coordinationv1.Lease) bool { return ptr.Deref(l.Spec.HolderIdentity, "") == r.identity }
	if ours != nil {
		written, err := r.cfg.Leases.Update(ctx, r.renewed(ours), metav1.UpdateOptions{})
		if err == nil || !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return written, err
		}
	}
	there, err := r.cfg.Leases.Get(ctx, replicaPrefix+r.cfg.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return r.cfg.Leases.Create(ctx, r.renewed(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: replicaPrefix + r.cfg.Name}}), metav1.CreateOptions{})
	case err != nil:
		return nil, err
	case ours != nil && !mine(there):
		return nil, errTaken // the process that was started last keeps the name
	}
	return r.cfg.Leases.Update(ctx, r.renewed(there), metav1.UpdateOptions{})
}

// renewed returns a copy of l, renewed now.
func (r *Replica) renewed(l *coordinationv1.Lease) *coordinationv1.Lease {
	l = l.DeepCopy()
	now := metav1.NowMicro()
	if ptr.Deref(l.Spec.HolderIdentity, "") != r.identity {
		l.Spec.AcquireTime = &now
	}
	l.Spec.HolderIdentity, l.Spec.RenewTime = &r.identity, &now
	l.Spec.LeaseDurationSeconds = ptr.To(int32(dead / time.Second))
	l.Labels = with(l.Labels, KindLabel, "replica")
	r.mu.Lock()
	leaving := r.leaving
	r.mu.Unlock()
	if leaving {
		l.Annotations = with(l.Annotations, leavingAnnotation, "true")
	} else {
		delete(l.Annotations, leavingAnnotation)
	}
	return l
}

func with(m map[string]string, key, value string) map[string]string {
	m = maps.Clone(m)
	if m == nil {
		m = map[string]string{}
	}
	m[key] = value
	return m
}
