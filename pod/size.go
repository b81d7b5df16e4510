package pod

import (
	"encoding/json"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Size is a container's CPU and memory requests and limits, as far as they can be resized in place;
// 0: not set.
type Size struct {
	CPURequest    int64 `json:"cpuRequest,omitempty"` // thousandths of a CPU
	CPULimit      int64 `json:"cpuLimit,omitempty"`
	MemoryRequest int64 `json:"memoryRequest,omitempty"` // bytes
	MemoryLimit   int64 `json:"memoryLimit,omitempty"`
}

// SizeOf is the container's size. The pod's limits count if the container has none.
func SizeOf(p *v1.PodSpec, c *v1.Container) Size {
	r := c.Resources
	s := Size{
		CPURequest: r.Requests.Cpu().MilliValue(), CPULimit: r.Limits.Cpu().MilliValue(),
		MemoryRequest: r.Requests.Memory().Value(), MemoryLimit: r.Limits.Memory().Value(),
	}
	if p.Resources != nil {
		if s.CPULimit == 0 {
			s.CPULimit = p.Resources.Limits.Cpu().MilliValue()
		}
		if s.MemoryLimit == 0 {
			s.MemoryLimit = p.Resources.Limits.Memory().Value()
		}
	}
	return s
}

// Allocation is the CPU and memory that the node has given a pod. During a resize it may differ
// from the spec.
type Allocation struct {
	// Pod is spec.resources; nil if there are no pod-level resources.
	Pod *v1.ResourceRequirements `json:"pod,omitempty"`
	// Containers are the resources of init and normal containers by name.
	Containers map[string]v1.ResourceRequirements `json:"containers,omitempty"`
}

// AllocationOf is what the pod's spec requests.
func AllocationOf(p *v1.Pod) Allocation {
	a := Allocation{Pod: p.Spec.Resources.DeepCopy()}
	for c := range Containers(&p.Spec) {
		if a.Containers == nil {
			a.Containers = map[string]v1.ResourceRequirements{}
		}
		a.Containers[c.Name] = *c.Resources.DeepCopy()
	}
	return a
}

// Apply returns the pod with the allocation instead of the resources in its spec. It returns p
// itself if both are equal.
func (a Allocation) Apply(p *v1.Pod) *v1.Pod {
	out, copied := p, false
	own := func() {
		if !copied {
			out, copied = p.DeepCopy(), true
		}
	}
	if !sameResources(p.Spec.Resources, a.Pod) {
		own()
		out.Spec.Resources = a.Pod.DeepCopy()
	}
	give := func(list []v1.Container, to func() []v1.Container) {
		for i := range list {
			r, ok := a.Containers[list[i].Name]
			if ok && !sameResources(&list[i].Resources, &r) {
				own()
				to()[i].Resources = *r.DeepCopy()
			}
		}
	}
	give(p.Spec.InitContainers, func() []v1.Container { return out.Spec.InitContainers })
	give(p.Spec.Containers, func() []v1.Container { return out.Spec.Containers })
	return out
}

// String is the allocation as JSON; "" if it cannot be encoded.
func (a Allocation) String() string {
	b, err := json.Marshal(a)
	if err != nil {
		return "" // API types always marshal
	}
	return string(b)
}

// UnmarshalJSON decodes an allocation that a host kept. It refuses quantities that would cost the
// process more than their text.
func (a *Allocation) UnmarshalJSON(data []byte) error {
	type plain Allocation
	if err := CheckQuantities(data, plain{}); err != nil {
		return err
	}
	return json.Unmarshal(data, (*plain)(a))
}

// ParseAllocation parses what String returned. It returns false if s is none.
func ParseAllocation(s string) (a Allocation, ok bool) {
	return a, s != "" && json.Unmarshal([]byte(s), &a) == nil
}

// ParseSize parses the annotation of a container; nil if there is none.
func ParseSize(s string) *Size {
	var out Size
	if s == "" || json.Unmarshal([]byte(s), &out) != nil {
		return nil
	}
	return &out
}

// sameResources compares amounts, not their notation: 1 CPU is 1000m.
func sameResources(a, b *v1.ResourceRequirements) bool {
	if a == nil || b == nil {
		return a == b
	}
	return sameAmounts(a.Requests, b.Requests) && sameAmounts(a.Limits, b.Limits) && slices.Equal(a.Claims, b.Claims)
}

func sameAmounts(a, b v1.ResourceList) bool {
	return maps.EqualFunc(a, b, func(x, y resource.Quantity) bool { return x.Cmp(y) == 0 })
}
