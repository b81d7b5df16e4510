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

// resizeState is what a worker knows about the allocation of its pod.
type resizeState struct {
	known    bool   // the allocation has been recovered
	given    string // the allocation, serialized
	accepted int64  // generation of the last accepted resize
	pending  *v1.PodCondition
	progress *v1.PodCondition
}

// conditions returns the resize conditions of the pod's status.
func (r *resizeState) conditions() []v1.PodCondition {
	var out []v1.PodCondition
	for _, c := range []*v1.PodCondition{r.pending, r.progress} {
		if c != nil {
			out = append(out, *c)
		}
	}
	return out
}

// allot passes the source's pod to the allocations, which judge a requested resize, and sets w.pod
// to the pod with its allocation. The allocation of a pod that an earlier process started is
// recovered when the worker first sees what is on the host.
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
		w.ledger = plan.Resized(w.ledger, sizes(w.api, &o, found), found.cgroups)
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
	if a.given != r.given {
		w.ledger = plan.ResizeChanged(w.ledger)
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

// sizes returns, by container ID, the sizes that differ from the ones the containers were made
// with. A container whose annotation has no size counts as having its pod's allocation.
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

// watchResize maintains the PodResizeInProgress condition of an accepted resize until it is done.
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
		if b := w.ledger.Backoff(plan.ResizeKey); b.Failures > 0 {
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
