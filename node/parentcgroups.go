package node

import (
	"context"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/gc/gcpolicy"
	"github.com/bowline-k8s/bowline/syncloop/qos"
)

// buildQOS creates the manager of the cgroups above those of the pods: the root of all pods and the
// QoS classes.
func (n *Node) buildQOS(context.Context) (err error) {
	ref := pod.NodeReference(n.name)
	n.parts.qos, err = qos.New(qos.Config{
		Host: n.host, Pods: n.loop.Pods, Seen: n.loop.SourcesSeen, UID: gcpolicy.CgroupUID, All: func() spec.PodsShare { return n.seen.load().share },
		Driver: func() string { return n.seen.load().spec.CgroupDriver },
		Known: func(uid types.UID) bool {
			return n.loop.Known(uid) || slices.ContainsFunc(n.pleg.Cache().Known(), func(r pod.Ref) bool { return r.UID == uid })
		},
		Event: func(kind, reason, message string) {
			n.recorder.Event(ref, kind, reason, message)
			// Cgroup version 2 shows only below the root whether the kernel counts swap: read the
			// facts again.
			n.seen.due.Send()
		},
	})
	return err
}

// podsShare returns the host's capacity, less systemReserved and kubeReserved if
// enforceNodeAllocatable contains "pods". It does not subtract the eviction thresholds, or the
// kernel would OOM-kill before the eviction manager acts.
func podsShare(cfg *config.Host, f *host.Facts) (spec.PodsShare, error) {
	share := spec.PodsShare{
		MilliCPU: int64(f.CPUs) * 1000, MemoryBytes: f.MemoryBytes, Pids: f.PidsMax, HugePageBytes: maps.Clone(f.HugePages),
	}
	if !slices.Contains(cfg.EnforceNodeAllocatable, config.EnforcePods) {
		return share, nil
	}
	for _, list := range []map[string]string{cfg.SystemReserved, cfg.KubeReserved} {
		for name, amount := range list {
			q, err := resource.ParseQuantity(amount)
			if err != nil {
				return share, fmt.Errorf("reserved %s %q: %w", name, amount, err)
			}
			switch v1.ResourceName(name) {
			case v1.ResourceCPU:
				share.MilliCPU -= q.MilliValue()
			case v1.ResourceMemory:
				share.MemoryBytes -= q.Value()
			}
			if share.MilliCPU <= 0 || share.MemoryBytes <= 0 {
				return share, fmt.Errorf("systemReserved and kubeReserved exceed the host's %s", name)
			}
		}
	}
	return share, nil
}
