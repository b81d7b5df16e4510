package main

import (
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/gc/choose"
	"github.com/bowline-k8s/bowline/syncloop/qos"
)

// parentCgroups is what keeps the cgroups above the pods' ones.
func (n *node) parentCgroups(m spec.Machine) (*qos.Manager, error) {
	share, err := n.podsShare()
	if err != nil {
		return nil, err
	}
	ref := &v1.ObjectReference{Kind: "Node", Name: n.name, UID: types.UID(n.name)}
	return qos.New(qos.Config{
		Host: n.host, Pods: n.loop.Pods, Seen: n.loop.SourcesSeen, UID: choose.CgroupUID, All: share, Driver: m.CgroupDriver,
		Known: func(uid types.UID) bool {
			return n.loop.Known(uid) || slices.ContainsFunc(n.pleg.Cache().Known(), func(r pod.Ref) bool { return r.UID == uid })
		},
		Event: func(kind, reason, message string) { n.recorder.Event(ref, kind, reason, message) },
	})
}

// podsShare is the machine's capacity, less what the configuration reserves if it is to be
// enforced. The eviction thresholds are not taken away: the kernel would kill before
// anything is evicted.
func (n *node) podsShare() (spec.PodsShare, error) {
	share := spec.PodsShare{
		MilliCPU: int64(n.facts.CPUs) * 1000, MemoryBytes: n.facts.MemoryBytes, Pids: n.facts.PidsMax, HugePageBytes: maps.Clone(n.facts.HugePages),
	}
	if !slices.Contains(n.cfg.EnforceNodeAllocatable, config.EnforcePods) {
		return share, nil
	}
	for _, list := range []map[string]string{n.cfg.SystemReserved, n.cfg.KubeReserved} {
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
				return share, fmt.Errorf("systemReserved and kubeReserved leave the pods no %s of what the machine has; reserve less", name)
			}
		}
	}
	return share, nil
}
