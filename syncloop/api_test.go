package syncloop_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/podconfig"
)

var podResource = schema.GroupResource{Resource: "pods"}

// api is an API server as far as this package can tell the difference: pods with resource versions,
// UID preconditions, graceful deletion and status patches. The fake clientset does the rest. Each
// change is passed to the source of the running node, as an informer does.
type api struct {
	t      testing.TB
	client *fake.Clientset

	mu      sync.Mutex
	rv      int
	uids    int
	pods    map[string]*v1.Pod   // by name; all in namespace "ns"
	deleted []types.UID          // UIDs of deleted objects, in order
	source  *podconfig.PodConfig // nil while no node is up
	unready []string             // pods, not being deleted, that a status made unready
	reasons map[string]bool      // waiting reasons seen in statuses
	blind   bool                 // show does nothing
	down    bool                 // every call on pods fails
	late    string               // the pod whose changes are kept in kept instead of being shown
	kept    []func()
}

const namespace = "ns"

func newAPI(t testing.TB) *api {
	a := &api{t: t, client: fake.NewClientset(), pods: map[string]*v1.Pod{}, reasons: map[string]bool{}}
	a.client.PrependReactor("*", "pods", a.react)
	return a
}

func (a *api) react(action clienttesting.Action) (bool, runtime.Object, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.down {
		return true, nil, apierrors.NewServiceUnavailable("down for the test")
	}
	switch act := action.(type) {
	case clienttesting.GetActionImpl:
		p := a.pods[act.GetName()]
		if p == nil {
			return true, nil, apierrors.NewNotFound(podResource, act.GetName())
		}
		return true, p.DeepCopy(), nil
	case clienttesting.CreateActionImpl:
		p, err := a.createMirror(act.GetObject().(*v1.Pod))
		return true, p, err
	case clienttesting.PatchActionImpl:
		p, err := a.patch(act)
		return true, p, err
	case clienttesting.DeleteActionImpl:
		return true, nil, a.finalDelete(act)
	}
	return true, nil, fmt.Errorf("unexpected %s of pods", action.GetVerb())
}

func (a *api) patch(act clienttesting.PatchActionImpl) (*v1.Pod, error) {
	p := a.pods[act.GetName()]
	if p == nil {
		return nil, apierrors.NewNotFound(podResource, act.GetName())
	}
	if act.GetSubresource() != "status" || act.GetPatchType() != types.StrategicMergePatchType {
		return nil, errors.New("not a strategic merge patch of the status")
	}
	var head v1.Pod
	if err := json.Unmarshal(act.GetPatch(), &head); err != nil {
		return nil, err
	}
	if head.UID != p.UID {
		return nil, apierrors.NewConflict(podResource, act.GetName(), errors.New("the UID in the precondition does not match"))
	}
	old, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	data, err := strategicpatch.StrategicMergePatch(old, act.GetPatch(), v1.Pod{})
	if err != nil {
		return nil, err
	}
	next := &v1.Pod{}
	if err := json.Unmarshal(data, next); err != nil {
		return nil, err
	}
	a.noBackwards(p, next)
	for _, c := range slices.Concat(next.Status.InitContainerStatuses, next.Status.ContainerStatuses) {
		if c.State.Waiting != nil {
			a.reasons[c.State.Waiting.Reason] = true
		}
	}
	if ready(p) && !ready(next) && p.DeletionTimestamp == nil {
		a.unready = append(a.unready, p.Name)
	}
	a.store(next)
	return next.DeepCopy(), nil
}

// noBackwards: a terminal phase stays, and restart counts only grow.
func (a *api) noBackwards(old, next *v1.Pod) {
	if done(old) && next.Status.Phase != old.Status.Phase {
		a.t.Errorf("pod %s (%s) went from %s to %s", old.Name, old.UID, old.Status.Phase, next.Status.Phase)
	}
	for _, was := range old.Status.ContainerStatuses {
		for _, is := range next.Status.ContainerStatuses {
			if is.Name == was.Name && is.RestartCount < was.RestartCount {
				a.t.Errorf("restart count of %s/%s fell from %d to %d", old.Name, is.Name, was.RestartCount, is.RestartCount)
			}
		}
	}
}

func done(p *v1.Pod) bool {
	return p.Status.Phase == v1.PodSucceeded || p.Status.Phase == v1.PodFailed
}

func (a *api) finalDelete(act clienttesting.DeleteActionImpl) error {
	p := a.pods[act.GetName()]
	if p == nil {
		return apierrors.NewNotFound(podResource, act.GetName())
	}
	if u := act.DeleteOptions.Preconditions.UID; u == nil || *u != p.UID {
		return apierrors.NewConflict(podResource, act.GetName(), errors.New("the UID in the precondition does not match"))
	}
	if *act.DeleteOptions.GracePeriodSeconds != 0 || p.DeletionTimestamp == nil && !pod.IsMirror(p) {
		return errors.New("a node ends only what someone asked to delete, with grace 0")
	}
	a.remove(p)
	return nil
}

// store stores p with a new resource version and shows it; a.mu is held.
func (a *api) store(p *v1.Pod) {
	a.rv++
	p.ResourceVersion = strconv.Itoa(a.rv)
	a.pods[p.Name] = p
	a.tell(p.Name, func(c *podconfig.PodConfig) { c.Set(podconfig.SourceAPI, p) })
}

// remove deletes p and shows it; a.mu is held.
func (a *api) remove(p *v1.Pod) {
	delete(a.pods, p.Name)
	a.deleted = append(a.deleted, p.UID)
	a.tell(p.Name, func(c *podconfig.PodConfig) { c.Drop(podconfig.SourceAPI, p.Namespace, p.Name) })
}

// tell shows the source a change of this pod, unless the watch of the pod is late; a.mu is held.
func (a *api) tell(name string, change func(*podconfig.PodConfig)) {
	source := a.source
	switch {
	case source == nil:
	case name == a.late:
		a.kept = append(a.kept, func() { change(source) })
	default:
		change(source)
	}
}

// delayWatch keeps the changes of a pod from the source; showOne shows the oldest of them, and catchUp
// the others.
func (a *api) delayWatch(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.late = name
}

func (a *api) showOne() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.kept[0]()
	a.kept = a.kept[1:]
}

func (a *api) catchUp() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, change := range a.kept {
		change()
	}
	a.late, a.kept = "", nil
}

// show connects the source of a node that has come up, and shows it all pods.
func (a *api) show(source *podconfig.PodConfig) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.blind {
		return
	}
	a.source = source
	for _, p := range a.pods {
		source.Set(podconfig.SourceAPI, p)
	}
	source.Seen(podconfig.SourceAPI)
}

// hide undoes show.
func (a *api) hide() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.source = nil
}

func (a *api) setDown(down bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.down = down
}

// create creates the pod with a new UID.
func (a *api) create(p *v1.Pod) *v1.Pod {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pods[p.Name] != nil {
		a.t.Errorf("pod %s exists", p.Name)
	}
	p = p.DeepCopy()
	a.uids++
	p.Namespace, p.UID = namespace, types.UID(fmt.Sprintf("uid-%s-%d", p.Name, a.uids))
	if p.CreationTimestamp.IsZero() {
		p.CreationTimestamp = metav1.Now()
	}
	p.Status.Phase = v1.PodPending
	a.store(p)
	return p
}

// recreate replaces a pod by another of its name in one step, as a watch that missed the time
// between a deletion and a creation shows it.
func (a *api) recreate(p *v1.Pod) *v1.Pod {
	a.mu.Lock()
	if old := a.pods[p.Name]; old != nil {
		delete(a.pods, p.Name)
		a.deleted = append(a.deleted, old.UID)
	}
	a.mu.Unlock()
	return a.create(p)
}

// update changes the pod.
func (a *api) update(name string, change func(*v1.Pod)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.pods[name]; p != nil {
		p = p.DeepCopy()
		change(p)
		a.store(p)
	}
}

// delete requests the pod's deletion with that grace period in seconds; 0 removes the object at
// once, like a forced deletion.
func (a *api) delete(name string, grace int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pods[name]
	switch {
	case p == nil:
	case grace == 0:
		a.remove(p)
	case p.DeletionTimestamp == nil || *p.DeletionGracePeriodSeconds > grace:
		p = p.DeepCopy()
		at := metav1.NewTime(time.Now().Add(time.Duration(grace) * time.Second))
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &at, &grace
		a.store(p)
	}
}

// pod returns the current pod of this name, or nil. The caller must not change it.
func (a *api) pod(name string) *v1.Pod {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pods[name]
}

func (a *api) names() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var names []string
	for name := range a.pods {
		names = append(names, name)
	}
	return names
}

// showed reports whether a status has ever had this waiting reason.
func (a *api) showed(reason string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.reasons[reason]
}

// everUnready returns the pods that went from ready to unready.
func (a *api) everUnready() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.unready)
}

func ready(p *v1.Pod) bool {
	if p == nil {
		return false
	}
	for _, c := range p.Status.Conditions {
		if c.Type == v1.PodReady {
			return c.Status == v1.ConditionTrue
		}
	}
	return false
}

// container returns the status of one container, or an empty one.
func container(p *v1.Pod, name string) v1.ContainerStatus {
	if p == nil {
		return v1.ContainerStatus{}
	}
	if s := pod.FindStatus(&p.Status, name); s != nil {
		return *s
	}
	return v1.ContainerStatus{}
}

func waitingReason(p *v1.Pod, name string) string {
	if w := container(p, name).State.Waiting; w != nil {
		return w.Reason
	}
	return ""
}
