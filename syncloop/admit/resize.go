package admit

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	helper "k8s.io/component-helpers/resource"
)

// FitsResized checks whether p, at the size that it asks for, fits with the others at their
// allocation. It reports the first resource that is short, in a kubelet's order and words.
func FitsResized(p *v1.Pod, others []*v1.Pod, allocatable v1.ResourceList) *Rejection {
	requests, used := helper.PodRequests(p, helper.PodResourcesOptions{}), requested(others, helper.PodResourcesOptions{})
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
		s := shortage{name, amount(name, requests[name]), amount(name, used[name]), amount(name, allocatable[name])}
		if _, known := allocatable[name]; known && s.requested > 0 && s.missing() > 0 {
			return s.rejection()
		}
	}
	return nil
}

// Candidate is a pod with a pending resize.
type Candidate struct {
	Wanted, Given *v1.Pod
	Class         v1.PodQOSClass
	Since         metav1.Time // when its resize became pending
}

// Before orders pending resizes: first those that do not grow, then by higher priority, then
// Guaranteed pods, then by longer wait.
func Before(a, b Candidate) int {
	if x, y := a.grows(), b.grows(); x != y {
		return precedes(!x)
	}
	if x, y := priority(a.Wanted), priority(b.Wanted); x != y {
		return precedes(x > y)
	}
	if x, y := a.Class == v1.PodQOSGuaranteed, b.Class == v1.PodQOSGuaranteed; x != y {
		return precedes(x)
	}
	return a.Since.Compare(b.Since.Time)
}

func precedes(first bool) int {
	if first {
		return -1
	}
	return 1
}

func (c Candidate) grows() bool { return Less(c.Given, c.Wanted) }

// Less reports whether a requests less CPU or memory than b.
func Less(a, b *v1.Pod) bool {
	x, y := helper.PodRequests(a, helper.PodResourcesOptions{}), helper.PodRequests(b, helper.PodResourcesOptions{})
	return x.Cpu().Cmp(*y.Cpu()) < 0 || x.Memory().Cmp(*y.Memory()) < 0
}

func priority(p *v1.Pod) int32 {
	if p.Spec.Priority == nil {
		return 0
	}
	return *p.Spec.Priority
}
