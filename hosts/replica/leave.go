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

// dropTime is how long drivers have to end before the others are told that all hosts
// may be taken; who takes one then waits for its lock.
const dropTime = 5 * time.Second

// leave begins the end: from now on this replica takes no hosts and gives away those
// that it has, one after another.
func (r *Replica) leave(ctx context.Context) {
	r.mu.Lock()
	r.leaving = true
	r.mu.Unlock()
	klog.FromContext(ctx).Info("This replica leaves", "replica", r.cfg.Name)
	poke(r.beat)
}

// left: there is nothing to give away any more, or nobody to give it to.
func (r *Replica) left() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := slices.ContainsFunc(r.living, func(o shard.Replica) bool { return !o.Leaving })
	return len(r.held) == 0 || !r.heard || !taken
}

// drop lets go of all hosts, and waits a while for their drivers to end.
func (r *Replica) drop(ctx context.Context) {
	r.mu.Lock()
	had := slices.Collect(maps.Keys(r.held))
	clear(r.held)
	clear(r.given)
	r.pass()
	r.mu.Unlock()
	for _, h := range had {
		r.objects.Look(h)
	}
	busy := func(h string) bool { return r.cfg.Driven(h) || r.objects.At(h) }
	for end := time.Now().Add(dropTime); slices.ContainsFunc(had, busy) && time.Now().Before(end); {
		select {
		case <-ctx.Done():
			return
		case <-time.After(lookAgain):
		}
	}
}

// erase deletes our Lease, so that nobody waits for its being over.
func (r *Replica) erase(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, dropTime)
	defer cancel()
	name := replicaPrefix + r.cfg.Name
	err := r.eraseOnce(ctx, name)
	for apierrors.IsConflict(err) && ctx.Err() == nil {
		err = r.eraseOnce(ctx, name) // a renewal that was cut off has come yet
	}
	if err != nil && !apierrors.IsNotFound(err) {
		klog.FromContext(ctx).Info("This replica's Lease cannot be deleted; the others wait until it is over", "lease", name, "err", err)
	}
}

func (r *Replica) eraseOnce(ctx context.Context, name string) error {
	l, err := r.cfg.Leases.Get(ctx, name, metav1.GetOptions{})
	if err != nil || ptr.Deref(l.Spec.HolderIdentity, "") != r.identity {
		return err
	}
	return r.cfg.Leases.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &l.UID, ResourceVersion: &l.ResourceVersion}})
}
