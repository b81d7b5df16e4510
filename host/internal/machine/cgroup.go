package machine

import (
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/bowline-k8s/bowline/host"
)

// Hierarchies are the cgroup mounts of the host. A version 1 host may also have a cgroup2 mount
// with few controllers or none. It does not control containers, but a runtime may leave empty
// cgroups there.
type Hierarchies struct {
	Version int                 // 1 or 2; 0: no control groups
	V1      map[string]string   // controller to mount point
	V2      string              // mount point of cgroup2, if any
	All     []string            // every mount point, named hierarchies included
	By      map[string][]string // mount point to controllers, v1 only
}

// FindHierarchies decides as runc does: the host is version 2 if the mount at /sys/fs/cgroup is
// cgroup2. If that is mounted elsewhere, the host is version 1 if it has a v1 hierarchy with the
// cpu or memory controller.
func FindHierarchies(mounts []*mountinfo.Info) Hierarchies {
	h := Hierarchies{V1: map[string]string{}, By: map[string][]string{}}
	atUsual := ""
	for _, m := range mounts {
		if m.Mountpoint == "/sys/fs/cgroup" {
			atUsual = m.FSType
		}
		switch m.FSType {
		case "cgroup2":
			if h.V2 == "" || m.Mountpoint == "/sys/fs/cgroup" {
				h.V2 = m.Mountpoint
			}
		case "cgroup":
			if slices.Contains(h.All, m.Mountpoint) {
				continue
			}
			h.All = append(h.All, m.Mountpoint)
			for o := range strings.SplitSeq(m.VFSOptions, ",") {
				if isController(o) {
					if _, twice := h.V1[o]; !twice {
						h.V1[o] = m.Mountpoint
						h.By[m.Mountpoint] = append(h.By[m.Mountpoint], o)
					}
				}
			}
		}
	}
	if h.V2 != "" && !slices.Contains(h.All, h.V2) {
		h.All = append(h.All, h.V2)
	}
	_, cpu := h.V1["cpu"]
	_, memory := h.V1["memory"]
	switch {
	case atUsual == "cgroup2":
		h.Version = 2
	case cpu || memory:
		h.Version = 1
	case h.V2 != "":
		h.Version = 2
	case len(h.V1) > 0:
		h.Version = 1
	}
	if h.Version == 2 {
		h.All = []string{h.V2}
	}
	return h
}

func isController(option string) bool {
	switch option {
	case "cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "net_cls", "net_prio",
		"perf_event", "hugetlb", "rdma", "misc":
		return true
	}
	return false
}

// Setting is one file of a cgroup (its base name) and its value.
type Setting struct {
	Controller string
	File       string
	Value      string
	Optional   bool // the host may lack the controller
}

// SettingsV1 returns the settings in the order of writing: the period must precede the quota.
func SettingsV1(r host.CgroupResources) []Setting {
	var s []Setting
	if r.CPUShares != 0 {
		s = append(s, Setting{Controller: "cpu", File: "cpu.shares", Value: strconv.FormatUint(min(max(r.CPUShares, 2), 262144), 10)})
	}
	if r.CPUPeriodUS != 0 {
		s = append(s, Setting{Controller: "cpu", File: "cpu.cfs_period_us", Value: strconv.FormatUint(r.CPUPeriodUS, 10)})
	}
	if r.CPUQuotaUS != 0 {
		s = append(s, Setting{Controller: "cpu", File: "cpu.cfs_quota_us", Value: strconv.FormatInt(max(r.CPUQuotaUS, -1), 10)})
	}
	if r.MemoryBytes != 0 {
		s = append(s, Setting{Controller: "memory", File: "memory.limit_in_bytes", Value: strconv.FormatInt(max(r.MemoryBytes, -1), 10)})
	}
	if r.PidsMax != 0 {
		s = append(s, Setting{Controller: "pids", File: "pids.max", Value: orMax(r.PidsMax), Optional: true})
	}
	for _, size := range sortedSizes(r.HugePageBytes) {
		s = append(s, Setting{Controller: "hugetlb", File: "hugetlb." + size + ".limit_in_bytes",
			Value: strconv.FormatInt(r.HugePageBytes[size], 10), Optional: true})
	}
	return s
}

func orMax(n int64) string {
	if n < 0 {
		return "max"
	}
	return strconv.FormatInt(n, 10)
}

func sortedSizes(m map[string]int64) []string {
	sizes := make([]string, 0, len(m))
	for size := range m {
		sizes = append(sizes, size)
	}
	slices.Sort(sizes)
	return sizes
}

// defaultPeriodUS is the kernel's default period of a CPU quota.
const defaultPeriodUS = 100_000

// PodControllers are delegated to the pods' cgroups if the host has them.
var PodControllers = []string{"cpu", "cpuset", "hugetlb", "io", "memory", "pids"}

// SettingsV2 are the files of cgroup v2 and their values.
func SettingsV2(r host.CgroupResources) []Setting {
	var s []Setting
	if r.CPUShares != 0 {
		s = append(s, Setting{Controller: "cpu", File: "cpu.weight", Value: strconv.FormatUint(sharesToWeight(r.CPUShares), 10)})
	}
	if r.CPUQuotaUS != 0 || r.CPUPeriodUS != 0 {
		quota, period := "max", r.CPUPeriodUS
		if r.CPUQuotaUS > 0 {
			quota = strconv.FormatInt(r.CPUQuotaUS, 10)
		}
		if period == 0 {
			period = defaultPeriodUS
		}
		s = append(s, Setting{Controller: "cpu", File: "cpu.max", Value: quota + " " + strconv.FormatUint(period, 10)})
	}
	if r.MemoryBytes != 0 {
		s = append(s, Setting{Controller: "memory", File: "memory.max", Value: orMax(r.MemoryBytes)})
	}
	if r.PidsMax != 0 {
		s = append(s, Setting{Controller: "pids", File: "pids.max", Value: orMax(r.PidsMax), Optional: true})
	}
	for _, size := range sortedSizes(r.HugePageBytes) {
		s = append(s, Setting{Controller: "hugetlb", File: "hugetlb." + size + ".max",
			Value: strconv.FormatInt(r.HugePageBytes[size], 10), Optional: true})
	}
	return s
}

// sharesToWeight maps [2, 262144] linearly to [1, 10000], as the kubelet does for its pods'
// cgroups.
func sharesToWeight(shares uint64) uint64 {
	shares = min(max(shares, 2), 262144)
	return 1 + (shares-2)*9999/262142
}

// MemoryRoot returns the version, and the directory of the root memory cgroup; dir is empty if
// there is none.
func (h Hierarchies) MemoryRoot() (version int, dir string) {
	if h.Version == 2 {
		return 2, h.V2
	}
	return h.Version, h.V1["memory"]
}
