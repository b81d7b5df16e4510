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
			p.Status = r.Entries[last].Pod.Status
			r.Entries[i].Pod = &p
		}
	}
	return r
}

// runs reports whether a status shows each container running.
func runs(s *v1.PodStatus) bool {
	return len(s.ContainerStatuses) > 0 && !slices.ContainsFunc(s.ContainerStatuses, func(c v1.ContainerStatus) bool { return c.State.Running == nil })
}
