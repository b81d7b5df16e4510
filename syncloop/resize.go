package syncloop

import (
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/allot"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

// resizeState is what a worker knows of the resources of its pod.
type resizeState struct {
	known    bool   // what the pod was given has been found
	given    string // what it is, written down
	accepted int64  // generation of the resize that was accepted last
	pending  *v1.PodCondition
	progress *v1.PodCondition
}

// conditions are what the pod's status tells of resizes.
func (r *resizeState) conditions() []v1.PodCondition {
	var out []v1.PodCondition
	for _, c := range []*v1.PodCondition{r.pending, r.progress} {
		if c != nil {
			out = append(out, *c)
		}
	}
	return out
}

// allot has the pod judged as its source has it now: w.pod is the pod with what it
// was given. What a pod that was here before us was given is found at the first
// sight of the machine.
func (w *worker) allot(now time.Time) {
	l, r := w.loop, &w.resize
	var first *recovered
	if !r.known {
		o := l.cfg.PLEG.Cache().Get(w.ref.UID)
		if o.Stale != "" || o.Seq == 0 || !l.allocations.known() {
			w.pod = w.api
			return
		}
		found := l.allocations.recover(w.api, &o)
		first, r.known = &found, true
		w.ledger.Cgroups, w.ledger.Sized = found.cgroups, sizes(w.api, &o, found)
		for i := range w.api.Status.Conditions {
			if c := &w.api.Status.Conditions[i]; c.Type == v1.PodResizeInProgress {
				r.progress = c.DeepCopy()
			}
		}
	}
	a := l.allocations.allot(w.api, first, now)
	if w.phase >= pod.Terminated {
		l.allocations.end(w.ref.UID)
	}
	if a.given != r.given && w.ledger.Backoff[plan.ResizeKey].Of == plan.OpResize {
		w.ledger.Backoff = maps.Clone(w.ledger.Backoff)
		delete(w.ledger.Backoff, plan.ResizeKey) // what failed is not wanted any more
	}
	w.pod, r.given, r.pending = a.pod, a.given, a.pending
	if a.accepted != r.accepted {
		r.accepted = a.accepted
		r.progress = resizeCondition(v1.PodResizeInProgress, nil, "", "", a.accepted, now)
	}
	for _, n := range a.news {
		l.event(w.pod, "", n.kind, n.reason, n.message)
	}
	l.preempt(a.preempt, now)
}

// sizes are the containers whose size is not the one that they were made with, or
// whose annotation does not tell it: such a one has what its pod was given.
func sizes(p *v1.Pod, o *pod.Observed, found recovered) map[string]pod.Size {
	out := maps.Clone(found.sized)
	given := found.allocation.Apply(p)
	for i := range o.Containers {
		c := &o.Containers[i]
		if _, ok := out[c.ID]; ok || c.Size != nil || c.State != pod.StateRunning {
			continue
		}
		if s := resizable(given, c.Name); s != nil {
			if out == nil {
				out = map[string]pod.Size{}
			}
			out[c.ID] = pod.SizeOf(&given.Spec, s)
		}
	}
	return out
}

// watchResize keeps the condition of a resize that was accepted and is not done.
func (w *worker) watchResize(now time.Time, in plan.Input) {
	if in.Observed.Stale != "" || in.Observed.Seq < w.needSeq {
		return
	}
	r := &w.resize
	in.Ledger = w.ledger
	switch {
	case w.phase != pod.Syncing:
		r.pending, r.progress = nil, nil
	case plan.Resizing(in):
		generation, reason, message := w.pod.Generation, "", ""
		if c := r.progress; c != nil {
			generation, reason, message = c.ObservedGeneration, c.Reason, c.Message
		}
		if b := w.ledger.Backoff[plan.ResizeKey]; b.Failures > 0 {
			reason, message = v1.PodReasonError, b.Message
		}
		next := resizeCondition(v1.PodResizeInProgress, r.progress, reason, message, generation, now)
		if reason != "" && (r.progress == nil || r.progress.Reason != reason || r.progress.Message != message) {
			w.loop.event(w.pod, "", v1.EventTypeWarning, "ResizeError", allot.Message("Pod resize error", w.pod, generation, message))
		}
		r.progress = next
	case r.progress != nil:
		w.loop.event(w.pod, "", v1.EventTypeNormal, "ResizeCompleted", allot.Message("Pod resize completed", w.pod, r.progress.ObservedGeneration, ""))
		r.progress = nil
	}
}

// resized is what was observed, with the resources of containers that were resized in
// place as the resize left them: their state has not changed, so that nobody has
// looked at them again.
func resized(o pod.Observed, sized map[string]pod.Size) pod.Observed {
	copied := false
	for i := range o.Containers {
		s, ok := sized[o.Containers[i].ID]
		if !ok || s.CPULimit < 0 || s.MemoryLimit < 0 {
			continue // nobody knows
		}
		if !copied {
			o.Containers, copied = slices.Clone(o.Containers), true
		}
		o.Containers[i].Resources = &s
	}
	return o
}
