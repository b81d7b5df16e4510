// Package spec converts a pod to its CRI input: PodSandboxConfig and ContainerConfig, with the
// environment, the hosts file, the DNS settings and the resources. The package is pure: no clock, no
// I/O, no randomness. Machine describes the host, and ContainerInput the prepared input of one
// container. Equal input gives equal output, byte for byte.
//
// The behaviour is the kubelet's. Where the kubelet's own result depends on the order of a map
// (environment, DNS options), this package uses one fixed order.
package spec

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/pod"
)

// Machine is the input that the configs of all pods of one host have in common.
type Machine struct {
	RootDir    string // pod directories are below <RootDir>/pods
	PodLogsDir string // "/var/log/pods"
	// CgroupDriver is "cgroupfs" or "systemd", as the runtime reports.
	CgroupDriver string
	// CgroupRoot is the slash path above kubepods; empty means the root.
	CgroupRoot    string
	CgroupVersion int // 1 or 2
	// Owner is the value of pod.LabelOwner on everything that is created. Required.
	Owner       string
	Hostname    string
	HostIPs     []string // InternalIPs of the node, primary first
	MemoryBytes int64    // of the host; the base of oom_score_adj
	CPUs        int
	// CanLowerOOMScore: negative oom_score_adj values are passed on. It is also true for a runtime
	// that clamps them itself (containerd's restrict_oom_score_adj).
	CanLowerOOMScore bool

	ClusterDomain string   // "cluster.local"
	ClusterDNS    []string // addresses of the cluster's DNS service
	HostResolv    []byte   // the host's resolv.conf

	CPUCFSQuota   bool     // enforce CPU limits
	CFSPeriodUS   int64    // microseconds; 0 means 100000
	PodPidsLimit  int64    // of the pod's cgroup; 0 means no limit
	HugePageSizes []string // as the kernel names them: "2MB", "1GB"
	// SwapControl: the kernel accounts swap per cgroup, so swap can be denied.
	SwapControl bool
	// SingleProcessOOMKill kills only one process of a container that is out of memory
	// (memory.oom.group is not set).
	SingleProcessOOMKill bool

	SELinux        bool // relabel volumes that ask for it
	SeccompDefault bool // containers without a seccomp profile get RuntimeDefault
	// ThermalThrottle lists the CPUs that have a thermal_throttle directory under /sys, which is
	// masked in containers.
	ThermalThrottle []int
	// RecursiveReadOnly: the pod's runtime handler supports it.
	RecursiveReadOnly bool
	// UserNamespace is the range of host IDs for one pod, needed only if the pod has hostUsers:
	// false. Callers set it on their copy.
	UserNamespace *pod.IDRange
}

func (m Machine) cfsPeriod() int64 {
	if m.CFSPeriodUS > 0 {
		return m.CFSPeriodUS
	}
	return 100000
}

// EnvVar is one resolved variable of a container's environment.
type EnvVar struct{ Name, Value string }

// PodDir returns the directory of one pod below root (Machine.RootDir).
func PodDir(root string, uid types.UID) string { return join(root, "pods", string(uid)) }
