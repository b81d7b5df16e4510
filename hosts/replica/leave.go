package replica

import (
	"context"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/bowline-k8s/bowline/hosts/shard"
)

// dropTime is how long drivers have to stop before the others learn that they may take all hosts. A
// replica that takes one then waits for its lock.
const dropTime = 5 * time.Second

// leave starts the end: from now on this replica takes no hosts, and gives away the ones that it
// holds, one after another.
func (r *Replica) leave(ctx context.Context) {
	r.mu.Lock()
	r.leaving = true
	r.mu.Unlock()
	klog.FromContext(ctx).Info("Leaving the replica set", "replica", r.cfg.Name)
	r.beat.Send()
}

// left reports whether there is no host left to give away, or no replica to give one to.
func (r *Replica) left() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := slices.ContainsFunc(r.living, func(o shard.Replica) bool { return !o.Leaving })
	return len(r.held) == 0 || !r.heard || !taken
}

// drop lets go of all hosts, and waits up to dropTime for their drivers to stop.
func (r *Replica) drop(ctx context.Context) {
	r.mu.Lock()
	had := slices.Collect(maps.Keys(r.held))
	kept := slices.DeleteFunc(slices.Clone(had), func(h string) bool { return r.given[h] })
	clear(r.held)
	clear(r.given)
	r.pass()
	r.mu.Unlock()
	for _, h := range kept { // a write of the others' holder may be under way
		r.objects.Look(h)
	}
	busy := func(h string) bool { return r.cfg.Managed(h) || r.objects.At(h) }
	for end := time.Now().Add(dropTime); slices.ContainsFunc(had, busy) && time.Now().Before(end); {
		select {
		case <-ctx.Done():
			return
		case <-time.After(lookAgain):
		}
	}
}

// erase deletes our Lease, so that no other replica waits for it to expire.
func (r *Replica) erase(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, dropTime)
	defer cancel()
	name := replicaPrefix + r.cfg.Name
	err := r.eraseOnce(ctx, name)
	for apierrors.IsConflict(err) && ctx.Err() == nil {
		err = r.eraseOnce(ctx, name) // a renewal that was cancelled arrived after all
	}
	if err != nil && !apierrors.IsNotFound(err) {
		klog.FromContext(ctx).Error(err, "Failed to delete this replica's Lease; the others wait until it expires", "lease", name)
	}
}

func (r *Replica) eraseOnce(ctx context.Context, name string) error {
	l, err := r.cfg.Leases.Get(ctx, name, metav1.GetOptions{})
	if err != nil || ptr.Deref(l.Spec.HolderIdentity, "") != r.identity {
		return err
	}
	return r.cfg.Leases.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &l.UID, ResourceVersion: &l.ResourceVersion}})
}
