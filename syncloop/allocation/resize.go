package allocation

import (
	"encoding/json"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/admit"
)

// resizes is the allocation of one pod, and its requested resize.
type resizes struct {
	known     bool
	given     pod.Allocation
	allocated string // given, serialized
	restored  *Restored
	examined  bool               // wanted has been examined
	pending   *v1.PodCondition   // of a resize that is deferred or infeasible, or nil
	accepted  int64              // generation of the last accepted resize; 0: none
	room      map[types.UID]bool // pods that are preempted for this critical one
}

// Restored is the recorded state of a pod that an earlier process ran.
type Restored struct {
	// Sized holds, by container ID, the sizes that differ from those at the containers' creation.
	Sized map[string]pod.Size
	// Sandbox is the ID of the sandbox whose cgroup has the limits of the allocation Cgroup; "":
	// those of its annotation. Unsure: a resize of it was cut off.
	Sandbox string
	Cgroup  string
	Unsure  bool
}

// restore reads the missing allocations of running pods. The checkpoint has those of resized pods;
// the annotation of the sandbox has those of the others, from the creation of the sandbox.
func (m *Manager) restore() {
	if !m.loaded {
		return
	}
	for uid, e := range m.pods {
		if e.known {
			continue
		}
		if o := m.cfg.Observed(uid); o.Fresh() {
			e.given, e.restored = m.checkpoint.restore(e.wanted, &o)
			e.allocated, e.known = e.given.String(), true
			e.pending = Condition(e.wanted, v1.PodResizePending)
			m.request(e)
			m.retry(podsAdded)
		}
	}
}

func (c *record) restore(p *v1.Pod, o *pod.Observed) (pod.Allocation, *Restored) {
	a, out := pod.AllocationOf(p), &Restored{Sized: map[string]pod.Size{}}
	if len(o.Sandboxes) > 0 {
		newest := &o.Sandboxes[0]
		r, ok := c.Pods[p.UID]
		switch before, annotated := pod.ParseAllocation(newest.Annotations[pod.AnnotationAllocation]); {
		case ok && r.Sandbox == newest.ID:
			a, out.Sandbox, out.Cgroup = r.Allocation, newest.ID, r.Allocation.String()
			maps.Copy(out.Sized, r.Sized)
			if r.Was != nil {
				out.Cgroup, out.Unsure = r.Was.String(), true
			}
		case annotated:
			a = before
		default: // the sandbox was made by a Bowline version that wrote no annotation
			reported(p, a)
			out.Sandbox, out.Cgroup = newest.ID, a.String()
		}
	}
	// A container whose annotation has no size counts as having its pod's allocation.
	given := a.Apply(p)
	for i := range o.Containers {
		c := &o.Containers[i]
		if _, ok := out.Sized[c.ID]; ok || c.Size != nil || c.State != pod.StateRunning {
			continue
		}
		if s := pod.Find(pod.Containers(&given.Spec), c.Name); s != nil {
			out.Sized[c.ID] = pod.SizeOf(&given.Spec, s)
		}
	}
	return a, out
}

// reported gives a the resources that the pod's status reports for its running containers.
func reported(p *v1.Pod, a pod.Allocation) {
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if s.Resources != nil && s.State.Running != nil {
			a.Containers[s.Name] = *s.Resources.DeepCopy()
		}
	}
}

// request records the resources that the pod's source wants.
func (m *Manager) request(e *podState) {
	e.shown = e.given.Apply(e.wanted)
	// Most updates request no resize: only the status has changed.
	e.examined = e.shown == e.wanted && e.pending == nil
	if !e.examined {
		m.retry(podUpdated)
	}
}

// claimed returns the pod with the resources that count against the node: its allocation, or what
// it wants if others end to make room for it. A pod whose allocation is unknown is returned as it
// is.
func (m *Manager) claimed(p *v1.Pod) *v1.Pod {
	e := m.pods[p.UID]
	switch {
	case e == nil || !e.known:
		return p
	case m.roomComes(e):
		return e.wanted
	}
	return e.shown
}

// resize examines every waiting resize, in the order of their turns, until no more resources come
// free.
func (m *Manager) resize(now time.Time) {
	for m.resizeDue {
		waiting := m.waiting(now)
		if len(waiting) > 0 && !m.everyPodKnown() {
			return // no resize is accepted before
		}
		// One that frees resources makes room for another.
		if m.resizeDue = slices.ContainsFunc(waiting, func(e *podState) bool { return m.resizeOne(e, now) }); m.resizeDue {
			m.trigger = podResized
		}
	}
}

// everyPodKnown reports whether the manager has the allocation of every live pod.
func (m *Manager) everyPodKnown() bool {
	return m.cfg.Sources.SeenBy(pod.SourceAPI) && !slices.ContainsFunc(m.cfg.Sources.Pods(), func(p *v1.Pod) bool {
		return !m.has(p.UID) && !pod.Terminal(p.Status.Phase) && p.DeletionTimestamp == nil
	})
}

// has reports whether the manager has the allocation of the pod.
func (m *Manager) has(uid types.UID) bool { return m.pods[uid] != nil && m.pods[uid].known }

// waiting returns the pods whose resize is not accepted, in the order of their turns.
func (m *Manager) waiting(now time.Time) []*podState {
	var out []*podState
	turn := map[*podState]admit.Candidate{}
	for _, e := range m.pods {
		if !e.known || e.ended || e.examined && (e.pending == nil || e.pending.Reason == v1.PodReasonInfeasible) {
			continue
		}
		c := admit.Candidate{Wanted: e.wanted, Given: e.shown, Class: pod.QOSClass(e.wanted), Since: metav1.NewTime(now)}
		if e.pending != nil {
			c.Since = e.pending.LastTransitionTime
		}
		out, turn[e] = append(out, e), c
	}
	slices.SortFunc(out, func(x, y *podState) int { return admit.Before(turn[x], turn[y]) })
	return out
}

// fixedPodResources is a kubelet's message about a resize of pod-level resources whose feature gate is off.
const fixedPodResources = "InPlacePodLevelResourcesVerticalScaling is disabled"

// causeFixed is its word for it in kubelet_pod_infeasible_resizes_total.
const causeFixed = "plr_feature_gate_off"

// resizeOne accepts the resize of a pod, or sets the condition that says why not. It reports whether
// the pod's requests have shrunk.
func (m *Manager) resizeOne(e *podState, now time.Time) (less bool) {
	e.examined = true
	if e.shown == e.wanted { // no resize is requested, or it was withdrawn
		m.resolve(e, Reverted, now)
		return false
	}
	if m.roomComes(e) {
		e.examined = false
		return false
	}
	e.room = nil
	if m.infeasible(e, now) {
		return false
	}
	others, allocatable := m.others(e), m.cfg.Allocatable()
	short := admit.FitsResized(e.wanted, others, allocatable)
	event := func(kind, reason, message, problem string) {
		m.cfg.Event(e.shown, kind, reason, Message(message, e.wanted, e.wanted.Generation, problem))
	}
	if short != nil {
		message := short.Message
		if admit.Critical(e.wanted) {
			v := admit.Victims(e.wanted, others, allocatable)
			if v.Rejection != nil {
				message = v.Rejection.Message
			} else if len(v.Preempt) > 0 {
				e.room, e.examined = map[types.UID]bool{}, false
				for _, p := range v.Preempt {
					e.room[p.UID] = true
				}
				m.preempt(v, now)
				return false
			}
		}
		before := e.pending
		fresh := before == nil || before.Reason != v1.PodReasonDeferred || before.ObservedGeneration != e.wanted.Generation
		if fresh {
			event(v1.EventTypeWarning, "Resize"+v1.PodReasonDeferred, "Pod resize "+short.Reason, message)
		}
		// The message names the usage of the node's pods. If it changed with each of them, each
		// change would cost a write of the status.
		if fresh || now.Sub(before.LastProbeTime.Time) >= resizeRetry {
			e.pending = NewCondition(v1.PodResizePending, before, v1.PodReasonDeferred, message, e.wanted.Generation, now)
		}
		return false
	}
	less = admit.Less(e.wanted, e.shown)
	m.resolve(e, Accepted, now)
	e.given, e.accepted = pod.AllocationOf(e.wanted), e.wanted.Generation
	e.shown, e.allocated = e.given.Apply(e.wanted), e.given.String()
	event(v1.EventTypeNormal, "ResizeStarted", "Pod resize started", "")
	return less
}

// infeasible reports whether this node never resizes the pod so, and sets the condition that says why.
func (m *Manager) infeasible(e *podState, now time.Time) bool {
	if !m.cfg.FixedPodResources || pod.Equal(e.wanted.Spec.Resources, e.shown.Spec.Resources) {
		return false
	}
	if before := e.pending; before == nil || before.Reason != v1.PodReasonInfeasible || before.ObservedGeneration != e.wanted.Generation {
		m.cfg.Event(e.shown, v1.EventTypeWarning, "Resize"+v1.PodReasonInfeasible,
			Message("Pod resize "+v1.PodReasonInfeasible, e.wanted, e.wanted.Generation, fixedPodResources))
		m.cfg.Infeasible(causeFixed)
		e.pending = NewCondition(v1.PodResizePending, before, v1.PodReasonInfeasible, fixedPodResources, e.wanted.Generation, now)
	}
	return true
}

// resolve ends the wait of a resize, if it waits.
func (m *Manager) resolve(e *podState, how string, now time.Time) {
	if c := e.pending; c != nil && c.Reason == v1.PodReasonDeferred {
		m.cfg.Resolved(e.wanted, how, m.trigger, now.Sub(c.LastTransitionTime.Time))
	}
	e.pending = nil
}

// others returns the other pods that must fit on the node together with e, with their allocations. It
// omits pods that are preempted for another one, which counts with the resources that it wants.
func (m *Manager) others(e *podState) []*v1.Pod {
	preempted := map[types.UID]bool{}
	var out []*v1.Pod
	for _, o := range m.pods {
		if m.roomComes(o) {
			maps.Copy(preempted, o.room)
		}
	}
	for uid, o := range m.pods {
		if o != e && o.known && !o.ended && !preempted[uid] {
			out = append(out, m.claimed(o.wanted))
		}
	}
	return out
}

// roomComes reports whether a pod that is preempted for e has yet to end.
func (m *Manager) roomComes(e *podState) bool {
	for uid := range e.room {
		if m.has(uid) && !m.pods[uid].ended {
			return true
		}
	}
	return false
}

// Condition returns a copy of the pod's condition of this type, or nil.
func Condition(p *v1.Pod, t v1.PodConditionType) *v1.PodCondition {
	i := slices.IndexFunc(p.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == t })
	if i < 0 {
		return nil
	}
	return p.Status.Conditions[i].DeepCopy()
}

// NewCondition makes a resize condition, or returns old if nothing has changed. LastTransitionTime
// changes only with the reason.
func NewCondition(t v1.PodConditionType, old *v1.PodCondition, reason, message string, generation int64, now time.Time) *v1.PodCondition {
	at := metav1.NewTime(now)
	c := &v1.PodCondition{Type: t, Status: v1.ConditionTrue, Reason: reason, Message: message, ObservedGeneration: generation,
		LastProbeTime: at, LastTransitionTime: at}
	if old != nil && old.Reason == reason {
		if old.Message == message && old.ObservedGeneration == generation {
			return old
		}
		c.LastTransitionTime = old.LastTransitionTime
	}
	return c
}

// Message is the text of an event about a resize, with the resources that the pod asks for.
func Message(what string, p *v1.Pod, generation int64, problem string) string {
	type resources struct {
		Name      string                  `json:"name"`
		Resources v1.ResourceRequirements `json:"resources,omitempty"`
	}
	list := func(containers []v1.Container) (out []resources) {
		for i := range containers {
			out = append(out, resources{containers[i].Name, containers[i].Resources})
		}
		return out
	}
	b, err := json.Marshal(struct {
		InitContainers []resources `json:"initContainers,omitempty"`
		Containers     []resources `json:"containers,omitempty"`
		Generation     int64       `json:"generation"`
		Error          string      `json:"error,omitempty"`
	}{list(p.Spec.InitContainers), list(p.Spec.Containers), generation, problem})
	if err != nil {
		return what
	}
	return what + ": " + string(b)
}
