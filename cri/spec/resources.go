package spec

import (
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helper "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// The kernel's limits for cpu.shares and for a CFS quota (microseconds).
const (
	minShares    = 2
	maxShares    = 262144
	sharesPerCPU = 1024
	minQuotaUS   = 1000
)

// CPUShares converts a request in thousandths of a CPU to cpu.shares.
func CPUShares(milliCPU int64) int64 {
	return min(max(milliCPU*sharesPerCPU/1000, minShares), maxShares)
}

// CPUQuota converts a limit in thousandths of a CPU to microseconds per period; 0 means no limit.
func CPUQuota(milliCPU, periodUS int64) int64 {
	if milliCPU == 0 {
		return 0
	}
	return max(milliCPU*periodUS/1000, minQuotaUS)
}

// linuxResources converts amounts; a nil request means that the request equals the limit.
func linuxResources(m Machine, cpuRequest, cpuLimit, memoryLimit *resource.Quantity) *runtimeapi.LinuxContainerResources {
	if cpuRequest == nil {
		cpuRequest = cpuLimit
	}
	out := &runtimeapi.LinuxContainerResources{
		CpuShares:          CPUShares(cpuRequest.MilliValue()),
		MemoryLimitInBytes: memoryLimit.Value(),
	}
	if m.CPUCFSQuota {
		out.CpuPeriod = m.cfsPeriod()
		out.CpuQuota = CPUQuota(cpuLimit.MilliValue(), out.CpuPeriod)
	}
	if m.CgroupVersion == 2 && !m.SingleProcessOOMKill {
		out.Unified = map[string]string{"memory.oom.group": "1"}
	}
	return out
}

// ContainerResources returns LinuxContainerConfig.Resources, which UpdateContainerResources also
// takes after a resize.
func ContainerResources(p *v1.Pod, c *v1.Container, m Machine) *runtimeapi.LinuxContainerResources {
	var request *resource.Quantity
	if q, ok := c.Resources.Requests[v1.ResourceCPU]; ok {
		request = &q
	}
	out := linuxResources(m, request, limitOf(p, c, v1.ResourceCPU), limitOf(p, c, v1.ResourceMemory))
	out.OomScoreAdj = OOMScoreAdj(p, c, m)
	out.HugepageLimits = hugepageLimits(p, c, m)
	if m.CgroupVersion == 2 {
		if out.Unified == nil {
			out.Unified = map[string]string{}
		}
		// Removes a limit that another memory policy left, at the next resize.
		out.Unified["memory.high"] = "max"
		if m.SwapControl {
			out.Unified["memory.swap.max"] = "0"
		}
	} else if m.SwapControl {
		// If memory plus swap may not exceed memory alone, there is no swap.
		out.MemorySwapLimitInBytes = out.MemoryLimitInBytes
	}
	return out
}

// limitOf returns the container's limit, or the pod-level limit if it has none.
func limitOf(p *v1.Pod, c *v1.Container, name v1.ResourceName) *resource.Quantity {
	if limit := c.Resources.Limits[name]; !limit.IsZero() {
		return &limit
	}
	if helper.IsPodLevelResourcesSet(p) {
		limit := p.Spec.Resources.Limits[name]
		return &limit
	}
	return &resource.Quantity{}
}

func sandboxResources(p *v1.Pod, m Machine) *runtimeapi.LinuxContainerResources {
	options := helper.PodResourcesOptions{ExcludeOverhead: true}
	requests, limits := helper.PodRequests(p, options), helper.PodLimits(p, options)
	var request *resource.Quantity
	if q, ok := requests[v1.ResourceCPU]; ok {
		request = &q
	}
	return linuxResources(m, request, limits.Cpu(), limits.Memory())
}

func overheadResources(p *v1.Pod, m Machine) *runtimeapi.LinuxContainerResources {
	if p.Spec.Overhead == nil {
		return &runtimeapi.LinuxContainerResources{}
	}
	cpu := p.Spec.Overhead.Cpu()
	return linuxResources(m, cpu, cpu, p.Spec.Overhead.Memory())
}

// hugepageLimits denies each page size of the host that the container does not request.
func hugepageLimits(p *v1.Pod, c *v1.Container, m Machine) []*runtimeapi.HugepageLimit {
	wanted := map[string]int64{}
	if helper.IsPodLevelResourcesSet(p) {
		addHugepages(wanted, p.Spec.Resources.Limits)
	}
	addHugepages(wanted, c.Resources.Limits)
	var out []*runtimeapi.HugepageLimit
	for _, size := range m.HugePageSizes {
		out = append(out, &runtimeapi.HugepageLimit{PageSize: size, Limit: uint64(wanted[size])})
	}
	return out
}

func addHugepages(into map[string]int64, list v1.ResourceList) {
	for name, amount := range list {
		if size, ok := hugepageSize(name); ok {
			into[size] = amount.Value()
		}
	}
}

// hugepageSize converts "hugepages-2Mi" to the kernel's "2MB".
func hugepageSize(name v1.ResourceName) (string, bool) {
	text, ok := strings.CutPrefix(string(name), v1.ResourceHugePagesPrefix)
	if !ok {
		return "", false
	}
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return "", false
	}
	size, unit := q.Value(), 0
	if size <= 0 {
		return "", false
	}
	units := []string{"B", "KB", "MB", "GB", "TB", "PB"}
	for size%1024 == 0 && unit < len(units)-1 {
		size /= 1024
		unit++
	}
	return strconv.FormatInt(size, 10) + units[unit], true
}

// CgroupLimits are the limits of a pod's cgroup. It has the fields of host.CgroupResources, to
// which it converts; zero leaves the kernel's default.
type CgroupLimits struct {
	CPUShares     uint64
	CPUQuotaUS    int64
	CPUPeriodUS   uint64
	MemoryBytes   int64
	PidsMax       int64
	HugePageBytes map[string]int64
}

// PodCgroup returns the limits of the pod's own cgroup (CgroupPath): the sum of its containers and
// its overhead, provided that all of them declare limits.
func PodCgroup(p *v1.Pod, m Machine) CgroupLimits {
	requests := helper.PodRequests(p, helper.PodResourcesOptions{})
	limits := helper.PodLimits(p, helper.PodResourcesOptions{})
	out := CgroupLimits{PidsMax: m.PodPidsLimit, CPUShares: minShares}
	huge := map[string]int64{}
	for _, size := range m.HugePageSizes { // deny sizes that are not requested
		huge[size] = 0
	}
	addHugepages(huge, requests)
	if len(huge) > 0 {
		out.HugePageBytes = huge
	}
	class := pod.QOSClass(p)
	if class == v1.PodQOSBestEffort {
		return out
	}
	out.CPUShares = uint64(CPUShares(requests.Cpu().MilliValue()))
	cpu, memory := allLimited(p, v1.ResourceCPU), allLimited(p, v1.ResourceMemory)
	if m.CPUCFSQuota && (cpu || class == v1.PodQOSGuaranteed) {
		out.CPUPeriodUS = uint64(m.cfsPeriod())
		out.CPUQuotaUS = CPUQuota(limits.Cpu().MilliValue(), m.cfsPeriod())
	}
	if memory || class == v1.PodQOSGuaranteed {
		out.MemoryBytes = limits.Memory().Value()
	}
	return out
}

// ResizeCgroup splits the change of a pod's cgroup in two: grow applies before its containers are
// resized, shrink after. A limit that is no longer wanted stays.
func ResizeCgroup(have, want CgroupLimits) (grow, shrink CgroupLimits) {
	pick := func(from, to int64) *CgroupLimits {
		if to > from && from != 0 {
			return &grow
		}
		return &shrink
	}
	if want.CPUShares != have.CPUShares {
		pick(int64(have.CPUShares), int64(want.CPUShares)).CPUShares = want.CPUShares
	}
	if want.CPUQuotaUS != have.CPUQuotaUS && want.CPUQuotaUS != 0 {
		to := pick(have.CPUQuotaUS, want.CPUQuotaUS)
		to.CPUQuotaUS, to.CPUPeriodUS = want.CPUQuotaUS, want.CPUPeriodUS
	}
	if want.MemoryBytes != have.MemoryBytes && want.MemoryBytes != 0 {
		pick(have.MemoryBytes, want.MemoryBytes).MemoryBytes = want.MemoryBytes
	}
	return grow, shrink
}

// allLimited reports whether the pod as a whole, or each of its containers, has a limit.
func allLimited(p *v1.Pod, name v1.ResourceName) bool {
	if helper.IsPodLevelResourcesSet(p) {
		if q := p.Spec.Resources.Limits[name]; !q.IsZero() {
			return true
		}
	}
	for c := range pod.Containers(&p.Spec) {
		if q := c.Resources.Limits[name]; q.IsZero() {
			return false
		}
	}
	return true
}
