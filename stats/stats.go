// Package stats collects what a host, its pods and their containers use, and presents it as a
// kubelet does: the summary API, the metrics of resources, and cAdvisor's metrics. It reads control
// groups and /proc by host.Meters, not the runtime's statistics: one round trip for a whole host.
//
// Nothing is collected while no one asks. Several callers share a collection.
package stats

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/host"
)

// Pod is a pod with a sandbox on the host.
type Pod struct {
	Namespace, Name string
	UID             types.UID
	// CreatedAt is when the sandbox was created.
	CreatedAt time.Time
	// Cgroup is the path of the pod's cgroup, as for host.Cgroups. The Collector sets it.
	Cgroup string
	// SandboxID is the newest sandbox, SandboxImage its image.
	SandboxID, SandboxImage string
	HostNetwork             bool
	// Containers are those that run.
	Containers []Container
	// LogDir is the directory of the containers' logs.
	LogDir  string
	Volumes []Volume
}

// Container is a running container.
type Container struct {
	ID, Name, Image      string
	CreatedAt, StartedAt time.Time
}

// Volume is a volume of a pod whose use is measured.
type Volume struct {
	Name, Path string
	// Claim is the persistent volume claim, in the pod's namespace. The volume is then a file system
	// of its own; otherwise it is a directory on the root file system.
	Claim string
	// Memory: the volume is in memory, so it is no ephemeral storage.
	Memory bool
}

// System are the paths of cgroups of the node itself; empty if there is none.
type System struct{ Kubelet, Runtime string }

// Snapshot is what one collection found.
type Snapshot struct {
	// Time is when the counters were read, by the local clock. It advances with every collection
	// unless the clock was set back, and is not in the future.
	Time time.Time
	read time.Time // when the host's answer was here, with a monotonic reading
	// BootTime is when the host booted.
	BootTime time.Time
	// Detail: the counters of Sampled were read with SampleRequest.Detail.
	Detail bool
	depth  depth
	host.Sampled
	Pods []Pod
	// RootFs and ImageFs are the file systems of the root directory and of the runtime's images.
	RootFs, ImageFs host.FileSystem
	// Storage is what directories and images use; nil: it is not known yet.
	Storage *Storage
	// PodsTree is the path of the cgroup of all pods.
	PodsTree string
	System   System

	// containers are the cgroups of containers and sandboxes, by ID.
	containers map[string]string
	// usage is the CPU use in nanocores, by the path of the cgroup; "" is the node.
	usage map[string]uint64
}

// Storage is what directories and images use. It is measured less often than the counters.
type Storage struct {
	Time time.Time
	// VolumesAt is the time of the volumes among Dirs, and of Claims. It may be earlier.
	VolumesAt time.Time
	// Layers are the writable layers, by container ID; Dirs the directories, by path.
	Layers, Dirs map[string]host.Usage
	// Claims are the file systems of the claims' volumes, by path.
	Claims map[string]host.FileSystem
	// Images is what the runtime's images use.
	Images host.Usage
}

// CgroupOf returns the path and the counters of a container or sandbox.
func (s *Snapshot) CgroupOf(id string) (path string, c host.CgroupSample, ok bool) {
	if path, ok = s.containers[id]; ok {
		c, ok = s.Cgroups[path]
	}
	return path, c, ok
}

// UsageNanoCores returns the CPU use of a cgroup since the collection before; "" is the node.
func (s *Snapshot) UsageNanoCores(path string) (uint64, bool) {
	n, ok := s.usage[path]
	return n, ok
}

// containerID returns the ID of the container whose cgroup has this name: ID, crio-ID,
// cri-containerd-ID.scope. The cgroup of a container's monitor is not the container's.
func containerID(name string) (id string, ok bool) {
	name = strings.TrimSuffix(name, ".scope")
	if strings.HasPrefix(name, "crio-conmon-") {
		return "", false
	}
	id = name[strings.LastIndexByte(name, '-')+1:]
	return id, len(id) >= 32 && strings.Trim(id, "0123456789abcdef") == ""
}
