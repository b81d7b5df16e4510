package statuswriter

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// minor reports whether the wanted status changes only parts that nothing acts on while the pod
// starts or ends: addresses and sandbox condition, which matter only together with the containers;
// waiting messages; and the observed generation.
func (w *Writer) minor(e *entry) bool {
	if e.wanted == nil || e.object.rv == "" || e.final != nil {
		return false
	}
	m := w.merged(e)
	return m.changes && pod.Equal(significant(m.status), significant(e.object.status))
}

// significant returns a status without its minor parts.
func significant(st v1.PodStatus) v1.PodStatus {
	st.PodIP, st.PodIPs, st.ObservedGeneration = "", nil, 0
	conditions := make([]v1.PodCondition, 0, len(st.Conditions))
	for _, c := range st.Conditions {
		if c.Type != v1.PodReadyToStartContainers {
			c.ObservedGeneration = 0
			conditions = append(conditions, c)
		}
	}
	st.Conditions = conditions
	st.InitContainerStatuses, st.ContainerStatuses = withoutMessages(st.InitContainerStatuses), withoutMessages(st.ContainerStatuses)
	return st
}

// withoutMessages returns statuses without waiting messages.
func withoutMessages(list []v1.ContainerStatus) []v1.ContainerStatus {
	out := slices.Clone(list)
	for i := range out {
		if wait := out[i].State.Waiting; wait != nil {
			out[i].State.Waiting = &v1.ContainerStateWaiting{Reason: wait.Reason}
		}
	}
	return out
}
