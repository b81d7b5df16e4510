package syncloop

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/allocation"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

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
