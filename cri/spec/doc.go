// Package spec turns a pod into what the CRI takes: PodSandboxConfig and
// ContainerConfig, the environment, the hosts file, the DNS settings, the
// resources. It is pure: no clock, no I/O, no randomness; all that it needs of
// the machine is in Machine, and all that was prepared for one container is in
// ContainerInput. Equal input gives equal output, byte for byte.
//
// The behaviour is the kubelet's. Where the kubelet's own result depends on the
// order of a map (environment, DNS options), this package has one fixed order.
package spec

import "k8s.io/apimachinery/pkg/types"

// Machine is what the configs of all pods of one machine have in common.
type Machine struct {
	RootDir    string // pod directories are below <RootDir>/pods
	PodLogsDir string // "/var/log/pods"
	// CgroupDriver is "cgroupfs" or "systemd", as the runtime reports.
	CgroupDriver string
	// CgroupRoot is the slash path above kubepods; empty for the root.
	CgroupRoot    string
	CgroupVersion int // 1 or 2
	// Owner is the value of pod.LabelOwner on all that is created. Required.
	Owner       string
	Hostname    string
	HostIPs     []string // InternalIPs of the node, primary first
	MemoryBytes int64    // of the machine; the base of oom_score_adj
	CPUs        int
	// CanLowerOOMScore: negative oom_score_adj values are passed on. A runtime
	// that clamps them by itself (containerd's restrict_oom_score_adj) counts as able.
	CanLowerOOMScore bool

	ClusterDomain string   // "cluster.local"
	ClusterDNS    []string // addresses of the cluster's DNS service
	HostResolv    []byte   // the machine's resolv.conf

	CPUCFSQuota   bool     // CPU limits are enforced
	CFSPeriodUS   int64    // microseconds; 0 is 100000
	PodPidsLimit  int64    // of the pod's cgroup; 0 is none
	HugePageSizes []string // as the kernel names them: "2MB", "1GB"
	// SwapControl: the kernel accounts swap by cgroup, so that it can be denied.
	SwapControl bool
	// SingleProcessOOMKill leaves the other processes of a container alone when
	// one runs out of memory (memory.oom.group is not set).
	SingleProcessOOMKill bool

	SELinux        bool // volumes are relabelled where they ask for it
	SeccompDefault bool // containers without a profile get RuntimeDefault
	// ThermalThrottle holds the CPU numbers that have a thermal_throttle
	// directory under /sys, which is masked in containers.
	ThermalThrottle []int
	// RecursiveReadOnly: the pod's runtime handler supports it.
	RecursiveReadOnly bool
	// UserNamespace is the range of host IDs of this one pod; needed for a pod
	// with hostUsers: false only. Callers set it on their copy.
	UserNamespace *IDRange
}

// IDRange maps Length IDs of a pod, from 0, to those of the machine from HostID.
type IDRange struct{ HostID, Length uint32 }

func (m Machine) cfsPeriod() int64 {
	if m.CFSPeriodUS > 0 {
		return m.CFSPeriodUS
	}
	return 100000
}

// EnvVar is one resolved variable of a container's environment.
type EnvVar struct{ Name, Value string }

// PodDir is the directory of one pod under root (Machine.RootDir).
func PodDir(root string, uid types.UID) string { return join(root, "pods", string(uid)) }
