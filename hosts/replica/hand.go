package replica

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/bowline-k8s/bowline/hosts/shard"
)

const (
	hostPrefix = "bowline-host-"
	// writeAgain is between two attempts to write a host's Lease. unseen is how long a written
	// Lease may take to appear in the watch.
	writeAgain, unseen = time.Second, 10 * time.Second
)

// leaseName is bowline-host-NAME, or a hash of the name where that is too long.
func leaseName(host string) string {
	if name := hostPrefix + host; len(name) <= validation.DNS1123SubdomainMaxLength {
		return name
	}
	return fmt.Sprintf("%s%s%x", hostPrefix, host[:160], sha256.Sum256([]byte(host)))
}

func holder(l *coordinationv1.Lease) string { return ptr.Deref(l.Spec.HolderIdentity, "") }

// writing is the state of the write of one Lease.
type writing struct {
	version string // of the Lease before the write
	take    bool   // we take a host
	ended   bool
	err     error
	until   time.Time // set when the write has ended: before this time it is not retried
}

// underWay reports whether the write is in progress, or done but not yet seen in the watch.
func (w *writing) underWay(version string, now time.Time) bool {
	return w != nil && (!w.ended || w.err == nil && w.version == version && now.Before(w.until))
}

// written is the result of a write.
type written struct {
	what string
	err  error
}

// write records a move in the host's Lease. The version that was seen is the precondition, so of
// two concurrent writers only one succeeds. next is when to try again.
func (r *Replica) write(ctx context.Context, m shard.Move, seen *coordinationv1.Lease, now time.Time) (next time.Time) {
	return r.request(ctx, m.Host, m.To == r.cfg.Name, seen, now, func() error {
		ctx, cancel := context.WithTimeout(ctx, answer)
		defer cancel()
		at := metav1.NowMicro()
		if seen == nil {
			_, err := r.cfg.Leases.Create(ctx, &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Name: leaseName(m.Host), Labels: map[string]string{KindLabel: "host"}},
				Spec:       coordinationv1.LeaseSpec{HolderIdentity: &m.To, AcquireTime: &at, LeaseTransitions: new(int32)},
			}, metav1.CreateOptions{})
			return err
		}
		l := seen.DeepCopy()
		l.Spec.HolderIdentity, l.Spec.AcquireTime = &m.To, &at
		l.Spec.LeaseTransitions = ptr.To(ptr.Deref(l.Spec.LeaseTransitions, 0) + 1)
		_, err := r.cfg.Leases.Update(ctx, l, metav1.UpdateOptions{})
		return err
	})
}

// tidy deletes the Leases of hosts that do not exist any more, and those of dead replicas.
func (r *Replica) tidy(ctx context.Context, hosts []string, seen snapshot, now time.Time) (next time.Time) {
	first, lives := true, map[string]bool{} // our name is the first of the living replicas
	for _, other := range r.living {
		first = first && r.cfg.Name <= other.Name
		lives[other.Name] = true
	}
	var over []*coordinationv1.Lease
	if first {
		over = seen.gone
	}
	there := map[string]bool{}
	for _, h := range hosts {
		there[leaseName(h)] = true
	}
	for name := range r.orphaned {
		if there[name] || seen.leases[name] == nil {
			delete(r.orphaned, name)
		}
	}
	for name, l := range seen.leases {
		if who := holder(l); there[name] || who != r.cfg.Name && (!first || lives[who]) {
			continue
		}
		if r.orphaned[name].IsZero() {
			r.orphaned[name] = now
		}
		// Another replica may have seen a new Host before us.
		if at := r.orphaned[name].Add(shard.Settle); at.After(now) {
			next = sooner(next, at)
		} else {
			over = append(over, l)
		}
	}
	for _, l := range over {
		next = sooner(next, r.request(ctx, "Lease "+l.Name, false, l, now, func() error {
			ctx, cancel := context.WithTimeout(ctx, answer)
			defer cancel()
			err := r.cfg.Leases.Delete(ctx, l.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &l.UID, ResourceVersion: &l.ResourceVersion}})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		}))
	}
	return next
}

// request starts a write in the background, unless one for the same Lease is under way or has just
// failed.
func (r *Replica) request(ctx context.Context, what string, take bool, seen *coordinationv1.Lease, now time.Time, do func() error) (next time.Time) {
	w := r.writing[what]
	switch {
	case w.underWay(version(seen), now):
		return w.until // zero while the request runs: its end triggers a step
	case w != nil && w.err != nil && now.Before(w.until):
		return w.until
	}
	r.writing[what] = &writing{version: version(seen), take: take}
	r.writers.Go(func() {
		end := written{what, do()}
		select {
		case r.wrote <- end:
		case <-ctx.Done():
		}
	})
	return time.Time{}
}

// takes reports whether a write that takes a host is in progress.
func (r *Replica) takes() bool {
	for _, w := range r.writing {
		if w.take && !w.ended {
			return true
		}
	}
	return false
}

func version(l *coordinationv1.Lease) string {
	if l == nil {
		return ""
	}
	return l.ResourceVersion
}

// note stores the result of a write. The write takes effect only when the watch shows it.
func (r *Replica) note(ctx context.Context, end written, now time.Time) {
	w := r.writing[end.what]
	w.ended, w.err = true, end.err
	switch {
	case end.err == nil:
		w.until = now.Add(unseen)
	case apierrors.IsConflict(end.err), apierrors.IsAlreadyExists(end.err):
		// Another replica has written; the watch will show what.
		w.until = now.Add(lookAgain)
		klog.FromContext(ctx).V(2).Info("Lost a Lease update to another replica", "of", end.what)
	default:
		w.until = now.Add(writeAgain)
		klog.FromContext(ctx).Error(end.err, "Failed to update the host lease, will retry", "of", end.what)
	}
	maps.DeleteFunc(r.writing, func(_ string, w *writing) bool { return w.ended && now.After(w.until) })
}
