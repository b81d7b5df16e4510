package twin

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

// A kubelet that stops a static pod deletes its mirror pod at the next look for orphans. If it looks before
// the containers have ended, the mirror pod keeps the status of a running pod. Which comes first differs
// from run to run, and Bowline always writes a last status. LeftRunning and AsLeft let the rest of such
// timelines be compared.

// LeftRunning reports whether the last status of a static pod shows each of its containers running.
func LeftRunning(r Recording) bool {
	i := lastPod(r)
	return i >= 0 && runs(&r.Entries[i].Pod.Status)
}

// AsLeft returns the recording of a static pod as if its node had written no status after the last one that
// shows each container running.
func AsLeft(r Recording) Recording {
	r.Entries = slices.Clone(r.Entries)
	var last *v1.PodStatus
	for i, e := range r.Entries {
		switch {
		case e.Pod == nil:
		case runs(&e.Pod.Status):
			last = &e.Pod.Status
		case last != nil:
			p := *e.Pod
			p.Status = *last
			r.Entries[i].Pod = &p
		}
	}
	return r
}

// lastPod is the index of the last version of the pod, or -1.
func lastPod(r Recording) int {
	for i, e := range slices.Backward(r.Entries) {
		if e.Pod != nil {
			return i
		}
	}
	return -1
}

func runs(s *v1.PodStatus) bool {
	return len(s.ContainerStatuses) > 0 && !slices.ContainsFunc(s.ContainerStatuses, func(c v1.ContainerStatus) bool { return c.State.Running == nil })
}
