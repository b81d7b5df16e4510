package labtest

import (
	"context"
	"fmt"
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

// Backwards lists every step in which a pod's status fell behind an earlier one: a phase after a
// final one, fewer restarts, a container that waits again under the same restart count after it
// ran, a start time that moved.
func (h *History) Backwards() []string {
	var bad []string
	for _, uid := range h.Pods() {
		versions, _ := h.Seen(uid)
		bad = append(bad, Backwards(versions)...)
	}
	return bad
}

// Backwards is the same for one pod.
func Backwards(versions []Version) []string {
	var bad []string
	for i := 1; i < len(versions); i++ {
		for _, what := range backwards(versions[i-1].Pod, versions[i].Pod) {
			bad = append(bad, fmt.Sprintf("%s at version %s: %s", versions[i].Name, versions[i].ResourceVersion, what))
		}
	}
	return bad
}

var phaseRank = map[v1.PodPhase]int{"": 0, v1.PodPending: 1, v1.PodRunning: 2, v1.PodSucceeded: 3, v1.PodFailed: 3}

func backwards(a, b *v1.Pod) []string {
	var bad []string
	if phaseRank[b.Status.Phase] < phaseRank[a.Status.Phase] {
		bad = append(bad, fmt.Sprintf("phase %s after %s", b.Status.Phase, a.Status.Phase))
	}
	if a.Status.StartTime != nil && (b.Status.StartTime == nil || !a.Status.StartTime.Equal(b.Status.StartTime)) {
		bad = append(bad, "another start time")
	}
	for _, list := range [][2][]v1.ContainerStatus{
		{a.Status.ContainerStatuses, b.Status.ContainerStatuses},
		{a.Status.InitContainerStatuses, b.Status.InitContainerStatuses},
	} {
		for _, before := range list[0] {
			after := byName(list[1], before.Name)
			if after == nil {
				bad = append(bad, "container "+before.Name+" is no longer told")
				continue
			}
			bad = append(bad, containerBackwards(&before, after)...)
		}
	}
	return bad
}

func containerBackwards(a, b *v1.ContainerStatus) []string {
	var bad []string
	if b.RestartCount < a.RestartCount {
		bad = append(bad, fmt.Sprintf("container %s: %d restarts after %d", a.Name, b.RestartCount, a.RestartCount))
	}
	if a.ContainerID == b.ContainerID && a.ContainerID != "" {
		if a.State.Terminated != nil && b.State.Running != nil {
			bad = append(bad, "container "+a.Name+" runs after it ended")
		}
	}
	if a.RestartCount == b.RestartCount && a.State.Running != nil && b.State.Waiting != nil && b.LastTerminationState.Terminated == nil {
		bad = append(bad, "container "+a.Name+" waits after it ran: "+b.State.Waiting.Reason)
	}
	return bad
}

func byName(list []v1.ContainerStatus, name string) *v1.ContainerStatus {
	for i := range list {
		if list[i].Name == name {
			return &list[i]
		}
	}
	return nil
}

// Unready lists when pods that had been Ready were reported not Ready, although nothing had ended
// them.
func (h *History) Unready() []string {
	var bad []string
	for _, uid := range h.Pods() {
		was := false
		for _, p := range h.Of(uid) {
			if p.DeletionTimestamp != nil {
				break
			}
			ready := IsReady(p)
			if was && !ready {
				c := Condition(p, v1.PodReady)
				bad = append(bad, fmt.Sprintf("%s at version %s: %v", p.Name, p.ResourceVersion, c))
			}
			was = ready
		}
	}
	return bad
}
