package syncloop

import (
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/admit"
	"github.com/bowline-k8s/bowline/syncloop/allot"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

// resizeRetry is how often pending resizes are re-evaluated although no known input has changed.
const resizeRetry = 3 * time.Minute

// allocations keeps the CPU and memory allocated to each pod of the node, and changes an allocation
// when a pod requests a resize and there is room. A worker passes in the pod as the API server has
// it, and works with the pod as it was allocated.
//
// After a restart, allocations are recovered from the record for pods that were resized; for others
// from the annotation of the pod's sandbox, which has the allocation at the time the sandbox was
// made.
type allocations struct {
	allocatable func() v1.ResourceList
	// pods returns the pods of all sources. complete reports whether the API server's pods are
	// among them.
	pods     func() []*v1.Pod
	complete func() bool
	wake     func(types.UID)

	mu     sync.Mutex
	byUID  map[types.UID]*allotted
	record resizeRecord
	loaded bool
}

// allotted is the allocation of one pod.
type allotted struct {
	wanted *v1.Pod // the pod as the API server has it
	shown  *v1.Pod // wanted, with the allocated resources
	given  pod.Allocation
	text   string // given, serialized
	over   bool   // the pod uses nothing any more
	judged bool   // wanted has been judged
	// pending is the PodResizePending condition of a resize that waits, or nil.
	pending *v1.PodCondition
	// accepted is the generation of the last accepted resize; 0: none.
	accepted int64
	news     []resizeNews
	// room holds the pods that are preempted for this critical one, until all of them have ended.
	// preempt are those that have not been asked to end yet.
	room    map[types.UID]bool
	preempt []*v1.Pod
}

// resizeNews is an event that the pod's worker records.
type resizeNews struct{ kind, reason, message string }

// allotment is what allot returns to the pod's worker.
type allotment struct {
	pod      *v1.Pod
	given    string
	pending  *v1.PodCondition
	accepted int64
	news     []resizeNews
	preempt  []*v1.Pod // pods to preempt, because this one is critical and needs their room
}

// known reports whether the record has been read.
func (a *allocations) known() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.loaded
}

// recovered is the state of a pod that an earlier process started.
type recovered struct {
	allocation pod.Allocation
	sized      map[string]pod.Size // by container ID
	cgroups    map[string]plan.Cgroup
}

// recover finds the allocation of a pod before its first allot.
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
	default: // the sandbox was made by a Bowline version that wrote no annotation
		out.allocation = told(p, out.allocation)
		out.cgroups = map[string]plan.Cgroup{newest.ID: {Allocated: out.allocation.String()}}
	}
	return out
}

// told returns a with the resources that the pod's status reports for its running containers.
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

// allot records the pod as the API server has it, judges a requested resize, and returns the
// allocation. first is the recovered allocation of a pod that allocations does not know yet, or
// nil.
func (a *allocations) allot(p *v1.Pod, first *recovered, now time.Time) allotment {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.byUID[p.UID]
	isNew := e == nil
	if isNew {
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
	if !e.judged || isNew {
		a.retry(now)
	}
	out := allotment{pod: e.shown, given: e.text, pending: e.pending, accepted: e.accepted, news: e.news, preempt: e.preempt}
	e.news, e.preempt = nil, nil
	return out
}

func (e *allotted) take(p *v1.Pod) {
	e.wanted = p
	e.shown = e.given.Apply(p)
	// Most updates request no resize: only the status has changed.
	e.judged = e.shown == p && e.pending == nil
}

// claimed returns the pod with the resources that count against the node: its allocation, or what
// it wants if others end to make room for it. A pod whose allocation is unknown is returned as it
// is.
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

// end records that the pod uses nothing any more.
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

// again re-evaluates pending resizes: there may be new room that caused no wake-up. Infeasible ones
// stay as they are.
func (a *allocations) again(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, e := range a.byUID {
		e.judged = e.judged && (e.pending == nil || e.pending.Reason == v1.PodReasonInfeasible)
	}
	a.retry(now)
}

// retry judges every waiting resize, in the order of their turns, until no more resources come
// free.
func (a *allocations) retry(now time.Time) {
	for again := true; again; {
		again = false
		waiting := a.waiting(now)
		if len(waiting) == 0 || !a.everyPodSeen() {
			return
		}
		for _, e := range waiting {
			less := a.judge(e, now)
			if less { // it freed resources that another may wait for
				again = true
				break
			}
		}
	}
}

// everyPodSeen reports whether the allocation of every live pod is known. No resize is granted
// before.
func (a *allocations) everyPodSeen() bool {
	if !a.complete() {
		return false
	}
	for _, p := range a.pods() {
		if a.byUID[p.UID] == nil && !pod.Terminal(p.Status.Phase) && p.DeletionTimestamp == nil {
			return false
		}
	}
	return true
}

// waiting returns the pods whose resize is not granted, in the order of their turns.
func (a *allocations) waiting(now time.Time) []*allotted {
	var out []*allotted
	turn := map[*allotted]allot.Candidate{}
	for _, e := range a.byUID {
		if e.over || e.judged && (e.pending == nil || e.pending.Reason == v1.PodReasonInfeasible) {
			continue
		}
		c := allot.Candidate{Wanted: e.wanted, Given: e.shown, Class: pod.QOSClass(e.wanted), Since: now}
		if e.pending != nil {
			c.Since = e.pending.LastTransitionTime.Time
		}
		out, turn[e] = append(out, e), c
	}
	slices.SortFunc(out, func(x, y *allotted) int { return allot.Before(turn[x], turn[y]) })
	return out
}

// judge grants a pod what it wants, or sets the condition that says why not. It reports whether the
// pod's requests have shrunk.
func (a *allocations) judge(e *allotted, now time.Time) (less bool) {
	e.judged = true
	before := e.pending
	if e.shown == e.wanted { // no resize is requested, or it was withdrawn
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

// beside returns the other pods, with their allocations, that e must fit beside. A pod that is
// preempted for another one is left out, and the other pod counts with what it wants.
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

// makeRoom records the victims that e waits for; the pod's worker asks them to end.
func (e *allotted) makeRoom(victims []*v1.Pod) {
	e.room, e.preempt, e.judged = map[types.UID]bool{}, victims, false
	for _, p := range victims {
		e.room[p.UID] = true
	}
}

// roomComes reports whether a pod that is preempted for e has yet to end.
func (a *allocations) roomComes(e *allotted) bool {
	for uid := range e.room {
		if o := a.byUID[uid]; o != nil && !o.over {
			return true
		}
	}
	return false
}

// resizeCondition makes a resize condition. LastTransitionTime changes only with the reason.
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
