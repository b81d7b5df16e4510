package admit

import (
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/pod"
)

// ReasonTooLarge is the reason of a Rejection by Size. A kubelet has none like it.
const ReasonTooLarge = "PodTooLarge"

// Size decides whether the runtime's answers about the pod stay within the budgets of its host, next
// to those about the others, on a node of maxPods pods. A kubelet has no such limits; those of
// package spec are far above what pods have. Ephemeral containers do not count here: see Addition.
func Size(p *v1.Pod, others []*v1.Pod, maxPods int64) *Rejection {
	plain := *p
	plain.Spec.EphemeralContainers = nil
	for c := range pod.Containers(&p.Spec) {
		if r := containerSize(c); r != nil {
			return r
		}
	}
	if r := podSize(&plain.Spec); r != nil {
		return r
	}
	return poolSize(&plain, others, maxPods)
}

// Addition decides as Size does on the ephemeral container of this name, next to the others of its
// pod: each is added to those before it.
func Addition(p *v1.Pod, name string, others []*v1.Pod, maxPods int64) *Rejection {
	upTo := *p
	for i := range p.Spec.EphemeralContainers {
		if c := (*v1.Container)(&p.Spec.EphemeralContainers[i].EphemeralContainerCommon); c.Name == name {
			if r := containerSize(c); r != nil {
				return r
			}
			upTo.Spec.EphemeralContainers = p.Spec.EphemeralContainers[:i+1]
			if r := podSize(&upTo.Spec); r != nil {
				return r
			}
			return poolSize(&upTo, others, maxPods)
		}
	}
	return nil
}

func tooLarge(format string, args ...any) *Rejection {
	return &Rejection{ReasonTooLarge, fmt.Sprintf(format, args...)}
}

func containerSize(c *v1.Container) *Rejection {
	if n := len(c.VolumeMounts); n > spec.MaxMounts {
		return tooLarge("the container %s has %d volume mounts; this node allows %d", c.Name, n, spec.MaxMounts)
	}
	length := 0
	for i := range c.VolumeMounts {
		m := &c.VolumeMounts[i]
		length += len(m.MountPath) + len(m.SubPath) + len(m.SubPathExpr)
	}
	if length > spec.MaxMountBytes {
		return tooLarge("the paths of the volume mounts of the container %s have %d bytes; this node allows %d", c.Name, length, spec.MaxMountBytes)
	}
	return nil
}

func podSize(s *v1.PodSpec) *Rejection {
	if n := spec.ContainersOf(s); n > spec.MaxContainers {
		return tooLarge("the pod has %d containers; this node allows %d", n, spec.MaxContainers)
	}
	if n := spec.HostMountsOf(s); n > spec.MaxHostMounts {
		return tooLarge("the pod has %d volumes and mounts with a subPath; this node allows %d", n, spec.MaxHostMounts)
	}
	return nil
}

// poolSize decides about what the pod has beyond the share of each pod. A pod within the share is
// always admitted.
func poolSize(p *v1.Pod, others []*v1.Pod, maxPods int64) *Rejection {
	bounds := spec.BoundsOf(maxPods)
	for _, pool := range []struct {
		what        string
		of          func(*v1.PodSpec) int
		share, most int
		size        int64
	}{
		{"containers", spec.ContainersOf, spec.ShareContainers, spec.MaxContainers, bounds.ContainerPool},
		{"volumes and mounts with a subPath", spec.HostMountsOf, spec.ShareHostMounts, spec.MaxHostMounts, bounds.HostMountPool},
	} {
		// More ephemeral containers than most are refused, and take nothing.
		beyond := func(s *v1.PodSpec) int64 { return int64(max(min(pool.of(s), pool.most)-pool.share, 0)) }
		asks := beyond(&p.Spec)
		if asks == 0 {
			continue
		}
		var used int64
		for _, o := range others {
			if o.UID == p.UID {
				continue
			}
			used += beyond(&o.Spec)
		}
		if used+asks > pool.size {
			return tooLarge("the pod has %d %s; of those beyond %d in a pod, this node has room for %d, and %d are taken",
				pool.of(&p.Spec), pool.what, pool.share, pool.size, used)
		}
	}
	return nil
}
