package spec

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	helper "k8s.io/component-helpers/resource"
)

// QOSClass is the pod's quality-of-service class: what the API server has
// recorded, else computed from the spec.
func QOSClass(p *v1.Pod) v1.PodQOSClass {
	if p.Status.QOSClass != "" {
		return p.Status.QOSClass
	}
	return ComputeQOSClass(p)
}

// ComputeQOSClass computes the class from CPU and memory requests and limits of
// the pod, if it has its own, else of its init and normal containers:
// Guaranteed if all are set and equal, BestEffort if none is set, else Burstable.
func ComputeQOSClass(p *v1.Pod) v1.PodQOSClass {
	if helper.IsPodLevelResourcesSet(p) {
		return classOf(p.Spec.Resources.Requests, p.Spec.Resources.Limits)
	}
	class := v1.PodQOSClass("")
	for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			r := &list[i].Resources
			class = mix(class, classOf(r.Requests, r.Limits))
		}
	}
	if class == "" {
		return v1.PodQOSBestEffort
	}
	return class
}

func classOf(requests, limits v1.ResourceList) v1.PodQOSClass {
	class := v1.PodQOSClass("")
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
		request, limit := requests[name], limits[name]
		one := v1.PodQOSGuaranteed
		switch {
		case !request.Equal(limit):
			one = v1.PodQOSBurstable
		case request.IsZero():
			one = v1.PodQOSBestEffort
		}
		class = mix(class, one)
	}
	return class
}

// mix keeps a class that all agree on.
func mix(a, b v1.PodQOSClass) v1.PodQOSClass {
	if a == "" || a == b {
		return b
	}
	return v1.PodQOSBurstable
}

const (
	oomGuaranteed = -997
	oomBestEffort = 1000
)

// OOMScoreAdj is how readily the kernel kills the container when memory runs
// out: a Guaranteed one late, a BestEffort one first, and a Burstable one by
// the share of the machine's memory that it did not ask for.
func OOMScoreAdj(p *v1.Pod, c *v1.Container, m Machine) int64 {
	score := oomScore(p, c, m.MemoryBytes)
	if score < 0 && !m.CanLowerOOMScore {
		return 0
	}
	return score
}

func oomScore(p *v1.Pod, c *v1.Container, capacity int64) int64 {
	if nodeCritical(p) {
		return oomGuaranteed
	}
	switch QOSClass(p) {
	case v1.PodQOSGuaranteed:
		return oomGuaranteed
	case v1.PodQOSBestEffort:
		return oomBestEffort
	}
	if capacity <= 0 {
		return oomBestEffort - 1
	}
	extra := spareMemoryRequest(p)
	score := 1000 - 1000*(c.Resources.Requests.Memory().Value()+extra)/capacity
	if isSidecar(p, c) {
		// A sidecar must not go before the containers that it serves.
		score = min(score, 1000-1000*(smallestMemoryRequest(p)+extra)/capacity)
	}
	return min(max(score, 1000+oomGuaranteed), oomBestEffort-1)
}

// spareMemoryRequest is each container's share of the memory that the pod as a
// whole requests beyond the sum of its containers.
func spareMemoryRequest(p *v1.Pod) int64 {
	count := int64(len(p.Spec.Containers) + len(p.Spec.InitContainers))
	if !helper.IsPodLevelRequestsSet(p) || count == 0 {
		return 0
	}
	parts := helper.AggregateContainerRequests(p, helper.PodResourcesOptions{})
	return max(p.Spec.Resources.Requests.Memory().Value()-parts.Memory().Value(), 0) / count
}

func smallestMemoryRequest(p *v1.Pod) int64 {
	least := int64(0)
	for i := range p.Spec.Containers {
		request := p.Spec.Containers[i].Resources.Requests.Memory().Value()
		if i == 0 || request < least {
			least = request
		}
	}
	return least
}

func alwaysRestarts(c *v1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways
}

func isSidecar(p *v1.Pod, c *v1.Container) bool {
	if !alwaysRestarts(c) {
		return false
	}
	for i := range p.Spec.InitContainers {
		if p.Spec.InitContainers[i].Name == c.Name {
			return true
		}
	}
	return false
}

// nodeCritical: the pod has the priority class system-node-critical in truth (a
// class's name alone is anyone's to write) or by being a static pod.
func nodeCritical(p *v1.Pod) bool {
	const systemCritical = 2 * 1000000000
	if p.Spec.PriorityClassName != "system-node-critical" {
		return false
	}
	if source := p.Annotations["kubernetes.io/config.source"]; source != "" && !strings.EqualFold(source, "api") {
		return true
	}
	if _, mirror := p.Annotations["kubernetes.io/config.mirror"]; mirror {
		return true
	}
	return p.Spec.Priority != nil && *p.Spec.Priority >= systemCritical
}
