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

// view is what this replica has seen of the Leases, and since when.
type view struct {
	leases  cache.SharedIndexInformer
	changed func()

	// Only the loop uses these.
	replicas map[string]seen   // by name
	holders  map[string]string // the holders in the hosts' Leases, by the names of the Leases
	echo     time.Time         // when our own renewal was last seen
	since    time.Time         // when our renewals were last seen again after doubt
	moved    time.Time         // when a host was last seen to change its holder
	first    bool              // holders has been filled
}

// seen is a replica's Lease as it was last seen, and when it was seen to change.
type seen struct {
	version string
	at      time.Time
}

// snapshot is the view at one time.
type snapshot struct {
	synced bool
	heard  bool                             // our own renewals are seen
	leases map[string]*coordinationv1.Lease // of hosts, by the names of the Leases
	others []shard.Replica                  // living
	gone   []*coordinationv1.Lease          // of replicas that have been dead for longer than forgotten
	moved  time.Time
	wake   time.Time // when this changes without an event
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

// unread logs that a watch or a list has failed. A watch also ends regularly after some minutes,
// which is logged only at V(4). client-go retries with a back-off of up to about 30 s.
func unread(ctx context.Context, _ *cache.Reflector, err error) {
	log := klog.FromContext(ctx)
	if errors.Is(err, io.EOF) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		log = log.V(4)
	}
	log.Error(err, "Failed to watch the Leases of the replicas, will retry")
}

func (v *view) run(ctx context.Context) {
	var background sync.WaitGroup
	defer background.Wait()
	background.Go(func() {
		if cache.WaitForCacheSync(ctx.Done(), v.leases.HasSynced) {
			v.changed()
		}
	})
	v.leases.RunWithContext(ctx)
}

// look records what has changed since the last look. me is the identity of this process, name the
// name of its replica.
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
	gap := time.Duration(0) // from our previous renewal to this one, if a new one is seen
	for who, l := range replicas {
		if v.replicas[who].version == l.ResourceVersion {
			continue
		}
		v.replicas[who] = seen{l.ResourceVersion, now}
		if who == name && ptr.Deref(l.Spec.HolderIdentity, "") == me {
			gap, v.echo = now.Sub(v.echo), now
		}
	}
	// Time in which our own renewals were not seen does not count against the other replicas.
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
