package syncloop

import (
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/admit"
	"github.com/bowline-k8s/bowline/syncloop/allocation"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

// ask sends a pod to the allocation manager if the pod is new, or if a decision about it is pending.
// It reports whether the worker has the answer for the newest version of the pod. Without that
// answer, a worker may only end the pod.
func (w *worker) ask() bool {
	switch {
	case w.asked.pod != w.api:
		w.asked.pod, w.asked.version = w.api, w.loop.allocation.Ask(w.api)
	case !w.answer.Complete():
		w.loop.allocation.Ask(w.api)
	}
	if w.answer.Version >= w.asked.version {
		return true
	}
	if w.term == nil || w.answer.Version == 0 {
		return false
	}
	w.takeDeletion()
	return true
}

// takeDeletion marks the pod as deleted if the API server's object is. A pod that ends does not wait
// for its allocation, and the object is deleted at last only if the pod shows that a user asked for
// that.
func (w *worker) takeDeletion() {
	if w.api.DeletionTimestamp == nil || w.pod.DeletionTimestamp != nil {
		return
	}
	w.pod = w.pod.DeepCopy()
	w.pod.DeletionTimestamp, w.pod.DeletionGracePeriodSeconds = w.api.DeletionTimestamp, w.api.DeletionGracePeriodSeconds
}

// answered takes an answer of the allocation manager, unless it is for an older pod or for a former
// life of the UID.
func (w *worker) answered(a *allocation.Answer, now time.Time) {
	if a == nil || w.asked.pod == nil || a.Version < w.asked.version {
		return
	}
	was := w.answer
	w.answer, w.pod = *a, a.Pod
	w.publishAllocated()
	if was.Preempted.IsZero() && !a.Preempted.IsZero() {
		w.term = plan.Merge(w.term, &plan.Terminate{At: a.Preempted, Grace: graceOf(w.pod), Cause: plan.CauseEvicted,
			Reason: allocation.ReasonPreempting, Message: allocation.MessagePreempting, Disruption: allocation.TargetPreempting})
	}
	if r := a.Restored; r != was.Restored {
		var cgroups map[string]plan.Cgroup
		if r.Sandbox != "" {
			cgroups = map[string]plan.Cgroup{r.Sandbox: {Allocated: r.Cgroup, Unsure: r.Unsure}}
		}
		w.ledger = plan.Resized(w.ledger, r.Sized, cgroups)
		w.progress = allocation.Condition(w.api, v1.PodResizeInProgress)
	}
	if a.Allocated != was.Allocated {
		w.ledger = plan.ResizeChanged(w.ledger)
	}
	if a.Accepted != was.Accepted {
		w.progress = allocation.NewCondition(v1.PodResizeInProgress, nil, "", "", a.Accepted, now)
	}
}

// publishAllocated publishes the pod with its allocation, unless the node has not admitted it.
func (w *worker) publishAllocated() {
	w.pub.mu.Lock()
	defer w.pub.mu.Unlock()
	w.pub.allocated = nil
	if w.answer.Decided && w.answer.Rejection == nil && w.answer.Allocated != "" {
		w.pub.allocated = w.answer.Pod
	}
}

// hold returns why the pod, as observed in o, may not start anything now, or "". admit adds what the
// allocation manager has to decide first.
func (w *worker) hold(o *pod.Observed) string {
	if reason := w.loop.health.unready(w.pod.Spec.HostNetwork); reason != "" {
		return reason
	}
	if pod.HasUserNamespace(w.pod) && usersOf(o) == nil && !w.loop.cfg.PLEG.Whole() {
		// It has no range yet, and a range that looks free may belong to a sandbox that has not
		// been inspected.
		return "the user ranges of the running pods are not known yet"
	}
	if w.static {
		if other := w.loop.predecessor(w); other != "" {
			return fmt.Sprintf("another static pod of this name (%s) has not ended", other)
		}
	}
	if w.answer.Allocated == "" {
		return "the pod's allocated resources are not known yet"
	}
	return ""
}

// admit applies the allocation manager's decision before the planner runs. The decision takes effect
// with the worker's first observation: a stricter policy or a changed node does not reject a pod that
// already runs there. Ephemeral containers are admitted as they are added.
func (w *worker) admit(in *plan.Input) {
	if !in.Observed.Fresh() {
		return
	}
	switch r := w.answer.Rejection; {
	case w.admitted:
	case w.term != nil, w.phase != pod.Syncing, in.Observed.Exists():
		w.admitted = true
	case !w.answer.Decided:
		in.Hold = "the node has not decided yet whether it admits the pod"
		return
	default:
		w.admitted = true
		if r == nil {
			w.loop.cfg.Metrics.admit(w.pod)
		} else {
			w.term = w.loop.rejected(w.pod, r, in.Now)
		}
	}
	if w.answer.Waits {
		in.Hold = "the preempted pods have not stopped yet"
	}
	w.refuseEphemeral(in.Observed)
	in.Terminate, in.Pod = w.term, w.allowed()
}

// AllowVolume checks the PersistentVolume behind a volume of the pod against the owner's policy; it
// is volume.Config.Allow. has means that the pod already uses this very PersistentVolume. Its
// containers then keep it, since a stricter policy ends nothing that runs. The exemption does not
// cover another PersistentVolume of the same name.
func (l *Loop) AllowVolume(p *v1.Pod, volume string, pv *v1.PersistentVolume, has bool) error {
	r := admit.Volume(volume, pv, l.cfg.Policy)
	if r == nil || has && len(l.cfg.PLEG.Cache().Get(p.UID).Containers) > 0 {
		return nil
	}
	return r
}

// reject ends a pod whose volumes turn out to violate the policy while they are set up. If one of
// its containers runs, that container keeps running and new ones wait.
func (l *Loop) reject(p *v1.Pod, r *admit.Rejection) {
	if slices.ContainsFunc(l.cfg.PLEG.Cache().Get(p.UID).Containers, func(c pod.Container) bool { return c.State == pod.StateRunning }) {
		return
	}
	l.End(p.UID, *l.rejected(p, r, time.Now()))
}

// rejected records the event of a rejection, and returns the request to end the pod.
func (l *Loop) rejected(p *v1.Pod, r *admit.Rejection, now time.Time) *plan.Terminate {
	l.event(p, "", v1.EventTypeWarning, r.Reason, r.Message)
	l.cfg.Metrics.reject(r.Reason)
	return &plan.Terminate{At: now, Grace: graceOf(p), Cause: plan.CauseRejected, Reason: r.Reason, Message: "Pod was rejected: " + r.Message}
}

// End asks the pod's worker to end the pod for the node's own reasons, such as eviction. It changes
// nothing for a pod that has ended by itself.
func (l *Loop) End(uid types.UID, t plan.Terminate) {
	l.mail(uid, func(m *mail) { m.terminate = plan.Merge(m.terminate, &t) })
}

// Active returns the pods that have something on the host and have not ended. It returns nil until
// the API source has delivered its first list.
func (l *Loop) Active() []*v1.Pod {
	if !l.cfg.Sources.SeenBy(pod.SourceAPI) {
		return nil
	}
	return slices.DeleteFunc(l.Unended(), func(p *v1.Pod) bool {
		o := l.cfg.PLEG.Cache().Get(p.UID)
		return !o.Exists()
	})
}

// refuseEphemeral records the ephemeral containers that violate the policy, or that are too many. One
// that has started was admitted by an earlier policy and stays.
func (w *worker) refuseEphemeral(o pod.Observed) {
	for i := range w.pod.Spec.EphemeralContainers {
		name := w.pod.Spec.EphemeralContainers[i].Name
		if _, known := w.refused[name]; known {
			continue
		}
		if c := o.Newest(name); c != nil && c.State != pod.StateCreated {
			continue
		}
		r := admit.Ephemeral(w.pod, name, w.loop.cfg.Policy)
		if r == nil {
			r = admit.Addition(w.pod, name, w.loop.Active(), w.loop.room())
		}
		if r == nil {
			continue
		}
		if w.refused == nil {
			w.refused = map[string]admit.Rejection{}
		}
		w.refused[name] = *r
		w.loop.event(w.pod, name, v1.EventTypeWarning, r.Reason, r.Message)
	}
}

// room is how many pods the node takes; 0: not known.
func (l *Loop) room() int64 {
	if l.cfg.Allocatable == nil {
		return 0
	}
	most := l.cfg.Allocatable()[v1.ResourcePods]
	return most.Value()
}

// allowed returns the pod without its refused ephemeral containers. The planner and the operations
// use it; the status covers all containers.
func (w *worker) allowed() *v1.Pod {
	if len(w.refused) == 0 {
		return w.pod
	}
	p := *w.pod // shallow: only the list is replaced
	p.Spec.EphemeralContainers = slices.DeleteFunc(slices.Clone(p.Spec.EphemeralContainers), func(c v1.EphemeralContainer) bool {
		_, is := w.refused[c.Name]
		return is
	})
	return &p
}
