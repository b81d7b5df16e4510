package syncloop

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/allocation"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

// ask asks the allocation manager about a pod that is new, or on which it has not decided all. It
// reports whether the worker has the answer for the newest pod. A worker decides on no other one,
// except to end.
func (w *worker) ask() bool {
	switch {
	case w.asked.pod != w.api:
		w.asked.pod, w.asked.version = w.api, w.loop.allocation.Ask(w.api)
	case !w.answer.Complete():
		w.loop.allocation.Ask(w.api)
	}
	return w.answer.Version >= w.asked.version || w.term != nil && w.answer.Version > 0
}

// answered takes an answer of the allocation manager, unless it is for an older pod or for a former
// life of the UID.
func (w *worker) answered(a *allocation.Answer, now time.Time) {
	if a == nil || w.asked.pod == nil || a.Version < w.asked.version {
		return
	}
	was := w.answer
	w.answer, w.pod = *a, a.Pod
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

// resizeConditions returns the resize conditions of the pod's status.
func (w *worker) resizeConditions() []v1.PodCondition {
	var out []v1.PodCondition
	if c := w.answer.Pending; c != nil && w.phase == pod.Syncing {
		out = append(out, *c)
	}
	if w.progress != nil {
		out = append(out, *w.progress)
	}
	return out
}

// watchResize maintains the PodResizeInProgress condition of an accepted resize until it is done.
func (w *worker) watchResize(now time.Time, in plan.Input) {
	if in.Observed.Stale != "" || in.Observed.Seq < w.needSeq {
		return
	}
	in.Ledger = w.ledger
	switch {
	case w.phase != pod.Syncing:
		w.progress = nil
	case plan.Resizing(in):
		generation, reason, message := w.pod.Generation, "", ""
		if c := w.progress; c != nil {
			generation, reason, message = c.ObservedGeneration, c.Reason, c.Message
		}
		if b := w.ledger.Backoff(plan.ResizeKey); b.Failures > 0 {
			reason, message = v1.PodReasonError, b.Message
		}
		next := allocation.NewCondition(v1.PodResizeInProgress, w.progress, reason, message, generation, now)
		if reason != "" && (w.progress == nil || w.progress.Reason != reason || w.progress.Message != message) {
			w.loop.event(w.pod, "", v1.EventTypeWarning, "ResizeError", allocation.Message("Pod resize error", w.pod, generation, message))
		}
		w.progress = next
	case w.progress != nil:
		w.loop.event(w.pod, "", v1.EventTypeNormal, "ResizeCompleted", allocation.Message("Pod resize completed", w.pod, w.progress.ObservedGeneration, ""))
		w.progress = nil
	}
}

// resized returns the observation with the resources that an in-place resize gave to containers.
// Their state has not changed, so the PLEG has not inspected them again.
func resized(o pod.Observed, l *plan.Ledger) pod.Observed {
	copied := false
	for i := range o.Containers {
		s := l.Containers[o.Containers[i].ID].Size
		if s == nil || s.CPULimit < 0 || s.MemoryLimit < 0 {
			continue // unknown
		}
		if !copied {
			o.Containers, copied = slices.Clone(o.Containers), true
		}
		o.Containers[i].Resources = s
	}
	return o
}
