package spec

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	helper "k8s.io/component-helpers/resource"

	"github.com/bowline-k8s/bowline/pod"
)

const (
	oomGuaranteed = -997
	oomBestEffort = 1000
)

// OOMScoreAdj says how early the kernel kills the container when memory runs out: a Guaranteed one
// late, a BestEffort one first, and a Burstable one by the share of the host's memory that it did
// not request.
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
	switch pod.QOSClass(p) {
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
		// A sidecar must not be killed before the containers that it serves.
		score = min(score, 1000-1000*(smallestMemoryRequest(p)+extra)/capacity)
	}
	return min(max(score, 1000+oomGuaranteed), oomBestEffort-1)
}

// spareMemoryRequest returns each container's share of the memory that the pod-level request has
// beyond the sum of its containers.
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

func isSidecar(p *v1.Pod, c *v1.Container) bool {
	return pod.Sidecar(c) && pod.IsInit(&p.Spec, c.Name)
}

// nodeCritical reports whether the pod has the priority class system-node-critical. As anyone can
// write the class's name alone, the pod must also have its priority or be a static pod.
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
