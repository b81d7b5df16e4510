package pod

import (
	v1 "k8s.io/api/core/v1"
	helper "k8s.io/component-helpers/resource"
)

// QOSClass returns the pod's quality-of-service class: the one that the API server has recorded, or
// else the one computed from the spec.
func QOSClass(p *v1.Pod) v1.PodQOSClass {
	if p.Status.QOSClass != "" {
		return p.Status.QOSClass
	}
	return ComputeQOSClass(p)
}

// ComputeQOSClass computes the class from the CPU and memory requests and limits: those of the pod
// if it has its own, or else those of its init and normal containers. The class is Guaranteed if
// all are set and equal, BestEffort if none is set, or else Burstable.
func ComputeQOSClass(p *v1.Pod) v1.PodQOSClass {
	if helper.IsPodLevelResourcesSet(p) {
		return classOf(p.Spec.Resources.Requests, p.Spec.Resources.Limits)
	}
	class := v1.PodQOSClass("")
	for c := range Containers(&p.Spec) {
		r := &c.Resources
		class = mix(class, classOf(r.Requests, r.Limits))
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

// mix merges two classes: the common one, or Burstable if they differ.
func mix(a, b v1.PodQOSClass) v1.PodQOSClass {
	if a == "" || a == b {
		return b
	}
	return v1.PodQOSBurstable
}
