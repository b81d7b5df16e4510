package replica

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/bowline-k8s/bowline/hosts/shard"
)

// view is what is seen of the Leases, and since when.
type view struct {
	leases  cache.SharedIndexInformer
	changed func()

	// The loop's own.
	replicas map[string]seen   // by name
	holders  map[string]string // of the hosts' Leases, by their names
	echo     time.Time         // when our own renewal was seen last
	since    time.Time         // we have been heard since
	moved    time.Time         // when a host was seen to change hands
	first    bool              // holders has been filled
}

// seen is a replica's Lease as it was seen last, and when it was seen to change.
type seen struct {
	version string
	at      time.Time
}

// snapshot is what is seen now.
type snapshot struct {
	synced bool
	heard  bool                             // our own renewals are seen
	leases map[string]*coordinationv1.Lease // of hosts, by their names
	others []shard.Replica                  // that live
	gone   []*coordinationv1.Lease          // of replicas that have been dead for long
	moved  time.Time
	wake   time.Time // when something of this changes by itself
}

func newView(leases Leases, changed func()) (*view, error) {
	only := func(o metav1.ListOptions) metav1.ListOptions { o.LabelSelector = KindLabel; return o }
	v := &view{replicas: map[string]seen{}, holders: map[string]string{}, changed: changed}
	v.leases = cache.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			ctx, cancel := context.WithTimeout(ctx, 5*answer)
			defer cancel()
			return leases.List(ctx, only(o))
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return leases.Watch(ctx, only(o))
		},
	}, &coordinationv1.Lease{}, 0, cache.Indexers{})
	if err := v.leases.SetWatchErrorHandlerWithContext(unread); err != nil {
		return nil, err
	}
	_, err := v.leases.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { changed() },
		UpdateFunc: func(any, any) { changed() },
		DeleteFunc: func(any) { changed() },
	})
	return v, err
}

// unread is told that a watch has ended, as each does after some minutes, or that it or
// a list has failed. client-go tries again, ever later up to each half minute.
func unread(ctx context.Context, _ *cache.Reflector, err error) {
	log := klog.FromContext(ctx)
	if errors.Is(err, io.EOF) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		log = log.V(4)
	}
	log.Info("The Leases of the replicas cannot be followed; it is tried again", "err", err)
}

func (v *view) run(ctx context.Context) {
	var beside sync.WaitGroup
	defer beside.Wait()
	beside.Go(func() {
		if cache.WaitForCacheSync(ctx.Done(), v.leases.HasSynced) {
			v.changed()
		}
	})
	v.leases.RunWithContext(ctx)
}

// look takes note of what has changed since the last look. me is this process, which is
// the replica called name.
func (v *view) look(me, name string, now time.Time) snapshot {
	if !v.leases.HasSynced() {
		return snapshot{}
	}
	var all []*coordinationv1.Lease
	for _, obj := range v.leases.GetStore().List() {
		all = append(all, obj.(*coordinationv1.Lease))
	}
	return v.see(all, me, name, now)
}

func (v *view) see(all []*coordinationv1.Lease, me, name string, now time.Time) snapshot {
	s := snapshot{synced: true, leases: map[string]*coordinationv1.Lease{}}
	replicas := map[string]*coordinationv1.Lease{}
	holders := map[string]string{}
	for _, l := range all {
		if who, ok := strings.CutPrefix(l.Name, replicaPrefix); ok {
			replicas[who] = l
		} else if strings.HasPrefix(l.Name, hostPrefix) {
			s.leases[l.Name] = l
			holders[l.Name] = holder(l)
		}
	}
	if v.first && !maps.Equal(holders, v.holders) {
		v.moved = now
	}
	v.first, v.holders, s.moved = true, holders, v.moved

	for who := range v.replicas {
		if replicas[who] == nil {
			delete(v.replicas, who)
		}
	}
	gap := time.Duration(0) // since our own renewal before was seen, if one is seen now
	for who, l := range replicas {
		if v.replicas[who].version == l.ResourceVersion {
			continue
		}
		v.replicas[who] = seen{l.ResourceVersion, now}
		if who == name && ptr.Deref(l.Spec.HolderIdentity, "") == me {
			gap, v.echo = now.Sub(v.echo), now
		}
	}
	// What was not seen while our own renewals were not is not held against anybody.
	switch {
	case gap >= doubt:
		v.since = now
	case gap > renewPeriod:
		for who, other := range v.replicas {
			if other.at = other.at.Add(gap - renewPeriod); other.at.After(now) {
				other.at = now
			}
			v.replicas[who] = other
		}
	}
	s.heard = now.Sub(v.echo) < doubt
	if s.heard {
		s.wake = v.echo.Add(doubt)
	}
	for _, who := range slices.Sorted(maps.Keys(replicas)) {
		if who == name {
			continue
		}
		at := v.replicas[who].at
		if v.since.After(at) {
			at = v.since
		}
		if ends := at.Add(dead); ends.After(now) {
			s.others = append(s.others, shard.Replica{Name: who, Leaving: isLeaving(replicas[who])})
			s.wake = sooner(s.wake, ends)
		} else if ends := ends.Add(forgotten); ends.After(now) {
			s.wake = sooner(s.wake, ends)
		} else {
			s.gone = append(s.gone, replicas[who])
		}
	}
	return s
}
