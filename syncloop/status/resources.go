package status

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// resources tells what the pod as a whole was given.
func (g *generator) resources(s *v1.PodStatus) {
	s.AllocatedResources = podRequests(g.spec)
	if g.spec.Resources != nil {
		s.Resources = g.spec.Resources.DeepCopy()
	}
}

// podRequests is what the scheduler counts for the pod: the larger of what runs
// together and of each step of the init sequence with the sidecars before it;
// pod-level requests replace it; overhead is added. Nil if nothing is requested.
func podRequests(spec *v1.PodSpec) v1.ResourceList {
	together, sidecars, steps := v1.ResourceList{}, v1.ResourceList{}, v1.ResourceList{}
	for i := range spec.Containers {
		add(together, spec.Containers[i].Resources.Requests)
	}
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		if sidecar(c) {
			add(together, c.Resources.Requests)
			add(sidecars, c.Resources.Requests)
			continue
		}
		step := sidecars.DeepCopy()
		add(step, c.Resources.Requests)
		raise(steps, step)
	}
	raise(together, steps)
	if spec.Resources != nil {
		for n, q := range spec.Resources.Requests {
			together[n] = q.DeepCopy()
		}
	}
	add(together, spec.Overhead)
	if len(together) == 0 {
		return nil
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

// qosClass is the pod's quality of service by its CPU and memory: Guaranteed if
// every container (or the pod as a whole) has limits for both and requests
// equal to them, BestEffort if nothing is set, else Burstable.
func qosClass(spec *v1.PodSpec) v1.PodQOSClass {
	var all []*v1.ResourceRequirements
	if r := spec.Resources; r != nil && len(r.Requests)+len(r.Limits) > 0 {
		all = append(all, r)
	} else {
		for i := range spec.InitContainers {
			all = append(all, &spec.InitContainers[i].Resources)
		}
		for i := range spec.Containers {
			all = append(all, &spec.Containers[i].Resources)
		}
	}
	anything, guaranteed := false, true
	for _, r := range all {
		for _, n := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
			limit, request := r.Limits[n], r.Requests[n]
			anything = anything || positive(limit) || positive(request)
			if !positive(limit) || positive(request) && request.Cmp(limit) != 0 {
				guaranteed = false
			}
		}
	}
	switch {
	case !anything:
		return v1.PodQOSBestEffort
	case guaranteed:
		return v1.PodQOSGuaranteed
	}
	return v1.PodQOSBurstable
}

func positive(q resource.Quantity) bool { return q.Sign() > 0 }
