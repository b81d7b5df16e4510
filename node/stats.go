package node

import (
	"context"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/stats"
	"github.com/bowline-k8s/bowline/syncloop/volume"
)

// buildStats creates what answers how much the host and its pods use.
func (n *Node) buildStats(ctx context.Context) error {
	pause := sandboxImage(ctx, n.runtime)
	collector, err := stats.New(stats.Config{
		Host: n.host, Runtime: n.runtime, RootDir: n.cfg.RootDirectory,
		Pods:     func() []stats.Pod { return n.statsPods(pause) },
		PodsTree: func() string { return spec.PodsCgroup(n.seen.load().spec.CgroupDriver) },
		System:   func() stats.System { return stats.System{} },
	})
	n.stats = &stats.Server{Collector: collector, Node: n.name, Machine: n.statsMachine}
	return err
}

func (n *Node) statsMachine() stats.Machine {
	f := n.seen.load().facts
	return stats.Machine{KernelVersion: f.KernelVersion, OSImage: f.OSImage, CPUs: f.CPUs, PhysicalCores: f.PhysicalCores, CPUSockets: f.CPUSockets}
}

// statsPods returns the pods that run, from the PLEG cache. sandbox is the image of sandboxes.
func (n *Node) statsPods(sandbox string) []stats.Pod {
	var out []stats.Pod
	machine, cache := n.seen.load().spec, n.pleg.Cache()
	for _, ref := range cache.Known() {
		o := cache.Get(ref.UID)
		at := slices.IndexFunc(o.Sandboxes, func(s pod.Sandbox) bool { return s.Ready })
		if at < 0 {
			continue
		}
		s := &o.Sandboxes[at]
		p := stats.Pod{
			Namespace: ref.Namespace, Name: ref.Name, UID: ref.UID, CreatedAt: s.CreatedAt,
			SandboxID: s.ID, SandboxImage: sandbox, HostNetwork: s.HostNetwork,
		}
		for _, c := range o.Containers {
			if c.State == pod.StateRunning {
				p.Containers = append(p.Containers, stats.Container{ID: c.ID, Name: c.Name, Image: c.Image, CreatedAt: c.CreatedAt, StartedAt: c.StartedAt})
			}
		}
		if object := n.sources.Get(ref.UID); object != nil {
			p.LogDir = spec.LogDir(machine, object)
			p.Volumes = measuredVolumes(object, n.parts.volumes.Mounts(ref.UID), volume.PodDir(machine.RootDir, ref.UID))
		}
		out = append(out, p)
	}
	return out
}

// measuredVolumes returns the volumes of a pod that are measured: those in the pod's directory. The
// host's own paths and devices are not.
func measuredVolumes(p *v1.Pod, mounts map[string]volume.Mount, dir string) []stats.Volume {
	var out []stats.Volume
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		m, ok := mounts[v.Name]
		if !ok || !strings.HasPrefix(m.HostPath, dir+"/") {
			continue
		}
		claim := ""
		switch {
		case v.PersistentVolumeClaim != nil:
			claim = v.PersistentVolumeClaim.ClaimName
		case v.Ephemeral != nil:
			claim = p.Name + "-" + v.Name
		}
		// As for a kubelet: what is in memory, and what the node writes there for secrets and tokens, is
		// no ephemeral storage.
		memory := v.ConfigMap == nil && (v.EmptyDir == nil || v.EmptyDir.Medium != v1.StorageMediumDefault)
		out = append(out, stats.Volume{Name: v.Name, Path: m.HostPath, Claim: claim, Memory: memory})
	}
	return out
}
