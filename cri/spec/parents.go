package spec

import (
	v1 "k8s.io/api/core/v1"
	helper "k8s.io/component-helpers/resource"

	"github.com/bowline-k8s/bowline/pod"
)

// PodsShare is the limit of all pods of the node together: the host's capacity, minus the enforced
// reservations. A zero value is unknown, and not limited.
type PodsShare struct {
	MilliCPU      int64
	MemoryBytes   int64
	Pids          int64
	HugePageBytes map[string]int64 // by page size in the kernel's form, "2MB"
}

// ParentCgroup is a cgroup above the pods' cgroups.
type ParentCgroup struct {
	Path   string // in the form of the runtime's cgroup driver
	Limits CgroupLimits
}

// PodsCgroup returns the cgroup above all pods, in the form of the runtime's cgroup driver.
func PodsCgroup(driver string) string { return driversPath([]string{"kubepods"}, driver) }

// ParentCgroups returns the cgroups above the pods' cgroups, the highest first. kubepods has what
// all pods may use, burstable the sum of its pods' CPU requests, and besteffort the minimum.
// Guaranteed pods are directly in kubepods, each with its own request. Pods that have ended do not
// count.
func ParentCgroups(pods []*v1.Pod, all PodsShare, driver string) []ParentCgroup {
	requested := int64(0)
	for _, p := range pods {
		if pod.Terminal(p.Status.Phase) || pod.QOSClass(p) != v1.PodQOSBurstable {
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
