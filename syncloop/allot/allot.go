// Package allot judges resizes of pods: whether what a pod asks for fits beside
// what the others of its node were given, whose turn it is, and what is told of it.
// It is pure.
package allot

import (
	"encoding/json"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	helper "k8s.io/component-helpers/resource"
)

// Verdict on a resize. The zero value lets it happen.
type Verdict struct {
	Reason  string // v1.PodReasonDeferred or v1.PodReasonInfeasible, as the condition says
	Short   string // what the event names: OutOf and the resource that is short
	Message string
}

// Fits judges p, as it wants to be, beside the others, as they were given. The first
// resource that is short is told, in the order and in the words that a kubelet has.
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

// amount is a quantity in the unit that it is counted in.
func amount(name v1.ResourceName, milli, whole int64) int64 {
	if name == v1.ResourceCPU {
		return milli
	}
	return whole
}

// Candidate is a pod whose resize waits.
type Candidate struct {
	Wanted, Given *v1.Pod
	Class         v1.PodQOSClass
	Since         time.Time // its resize is pending since then
}

// Before says whose turn comes first: who asks for no more than it has, then the
// higher priority, then Guaranteed pods, then who has waited longer.
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

// Message is the text of an event about a resize: what it is, and what the pod is to
// have.
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
