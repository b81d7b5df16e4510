package status

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/bowline-k8s/bowline/pod"
)

// resources sets the pod-level resources. While the pod runs, its CPU request and its limits are
// those of its cgroup: if a container has no limit, neither has the pod, and a resize that was not
// applied yet is not shown.
func (g *generator) resources(s *v1.PodStatus) {
	s.AllocatedResources = podRequests(g.spec)
	r := v1.ResourceRequirements{Requests: s.AllocatedResources.DeepCopy(), Limits: podLimits(g.spec)}
	if g.old.Phase == v1.PodRunning {
		have := g.spec
		if g.in.Actuated != nil {
			have = &g.in.Actuated.Apply(g.in.Pod).Spec
			r.Limits = podLimits(have)
			if q, ok := podRequests(have)[v1.ResourceCPU]; ok && r.Requests != nil {
				r.Requests[v1.ResourceCPU] = q
			}
		}
		for name := range r.Limits {
			if !limitsPod(have, name) {
				delete(r.Limits, name)
			}
		}
	}
	if g.spec.Resources != nil {
		r.Claims = g.spec.Resources.DeepCopy().Claims
	}
	if len(r.Requests)+len(r.Limits)+len(r.Claims) > 0 {
		s.Resources = &r
	}
}

// Amounts up to these are the kernel's minimum, and are reported as they were allocated.
const (
	leastShares   = 2  // millicores of the minimum cpu.shares
	leastCPULimit = 10 // millicores of the minimum CPU quota
)

// containerResources returns the resources of an instance: its allocation, and while it runs the
// values that the runtime reports, or reported before.
func containerResources(c *v1.Container, n *pod.Container, old *v1.ContainerStatus, id string) *v1.ResourceRequirements {
	out := c.Resources.DeepCopy()
	if n.State != pod.StateRunning {
		return out
	}
	var before v1.ResourceRequirements
	if old != nil && old.Resources != nil && old.State.Running != nil && old.ContainerID == id {
		before = *old.Resources
	}
	have := n.Resources
	if have == nil {
		have = &pod.Size{}
	}
	tell := func(into, before v1.ResourceList, name v1.ResourceName, has *resource.Quantity, least int64) {
		switch given := into[name]; {
		case into == nil:
		case has == nil:
			if q, ok := before[name]; ok {
				into[name] = q.DeepCopy()
			}
		case has.MilliValue() > least || given.MilliValue() > least:
			into[name] = *has
		}
	}
	tell(out.Limits, before.Limits, v1.ResourceCPU, milli(have.CPULimit), leastCPULimit)
	tell(out.Limits, before.Limits, v1.ResourceMemory, bytes(have.MemoryLimit), 0)
	tell(out.Requests, before.Requests, v1.ResourceCPU, milli(have.CPURequest), leastShares)
	tell(out.Requests, before.Requests, v1.ResourceMemory, bytes(have.MemoryRequest), 0)
	return out
}

func milli(n int64) *resource.Quantity {
	if n == 0 {
		return nil
	}
	return resource.NewMilliQuantity(n, resource.DecimalSI)
}

func bytes(n int64) *resource.Quantity {
	if n == 0 {
		return nil
	}
	return resource.NewQuantity(n, resource.BinarySI)
}

// podRequests returns the requests that the scheduler counts for the pod: the larger of the containers that run
// together and of each init step with the sidecars before it. Pod-level requests replace it,
// overhead is added. It is nil if the pod requests nothing.
func podRequests(spec *v1.PodSpec) v1.ResourceList {
	sum := inAll(spec, func(r *v1.ResourceRequirements) v1.ResourceList { return r.Requests })
	add(sum, spec.Overhead)
	if len(sum) == 0 {
		return nil
	}
	return sum
}

// podLimits does the same for limits. Overhead is added only to resources that have a limit.
func podLimits(spec *v1.PodSpec) v1.ResourceList {
	sum := inAll(spec, func(r *v1.ResourceRequirements) v1.ResourceList { return r.Limits })
	for name, q := range spec.Overhead {
		if _, ok := sum[name]; ok {
			add(sum, v1.ResourceList{name: q})
		}
	}
	if len(sum) == 0 {
		return nil
	}
	return sum
}

// limitsPod reports whether the pod's own cgroup has a limit for this resource.
func limitsPod(spec *v1.PodSpec, name v1.ResourceName) bool {
	if spec.Resources != nil {
		if _, ok := spec.Resources.Limits[name]; ok {
			return true
		}
	}
	for c := range pod.Containers(spec) {
		if _, ok := c.Resources.Limits[name]; !ok {
			return false
		}
	}
	return true
}

// inAll sums up the requests or limits of the pod without overhead; part selects which. It is never
// nil.
func inAll(spec *v1.PodSpec, part func(*v1.ResourceRequirements) v1.ResourceList) v1.ResourceList {
	together, sidecars, steps := v1.ResourceList{}, v1.ResourceList{}, v1.ResourceList{}
	for i := range spec.Containers {
		add(together, part(&spec.Containers[i].Resources))
	}
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		if pod.Sidecar(c) {
			add(together, part(&c.Resources))
			add(sidecars, part(&c.Resources))
			continue
		}
		step := sidecars.DeepCopy()
		add(step, part(&c.Resources))
		raise(steps, step)
	}
	raise(together, steps)
	if spec.Resources != nil {
		for n, q := range part(spec.Resources) {
			together[n] = q.DeepCopy()
		}
	}
	return together
}

func add(to, from v1.ResourceList) {
	for n, q := range from {
		sum := to[n].DeepCopy()
		sum.Add(q)
		to[n] = sum
	}
}

func raise(to, from v1.ResourceList) {
	for n, q := range from {
		if at, ok := to[n]; !ok || q.Cmp(at) > 0 {
			to[n] = q.DeepCopy()
		}
	}
}
