package spec

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// What one pod may add to the answers of the runtime. The runtime repeats the labels and
// annotations of everything in each list, and the budgets of a host limit its lists: what one pod
// adds must not fill them for the whole node. Some of it is left out (Sandbox, Container, Bare), a
// pod with more of the rest is not admitted (package admit), and the number of instances follows
// from the planner. BoundsOf adds all of it up to what a node's budgets must allow.
const (
	// maxLabels and maxAnnotations are what a sandbox gets of its pod's own labels and annotations.
	maxLabels      = 5 << 10
	maxAnnotations = 16 << 10
	// maxAllocation is the longest AnnotationAllocation.
	maxAllocation = 4 << 10
	// maxOptional is what all containers of a pod together get of annotations whose size the pod
	// decides: the preStop hooks, the ports and the paths of termination messages.
	maxOptional = 3 << 10

	// MaxContainers is how many containers a pod may have, with init and ephemeral ones.
	MaxContainers = 128
	// MaxMounts is how many volume mounts a container may have, and MaxMountBytes how long their
	// paths and subPaths may be together.
	MaxMounts, MaxMountBytes = 512, 64 << 10
	// MaxHostMounts is how many volumes and mounts with a subPath a pod may have: each can be a
	// mount on the host.
	MaxHostMounts = 1024

	// ShareContainers and ShareHostMounts are what every pod may have. What pods have in addition
	// comes out of the node's pool, see Bounds.
	ShareContainers, ShareHostMounts = 5, 48

	// instancesBeside is how many instances of its containers a pod may have beyond one of each. A
	// container that crashes all the time starts five times in the minute between two garbage
	// collections.
	instancesBeside = 5

	// FullSandboxes is how many sandboxes of one pod carry its own metadata. Bare strips others.
	FullSandboxes = 2
)

// The largest size of what is listed, without what is bounded above: IDs and names of the longest
// form, the owner's stamp, and names of images, which have up to 521 bytes. An image that a runtime
// has pulled has no longer one.
const (
	sandboxWire, sandboxMessages     = 2 << 10, 10
	containerWire, containerMessages = 4 << 10, 17
	// statsMessages are those of a running container's statistics, beside what a list has of it.
	statsMessages = 40
	// What Bowline keeps of them after the status was read.
	sandboxKept, containerKept = 1 << 10, 5 << 10
	// MaxMessages and MaxGroups are what is kept of the messages of a pod's containers together, and
	// of the groups of one container. A status shows no more of the messages.
	MaxMessages, MaxGroups = 12 << 10, 64
)

// Instances is how many containers, and how many sandboxes, of a pod with n containers may exist at
// a time.
func Instances(n int) int { return n + instancesBeside }

// ContainersOf is the number of a pod's containers, with init and ephemeral ones.
func ContainersOf(p *v1.PodSpec) int {
	return len(p.InitContainers) + len(p.Containers) + len(p.EphemeralContainers)
}

// HostMountsOf is the number of mounts on the host that a pod needs at most, apart from the root
// file systems of its containers.
func HostMountsOf(p *v1.PodSpec) int {
	n := len(p.Volumes)
	for c := range pod.AllContainers(p) {
		for i := range c.VolumeMounts {
			if m := &c.VolumeMounts[i]; m.SubPath != "" || m.SubPathExpr != "" {
				n++
			}
		}
	}
	return n
}

// Bounds are what a node of so many pods may have at most. No set of admitted pods exceeds it.
type Bounds struct {
	// Pods of the node in its runtime, with those that are ending and that no source has.
	Pods int64
	// ContainerPool and HostMountPool are what the admitted pods may have together beyond the share
	// of each.
	ContainerPool, HostMountPool int64
	// ListBytes is the size of a list of all sandboxes or containers on the wire, ListMemory its
	// cost after decoding, and ListItems its length.
	ListBytes, ListMemory, ListItems int64
	// HostMounts is the number of mounts on the host.
	HostMounts int64
	// Kept is the memory of all statuses that Bowline keeps.
	Kept int64
}

// ordinaryPods is the number of pods of an ordinary node. A smaller node has the same bounds.
const ordinaryPods = 110

// BoundsOf returns the bounds of a node with this number of pods.
func BoundsOf(maxPods int64) Bounds {
	most := max(maxPods, ordinaryPods)
	b := Bounds{Pods: most + most/8, ContainerPool: 2 * most, HostMountPool: 16 * most}

	const share = ShareContainers + instancesBeside // of containers, and of sandboxes
	const sameInstances = instancesBeside + 1       // of the container with the longest annotations
	const own = maxLabels + maxAnnotations
	const sandboxCost, containerCost = sandboxWire + sandboxMessages*entryCost, containerWire + containerMessages*entryCost
	const statsCost = containerCost + statsMessages*entryCost

	// Each container of the pool can mean one more sandbox.
	list := func(each, extra int64) int64 { return b.Pods*(share*each+extra) + b.ContainerPool*each }
	b.ListItems = list(1, 0)
	// An entry has less framing on the wire than entryCost, so a bound of costs is one of bytes.
	b.ListBytes = max(list(sandboxWire, FullSandboxes*own), list(containerWire, sameInstances*maxOptional))
	b.ListMemory = max(list(sandboxCost, FullSandboxes*own), list(containerCost, sameInstances*maxOptional),
		b.Pods*(ShareContainers*statsCost+maxOptional)+b.ContainerPool*statsCost)
	// Only running containers keep their optional annotations.
	b.Kept = list(sandboxKept+containerKept, FullSandboxes*maxAllocation+maxOptional+MaxMessages)
	// A sandbox has up to three mounts: its root, its shared memory and its network namespace.
	b.HostMounts = b.Pods*(ShareHostMounts+ShareContainers+3) + b.HostMountPool + b.ContainerPool
	return b
}

// Bare leaves out of a sandbox's config what the pod itself decides, but for the identity of a
// static pod. The annotations that it keeps are as short as their own rules make them.
func Bare(config *runtimeapi.PodSandboxConfig) {
	for k := range config.Labels {
		if !slices.Contains(ourLabels, k) {
			delete(config.Labels, k)
		}
	}
	for k, v := range config.Annotations {
		if !slices.Contains(bareAnnotations, k) || len(v) > maxBare {
			delete(config.Annotations, k)
		}
	}
}

// maxBare is the longest annotation that Bare keeps.
const maxBare = 128

var (
	ourLabels       = []string{pod.LabelPodName, pod.LabelPodNamespace, pod.LabelPodUID, pod.LabelOwner}
	bareAnnotations = []string{pod.AnnotationUsers, pod.AnnotationSource, pod.AnnotationConfigHash}
)

// optional returns the annotations of c whose size the pod decides. Those of all containers together
// are bounded: what no longer fits is left out, in the order of the containers. An ephemeral
// container comes last, so that it takes nothing from the others when it is added.
func optional(p *v1.Pod, c *v1.Container) map[string]string {
	left := maxOptional
	of := func(c *v1.Container) map[string]string {
		out := map[string]string{}
		give := func(k, v string) {
			if n := entry(k, v); n <= left {
				left -= n
				out[k] = v
			}
		}
		if c.TerminationMessagePath != "" && len(c.TerminationMessagePath) > maxPath {
			give(pod.AnnotationTerminationPath, c.TerminationMessagePath)
		} else {
			out[pod.AnnotationTerminationPath] = c.TerminationMessagePath
		}
		if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
			give(pod.AnnotationPreStop, mustJSON(c.Lifecycle.PreStop))
		}
		if len(c.Ports) > 0 {
			give(pod.AnnotationPorts, mustJSON(c.Ports))
		}
		return out
	}
	for other := range pod.AllContainers(&p.Spec) {
		out := of(other)
		if other.Name == c.Name {
			return out
		}
	}
	return of(c)
}

// maxPath is the longest path of a termination message that counts as ordinary.
const maxPath = 256
