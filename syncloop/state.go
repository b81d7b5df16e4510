package syncloop

import (
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/pod"
)

// PodState is the published state of a pod's worker. The zero value means that the pod has no
// worker: the worker has not started yet, or it has ended.
type PodState struct {
	Managed bool // the pod has a worker
	Static  bool
	Phase   pod.Phase
	// VolumesReleased means that the pod's volumes are unmounted and their directories removed.
	VolumesReleased bool
	// Status is the last generated status, or nil. It is replaced and never changed.
	Status *v1.PodStatus
}

// Ended reports whether nothing of the pod runs or will run again, as far as its worker knows.
func (s PodState) Ended() bool { return !s.Managed || s.Phase >= pod.Terminated }

// Released reports whether the pod has ended and its volumes are released.
func (s PodState) Released() bool {
	return !s.Managed || s.Phase >= pod.Terminated && s.VolumesReleased
}

// Ending reports whether the worker is ending the pod, or has ended it.
func (s PodState) Ending() bool { return s.Managed && s.Phase > pod.Syncing }

// Over reports whether p, the pod of this state as its source has it, has ended and has no worker:
// nothing is left to do until it is deleted, and its containers are kept for their logs.
func (s PodState) Over(p *v1.Pod) bool {
	return !s.Managed && pod.Terminal(p.Status.Phase) && p.DeletionTimestamp == nil
}

// Alive reports whether the pod has a status, has not ended and is not ending.
func (s PodState) Alive() bool {
	return s.Managed && s.Phase == pod.Syncing && s.Status != nil &&
		(s.Status.Phase == v1.PodPending || s.Status.Phase == v1.PodRunning)
}

// State returns the published state of a pod's worker.
func (l *Loop) State(uid types.UID) PodState {
	w := l.worker(uid)
	if w == nil {
		return PodState{}
	}
	w.pub.mu.Lock()
	defer w.pub.mu.Unlock()
	return PodState{Managed: true, Static: w.static, Phase: w.pub.phase, VolumesReleased: w.pub.released, Status: w.pub.status}
}

// Work is what a worker does, for the metrics.
type Work struct {
	Phase  pod.Phase
	Static bool
	// Sourced: a source has the pod. Orphan: none had it when its worker began.
	Sourced, Orphan bool
}

// Working counts the workers by what they do.
func (l *Loop) Working() map[Work]int {
	l.mu.Lock()
	all := slices.Collect(maps.Values(l.workers))
	l.mu.Unlock()
	out := map[Work]int{}
	for _, w := range all {
		w.pub.mu.Lock()
		work := Work{Phase: w.pub.phase, Static: w.static, Orphan: w.pub.orphan}
		w.pub.mu.Unlock()
		work.Sourced = !work.Orphan && l.cfg.Sources.Get(w.ref.UID) != nil
		out[work]++
	}
	return out
}

// worker returns the pod's worker, or nil.
func (l *Loop) worker(uid types.UID) *worker {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.workers[uid]
}
