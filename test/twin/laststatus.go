package twin

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

// A kubelet deletes the mirror pod of a removed static pod at its next check for orphans. If the containers
// have not ended by then, the mirror pod keeps the status of a running pod. Which comes first differs from
// run to run. Bowline always writes a last status. LeftRunning and AsLeft let the rest of such timelines be
// compared.

// LeftRunning reports whether the last status of a static pod shows each of its containers running.
func LeftRunning(r Recording) bool {
	for _, e := range slices.Backward(r.Entries) {
		if e.Pod != nil {
			return runs(&e.Pod.Status)
		}
	}
	return false
}

// AsLeft returns the recording of a static pod as if its node had written no status after the last one that
// shows each container running.
func AsLeft(r Recording) Recording {
	return keepLastRunning(r, func(p *v1.Pod, running v1.PodStatus) { p.Status = running })
}

// keepLastRunning returns the recording with each version of the pod changed that follows the last one that
// shows each container running. change gets a copy, and the status of that one.
func keepLastRunning(r Recording, change func(p *v1.Pod, running v1.PodStatus)) Recording {
	r.Entries = slices.Clone(r.Entries)
	last := -1
	for i, e := range r.Entries {
		if e.Pod != nil && runs(&e.Pod.Status) {
			last = i
		}
	}
	if last < 0 {
		return r
	}
	for i, e := range r.Entries {
		if e.Pod != nil && i > last {
			p := *e.Pod
			change(&p, r.Entries[last].Pod.Status)
			r.Entries[i].Pod = &p
		}
	}
	return r
}

// runs reports whether a status shows each container running.
func runs(s *v1.PodStatus) bool {
	return len(s.ContainerStatuses) > 0 && !slices.ContainsFunc(s.ContainerStatuses, func(c v1.ContainerStatus) bool { return c.State.Running == nil })
}

// A kubelet that evicts a pod may remove the containers before it writes the pod's last status. It then no
// longer knows how they ended: the status has ContainerStatusUnknown, exit code 137, and one restart too many.
// Whether that happens differs from run to run. Bowline always reports how they ended. LostContainer and
// WithoutEnds let the rest of such timelines be compared.

// LostContainer reports whether a status says that the node no longer knows how a container ended.
func LostContainer(r Recording) bool {
	lost := func(s v1.ContainerState) bool {
		return s.Terminated != nil && s.Terminated.Reason == "ContainerStatusUnknown"
	}
	return slices.ContainsFunc(r.Entries, func(e Entry) bool {
		return e.Pod != nil && slices.ContainsFunc(e.Pod.Status.ContainerStatuses, func(c v1.ContainerStatus) bool {
			return lost(c.State) || lost(c.LastTerminationState)
		})
	})
}

// WithoutEnds returns the recording as if the containers of its pod had kept the statuses of the last
// version that shows each of them running.
func WithoutEnds(r Recording) Recording {
	return keepLastRunning(r, func(p *v1.Pod, running v1.PodStatus) { p.Status.ContainerStatuses = running.ContainerStatuses })
}
