package labtest

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// History keeps every version of the pods of a namespace that the API server sends, in order.
type History struct {
	mu       sync.Mutex
	versions map[types.UID][]Version
	gone     map[types.UID]time.Time
	order    []types.UID
	done     chan struct{}
	cancel   context.CancelFunc
}

// Version is a version of a pod, and when the watch saw it.
type Version struct {
	*v1.Pod
	At time.Time
}

// Watch keeps the history of a namespace until Stop.
func (l *Lab) Watch(namespace string) *History {
	ctx, cancel := context.WithCancel(context.Background())
	h := &History{versions: map[types.UID][]Version{}, gone: map[types.UID]time.Time{}, done: make(chan struct{}), cancel: cancel}
	pods := l.Client.CoreV1().Pods(namespace)
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return pods.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return pods.Watch(ctx, o)
		},
	}
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: source, ObjectType: &v1.Pod{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: func(o any) { h.add(o.(*v1.Pod)) },
			UpdateFunc: func(old, o any) {
				if before, now := old.(*v1.Pod), o.(*v1.Pod); before.UID != now.UID {
					h.went(before.UID)
				}
				h.add(o.(*v1.Pod))
			},
			DeleteFunc: func(o any) {
				if last, missed := o.(cache.DeletedFinalStateUnknown); missed {
					o = last.Obj
				}
				h.went(o.(*v1.Pod).UID)
			},
		},
	})
	go func() {
		defer close(h.done)
		controller.RunWithContext(ctx)
	}()
	return h
}

func (h *History) add(p *v1.Pod) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.versions[p.UID]) == 0 {
		h.order = append(h.order, p.UID)
	}
	h.versions[p.UID] = append(h.versions[p.UID], Version{p, time.Now()})
}

func (h *History) went(uid types.UID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gone[uid] = time.Now()
}

// Stop ends the watch.
func (h *History) Stop() {
	h.cancel()
	<-h.done
}

// Of returns the versions seen of one life of a pod, oldest first.
func (h *History) Of(uid types.UID) []*v1.Pod {
	h.mu.Lock()
	defer h.mu.Unlock()
	var list []*v1.Pod
	for _, v := range h.versions[uid] {
		list = append(list, v.Pod)
	}
	return list
}

// Seen returns the same with the time of each, and when the API object was seen to be gone; zero:
// it exists.
func (h *History) Seen(uid types.UID) (versions []Version, gone time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]Version(nil), h.versions[uid]...), h.gone[uid]
}

// Now returns the newest version of each existing pod.
func (h *History) Now() []*v1.Pod {
	h.mu.Lock()
	defer h.mu.Unlock()
	var list []*v1.Pod
	for _, uid := range h.order {
		if h.gone[uid].IsZero() {
			versions := h.versions[uid]
			list = append(list, versions[len(versions)-1].Pod)
		}
	}
	return list
}

// Pods returns the UIDs of all pods seen, oldest first.
func (h *History) Pods() []types.UID {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]types.UID(nil), h.order...)
}
