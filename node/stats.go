package node

import (
	"context"
	"os"
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/stats"
	"github.com/bowline-k8s/bowline/syncloop/volume"
)

// buildStats creates what answers how much the host and its pods use.
func (n *Node) buildStats(ctx context.Context) error {
	pause, own := sandboxImage(ctx, n.runtime), ""
	if !n.cfg.Remote() {
		own = ownCgroup()
	}
	collector, err := stats.New(stats.Config{
		Host: n.host, Runtime: n.runtime, RootDir: n.cfg.RootDirectory, VolumePeriod: n.cfg.VolumeStatsAggPeriod.Duration,
		Pods:     func() []stats.Pod { return n.statsPods(pause) },
		PodsTree: func() string { return spec.PodsCgroup(n.seen.load().spec.CgroupDriver) },
		System: func() stats.System {
			return stats.System{Kubelet: own, Runtime: runtimeUnit(n.seen.load().version.GetRuntimeName())}
		},
	})
	n.stats = &stats.Server{Collector: collector, Node: n.name, Machine: n.statsMachine}
	return err
}

// runtimeUnit returns the cgroup of the runtime's systemd unit. A host without it has no statistics of its
// runtime.
func runtimeUnit(runtime string) string {
	switch runtime {
	case "containerd":
		return "/system.slice/containerd.service"
	case "cri-o":
		return "/system.slice/crio.service"
	}
	return ""
}

// ownCgroup returns the cgroup of this process, which is the kubelet of a local host; empty if it has none of
// its own.
func ownCgroup() string {
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return ""
	}
	return ownCgroupOf(string(data))
}

// ownCgroupOf reads /proc/self/cgroup: of version 1 the path for memory, else that of version 2.
func ownCgroupOf(text string) string {
	found := ""
	for line := range strings.Lines(text) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 || parts[2] == "/" || !path.IsAbs(parts[2]) {
			continue
		}
		if slices.Contains(strings.Split(parts[1], ","), "memory") {
			return path.Clean(parts[2])
		}
		if parts[1] == "" {
			found = path.Clean(parts[2])
		}
	}
	return found
}

func (n *Node) statsMachine() stats.Machine {
	return statsMachine(n.seen.load().facts, int(n.cfg.MaxPods))
}

func statsMachine(f host.Facts, maxPods int) stats.Machine {
	return stats.Machine{
		KernelVersion: f.KernelVersion, OSImage: f.OSImage, MachineID: f.MachineID, SystemUUID: f.SystemUUID, BootID: f.BootID,
		CPUs: f.CPUs, PhysicalCores: f.PhysicalCores, CPUSockets: f.CPUSockets, MaxPods: maxPods,
	}
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
