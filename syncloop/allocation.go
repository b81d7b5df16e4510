package syncloop

import (
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/admit"
	"github.com/bowline-k8s/bowline/syncloop/allot"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

// resizeRetry is how often pending resizes are judged anew though nothing has
// changed that is known of.
const resizeRetry = 3 * time.Minute

// allocations know what of CPU and memory each pod of the node was given, and give
// another amount when a pod asks for it and there is room. A pod's worker brings
// the pod here as the API server has it, and works with the pod as it was given.
//
// What was given is found again after a restart of ours: in the record, for pods
// that were resized; else in the annotation of the pod's sandbox, which has what the
// pod was given when its sandbox was made.
type allocations struct {
	allocatable func() v1.ResourceList
	// pods are all that the sources have; complete: they have said so.
	pods     func() []*v1.Pod
	complete func() bool
	wake     func(types.UID)

	mu     sync.Mutex
	byUID  map[types.UID]*allotted
	record resizeRecord
	loaded bool
}

// allotted is one pod.
type allotted struct {
	wanted *v1.Pod // as the API server has it
	shown  *v1.Pod // wanted with what was given
	given  pod.Allocation
	text   string // given, written down
	over   bool   // it uses nothing any more
	judged bool   // this wanted has been judged
	// pending is the condition of a resize that waits, or nil.
	pending *v1.PodCondition
	// accepted is the generation of the resize that was accepted last; 0: none.
	accepted int64
	news     []resizeNews
	// room are the pods whose end makes room for this one, which is critical, as long as
	// any of them has not ended; preempt are those of them that nobody has told yet.
	room    map[types.UID]bool
	preempt []*v1.Pod
}

// resizeNews is an event that the pod's worker is to tell.
type resizeNews struct{ kind, reason, message string }

// allotment is what the worker learns of its pod.
type allotment struct {
	pod      *v1.Pod
	given    string
	pending  *v1.PodCondition
	accepted int64
	news     []resizeNews
	preempt  []*v1.Pod // to be ended, as this one is critical and needs their room
}

// known reports whether the record has been read.
func (a *allocations) known() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.loaded
}

// recovered is what is remembered of a pod that was there before us.
type recovered struct {
	allocation pod.Allocation
	sized      map[string]pod.Size // by container ID
	cgroups    map[string]plan.Cgroup
}

// recover finds what the pod was given, before its first allotment.
func (a *allocations) recover(p *v1.Pod, o *pod.Observed) recovered {
	out := recovered{allocation: pod.AllocationOf(p)}
	if len(o.Sandboxes) == 0 {
		return out
	}
	newest := &o.Sandboxes[0]
	a.mu.Lock()
	r, ok := a.record.Pods[p.UID]
	a.mu.Unlock()
	switch before, annotated := pod.ParseAllocation(newest.Annotations[pod.AnnotationAllocation]); {
	case ok && r.Sandbox == newest.ID:
		out.allocation, out.sized = r.Allocation, r.Sized
		made := plan.Cgroup{Allocated: r.Allocation.String()}
		if r.Was != nil {
			made = plan.Cgroup{Allocated: r.Was.String(), Unsure: true}
		}
		out.cgroups = map[string]plan.Cgroup{newest.ID: made}
	case annotated:
		out.allocation = before
	default: // of a version of ours that wrote none
		out.allocation = told(p, out.allocation)
		out.cgroups = map[string]plan.Cgroup{newest.ID: {Allocated: out.allocation.String()}}
	}
	return out
}

// told is what the pod's status tells of what its containers have.
func told(p *v1.Pod, a pod.Allocation) pod.Allocation {
	for _, list := range [][]v1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for i := range list {
			if r := list[i].Resources; r != nil && list[i].State.Running != nil {
				a.Containers[list[i].Name] = *r.DeepCopy()
			}
		}
	}
	return a
}

// allot takes in the pod as it is wanted, judges a resize, and returns what is
// given. first is what the pod has where it was not known before.
func (a *allocations) allot(p *v1.Pod, first *recovered, now time.Time) allotment {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.byUID[p.UID]
	if e == nil {
		e = &allotted{given: pod.AllocationOf(p)}
		if first != nil {
			e.given = first.allocation
		}
		e.text = e.given.String()
		for i := range p.Status.Conditions {
			if c := &p.Status.Conditions[i]; c.Type == v1.PodResizePending {
				e.pending = c.DeepCopy()
			}
		}
		a.byUID[p.UID] = e
	}
	if e.wanted != p {
		e.take(p)
	}
	if !e.judged {
		a.retry(now)
	}
	out := allotment{pod: e.shown, given: e.text, pending: e.pending, accepted: e.accepted, news: e.news, preempt: e.preempt}
	e.news, e.preempt = nil, nil
	return out
}

func (e *allotted) take(p *v1.Pod) {
	e.wanted, e.judged = p, false
	e.shown = e.given.Apply(p)
}

// claimed is the pod with what it has a right to: what it was given, or what others end
// for; and as it is where that is not known yet.
func (a *allocations) claimed(p *v1.Pod) *v1.Pod {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch e := a.byUID[p.UID]; {
	case e == nil || e.shown == nil:
		return p
	case a.roomComes(e):
		return e.wanted
	default:
		return e.shown
	}
}

// end says that the pod uses nothing any more; forget drops it.
func (a *allocations) end(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.byUID[uid]; e != nil && !e.over {
		e.over, e.pending = true, nil
		a.retry(time.Now())
	}
}

func (a *allocations) forget(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.byUID[uid]; e != nil {
		delete(a.byUID, uid)
		if !e.over {
			a.retry(time.Now())
		}
	}
}

// again judges what is pending, as room may have come that nobody told of.
func (a *allocations) again(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, e := range a.byUID {
		e.judged = e.judged && (e.pending == nil || e.pending.Reason == v1.PodReasonInfeasible)
	}
	a.retry(now)
}

// retry judges every resize that waits, those whose turn is first first, until
// nothing more is given.
func (a *allocations) retry(now time.Time) {
	if !a.everyPodSeen() {
		return
	}
	for again := true; again; {
		again = false
		for _, e := range a.waiting(now) {
			less := a.judge(e, now)
			if less { // it has given something back, which another may have waited for
				again = true
				break
			}
		}
	}
}

// everyPodSeen: nothing is given away before it is known what each pod has.
func (a *allocations) everyPodSeen() bool {
	if !a.complete() {
		return false
	}
	for _, p := range a.pods() {
		if a.byUID[p.UID] == nil && !terminal(p) && p.DeletionTimestamp == nil {
			return false
		}
	}
	return true
}

// waiting are the pods that are not given what they want, in their turn.
func (a *allocations) waiting(now time.Time) []*allotted {
	var out []*allotted
	turn := map[*allotted]allot.Candidate{}
	for _, e := range a.byUID {
		if e.over || e.judged && (e.pending == nil || e.pending.Reason == v1.PodReasonInfeasible) {
			continue
		}
		c := allot.Candidate{Wanted: e.wanted, Given: e.shown, Class: spec.QOSClass(e.wanted), Since: now}
		if e.pending != nil {
			c.Since = e.pending.LastTransitionTime.Time
		}
		out, turn[e] = append(out, e), c
	}
	slices.SortFunc(out, func(x, y *allotted) int { return allot.Before(turn[x], turn[y]) })
	return out
}

// judge gives a pod what it wants, or says why not. It reports whether the pod has
// less of something now.
func (a *allocations) judge(e *allotted, now time.Time) (less bool) {
	e.judged = true
	before := e.pending
	if e.shown == e.wanted { // nothing is asked for, or no more
		e.pending = nil
		if before != nil {
			a.wake(e.wanted.UID)
		}
		return false
	}
	if a.roomComes(e) {
		e.judged = false
		return false
	}
	e.room = nil
	others := a.beside(e)
	generation := e.wanted.Generation
	v := allot.Fits(e.wanted, others, a.allocatable())
	if v.Reason == v1.PodReasonDeferred && admit.Critical(e.wanted) {
		victims, none := admit.Victims(e.wanted, others, a.allocatable())
		if none != nil {
			v.Message = none.Message
		} else if len(victims) > 0 {
			e.makeRoom(victims)
			a.wake(e.wanted.UID)
			return false
		}
	}
	if v != (allot.Verdict{}) {
		e.pending = resizeCondition(v1.PodResizePending, before, v.Reason, v.Message, generation, now)
		if before == nil || before.Reason != v.Reason || before.ObservedGeneration != generation {
			e.news = append(e.news, resizeNews{v1.EventTypeWarning, "Resize" + v.Reason, allot.Message("Pod resize "+v.Short, e.wanted, generation, v.Message)})
			a.wake(e.wanted.UID)
		}
		return false
	}
	less = allot.Less(e.wanted, e.shown)
	e.given, e.pending, e.accepted = pod.AllocationOf(e.wanted), nil, generation
	e.shown, e.text = e.given.Apply(e.wanted), e.given.String()
	e.news = append(e.news, resizeNews{v1.EventTypeNormal, "ResizeStarted", allot.Message("Pod resize started", e.wanted, generation, "")})
	a.wake(e.wanted.UID)
	return less
}

// beside are the pods that e is judged beside, as they were given. What others end for is
// its pod's already.
func (a *allocations) beside(e *allotted) []*v1.Pod {
	leave := map[types.UID]bool{}
	var out []*v1.Pod
	for _, o := range a.byUID {
		if a.roomComes(o) {
			maps.Copy(leave, o.room)
		}
	}
	for uid, o := range a.byUID {
		switch {
		case o == e, o.over, leave[uid]:
		case a.roomComes(o):
			out = append(out, o.wanted)
		default:
			out = append(out, o.shown)
		}
	}
	return out
}

// makeRoom notes whose end is waited for; the pod's worker tells them.
func (e *allotted) makeRoom(victims []*v1.Pod) {
	e.room, e.preempt, e.judged = map[types.UID]bool{}, victims, false
	for _, p := range victims {
		e.room[p.UID] = true
	}
}

// roomComes reports whether a pod has yet to end that makes room for this one.
func (a *allocations) roomComes(e *allotted) bool {
	for uid := range e.room {
		if o := a.byUID[uid]; o != nil && !o.over {
			return true
		}
	}
	return false
}

// resizeCondition is a condition of a resize; its time changes with its reason.
func resizeCondition(t v1.PodConditionType, old *v1.PodCondition, reason, message string, generation int64, now time.Time) *v1.PodCondition {
	at := metav1.NewTime(now)
	c := &v1.PodCondition{Type: t, Status: v1.ConditionTrue, Reason: reason, Message: message, ObservedGeneration: generation,
		LastProbeTime: at, LastTransitionTime: at}
	if old != nil && old.Reason == reason {
		c.LastTransitionTime = old.LastTransitionTime
		if old.Message == message && old.ObservedGeneration == generation {
			c.LastProbeTime = old.LastProbeTime
		}
	}
	return c
}
