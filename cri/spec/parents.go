package spec

import (
	v1 "k8s.io/api/core/v1"
	helper "k8s.io/component-helpers/resource"
)

// PodsShare is what all pods of the node together may use: the machine's capacity, less
// what is reserved where that is enforced. Zero is not known, and not limited.
type PodsShare struct {
	MilliCPU      int64
	MemoryBytes   int64
	Pids          int64
	HugePageBytes map[string]int64 // by page size as the kernel names it, "2MB"
}

// ParentCgroup is a cgroup above those of pods.
type ParentCgroup struct {
	Path   string // in the form of the runtime's driver
	Limits CgroupLimits
}

// PodsCgroup is the one above all pods, in the form of the runtime's driver.
func PodsCgroup(driver string) string { return driversPath([]string{"kubepods"}, driver) }

// ParentCgroups are the cgroups above those of pods, the highest first: kubepods has what
// all pods may use, burstable the CPU that its pods request together, and besteffort the
// least that there is. Guaranteed pods are beside the two, each with its own request. A
// pod that has ended asks for nothing.
func ParentCgroups(pods []*v1.Pod, all PodsShare, driver string) []ParentCgroup {
	requested := int64(0)
	for _, p := range pods {
		if p.Status.Phase == v1.PodSucceeded || p.Status.Phase == v1.PodFailed || QOSClass(p) != v1.PodQOSBurstable {
			continue
		}
		requests := helper.PodRequests(p, helper.PodResourcesOptions{})
		requested += requests.Cpu().MilliValue()
	}
	return []ParentCgroup{
		{PodsCgroup(driver), CgroupLimits{
			CPUShares: uint64(CPUShares(all.MilliCPU)), MemoryBytes: all.MemoryBytes, PidsMax: all.Pids, HugePageBytes: all.HugePageBytes,
		}},
		{driversPath([]string{"kubepods", "burstable"}, driver), CgroupLimits{CPUShares: uint64(CPUShares(requested))}},
		{driversPath([]string{"kubepods", "besteffort"}, driver), CgroupLimits{CPUShares: minShares}},
	}
}
