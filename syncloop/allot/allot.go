// Package allot decides on pod resizes: whether a resize fits with the allocations of the other
// pods on the node, which pending resize comes first, and what events say. It is pure.
package allot

import (
	"encoding/json"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	helper "k8s.io/component-helpers/resource"
)

// Verdict is the result for a resize. The zero value allows it.
type Verdict struct {
	Reason  string // v1.PodReasonDeferred or v1.PodReasonInfeasible, for the pod's condition
	Short   string // for the event: OutOf and the name of the resource that is short
	Message string
}

// Fits checks whether p, at the size that it asks for, fits with the others at their allocation. It
// reports the first resource that is short, in a kubelet's order and words.
func Fits(p *v1.Pod, others []*v1.Pod, allocatable v1.ResourceList) Verdict {
	want := helper.PodRequests(p, helper.PodResourcesOptions{})
	used := map[v1.ResourceName]int64{}
	for _, o := range others {
		for name, q := range helper.PodRequests(o, helper.PodResourcesOptions{}) {
			used[name] += amount(name, q.MilliValue(), q.Value())
		}
	}
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
		capacity, known := allocatable[name]
		asked := want[name]
		n, all := amount(name, asked.MilliValue(), asked.Value()), amount(name, capacity.MilliValue(), capacity.Value())
		if known && n > 0 && n > all-used[name] {
			return Verdict{v1.PodReasonDeferred, "OutOf" + string(name), fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d",
				name, n, used[name], all)}
		}
	}
	return Verdict{}
}

// amount is a quantity in the unit that it is counted in: millicores of CPU, else the base unit.
func amount(name v1.ResourceName, milli, whole int64) int64 {
	if name == v1.ResourceCPU {
		return milli
	}
	return whole
}

// Candidate is a pod with a pending resize.
type Candidate struct {
	Wanted, Given *v1.Pod
	Class         v1.PodQOSClass
	Since         time.Time // when its resize became pending
}

// Before orders pending resizes: first those that do not grow, then by higher priority, then
// Guaranteed pods, then by longer wait.
func Before(a, b Candidate) int {
	if x, y := a.grows(), b.grows(); x != y {
		return order(!x)
	}
	if x, y := priority(a.Wanted), priority(b.Wanted); x != y {
		return order(x > y)
	}
	if x, y := a.Class == v1.PodQOSGuaranteed, b.Class == v1.PodQOSGuaranteed; x != y {
		return order(x)
	}
	return a.Since.Compare(b.Since)
}

func order(first bool) int {
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

// Message is the text of an event about a resize, with the resources that the pod asks for.
func Message(what string, p *v1.Pod, generation int64, problem string) string {
	type resources struct {
		Name      string                  `json:"name"`
		Resources v1.ResourceRequirements `json:"resources,omitempty"`
	}
	var summary struct {
		InitContainers []resources `json:"initContainers,omitempty"`
		Containers     []resources `json:"containers,omitempty"`
		Generation     int64       `json:"generation"`
		Error          string      `json:"error,omitempty"`
	}
	for i := range p.Spec.InitContainers {
		summary.InitContainers = append(summary.InitContainers, resources{p.Spec.InitContainers[i].Name, p.Spec.InitContainers[i].Resources})
	}
	for i := range p.Spec.Containers {
		summary.Containers = append(summary.Containers, resources{p.Spec.Containers[i].Name, p.Spec.Containers[i].Resources})
	}
	summary.Generation, summary.Error = generation, problem
	b, err := json.Marshal(summary)
	if err != nil {
		return what
	}
	return what + ": " + string(b)
}
