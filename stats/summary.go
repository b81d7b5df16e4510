package stats

import (
	"path"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/bowline-k8s/bowline/host"
)

// Summary returns the summary API's view of a snapshot. Without detail it has CPU, memory and swap
// only. A value that the host does not report is left out, as a kubelet does.
func Summary(node string, s *Snapshot) *statsapi.Summary {
	b := summary{s, metav1.NewTime(s.Time)}
	out := &statsapi.Summary{Node: statsapi.NodeStats{
		NodeName: node, StartTime: metav1.NewTime(s.BootTime),
		CPU: b.cpu("", s.Node), Memory: b.memory(s.Node), Swap: b.swap(s.Node),
	}, Pods: []statsapi.PodStats{}}
	out.Node.SystemContainers = b.system()
	if s.Node.Memory.Limit > 0 {
		// The total of the host limits the root cgroup, but its swap has no limit.
		out.Node.Swap = swapOf(b.time, s.Node.Memory.Swap, s.SwapBytes-s.Node.Memory.Swap)
	}
	if s.Detail {
		out.Node.IO, out.Node.Network = b.io(s.Node), b.network(s.Interfaces)
		out.Node.Fs = b.fs(s.RootFs, host.Usage{Bytes: s.RootFs.Bytes - s.RootFs.FreeBytes, Inodes: s.RootFs.Inodes - s.RootFs.InodesFree}, s.Time)
		out.Node.Rlimit = &statsapi.RlimitStats{Time: b.time, MaxPID: &s.PidsMax, NumOfRunningProcesses: &s.Pids}
		if s.Storage != nil {
			images := b.fs(s.ImageFs, s.Storage.Images, s.Storage.Time)
			out.Node.Runtime = &statsapi.RuntimeStats{ImageFs: images, ContainerFs: images}
		}
	}
	for i := range s.Pods {
		if p, ok := b.pod(&s.Pods[i]); ok {
			out.Pods = append(out.Pods, p)
		}
	}
	return out
}

type summary struct {
	*Snapshot
	time metav1.Time
}

// pod returns the statistics of a pod; false if it has no cgroup, so that it has just been created
// or removed.
func (b summary) pod(p *Pod) (statsapi.PodStats, bool) {
	c, ok := b.Cgroups[p.Cgroup]
	if !ok {
		return statsapi.PodStats{}, false
	}
	out := statsapi.PodStats{
		PodRef:    statsapi.PodReference{Name: p.Name, Namespace: p.Namespace, UID: string(p.UID)},
		StartTime: metav1.NewTime(p.CreatedAt), Containers: []statsapi.ContainerStats{},
		CPU: b.cpu(p.Cgroup, c), Memory: b.memory(c), Swap: b.swap(c),
	}
	processes := int64(0)
	for i := range p.Containers {
		if k, cgroup, ok := b.container(p, &p.Containers[i]); ok {
			out.Containers = append(out.Containers, k)
			processes += max(cgroup.Processes, 0)
		}
	}
	if !b.Detail {
		return out, true
	}
	out.IO, out.ProcessStats = b.io(c), &statsapi.ProcessStats{ProcessCount: unsigned(processes)}
	if interfaces, ok := b.Networks[p.Cgroup]; ok {
		out.Network = b.network(interfaces)
	}
	if b.Storage != nil {
		b.storage(p, &out)
	}
	return out, true
}

func (b summary) container(p *Pod, k *Container) (statsapi.ContainerStats, host.CgroupSample, bool) {
	at, c, ok := b.CgroupOf(k.ID)
	if !ok {
		return statsapi.ContainerStats{}, c, false
	}
	out := statsapi.ContainerStats{
		Name: k.Name, StartTime: metav1.NewTime(k.CreatedAt), CPU: b.cpu(at, c), Memory: b.memory(c), Swap: b.swap(c),
	}
	if b.Detail {
		out.IO = b.io(c)
	}
	if b.Storage == nil {
		return out, c, true
	}
	if layer, ok := b.Storage.Layers[k.ID]; ok {
		out.Rootfs = b.fs(b.ImageFs, layer, b.Storage.Time)
	}
	if logs, ok := b.Storage.Dirs[path.Join(p.LogDir, k.Name)]; ok {
		out.Logs = b.fs(b.RootFs, logs, b.Storage.Time)
	}
	return out, c, true
}

// storage adds the volumes of a pod, and its ephemeral storage: writable layers, logs, and the
// volumes on disk that live as long as the pod.
func (b summary) storage(p *Pod, out *statsapi.PodStats) {
	var ephemeral host.Usage
	add := func(u *statsapi.FsStats) {
		if u != nil {
			ephemeral.Bytes += int64(*u.UsedBytes)
			ephemeral.Inodes += int64(*u.InodesUsed)
		}
	}
	for i := range out.Containers {
		add(out.Containers[i].Rootfs)
		add(out.Containers[i].Logs)
	}
	for _, v := range p.Volumes {
		stats := statsapi.VolumeStats{Name: v.Name}
		if v.Claim != "" {
			fs, ok := b.Storage.Claims[v.Path]
			if !ok {
				continue
			}
			stats.PVCRef = &statsapi.PVCReference{Name: v.Claim, Namespace: p.Namespace}
			stats.FsStats = *b.fs(fs, host.Usage{Bytes: fs.Bytes - fs.FreeBytes, Inodes: fs.Inodes - fs.InodesFree}, b.Storage.VolumesAt)
		} else {
			used, ok := b.Storage.Dirs[v.Path]
			if !ok {
				continue
			}
			stats.FsStats = *b.fs(b.RootFs, used, b.Storage.VolumesAt)
			if !v.Memory {
				add(&stats.FsStats)
			}
		}
		out.VolumeStats = append(out.VolumeStats, stats)
	}
	out.EphemeralStorage = b.fs(b.RootFs, ephemeral, b.Storage.Time)
}

// system returns the cgroups of the node itself.
func (b summary) system() []statsapi.ContainerStats {
	var out []statsapi.ContainerStats
	for _, of := range []struct{ name, cgroup string }{
		{statsapi.SystemContainerRuntime, b.System.Runtime}, {statsapi.SystemContainerKubelet, b.System.Kubelet}, {statsapi.SystemContainerPods, b.PodsTree},
	} {
		c, ok := b.Cgroups[of.cgroup]
		if of.cgroup == "" || !ok {
			continue
		}
		k := statsapi.ContainerStats{Name: of.name, StartTime: metav1.NewTime(b.BootTime), CPU: b.cpu(of.cgroup, c), Memory: b.memory(c), Swap: b.swap(c)}
		if b.Detail {
			k.IO = b.io(c)
		}
		out = append(out, k)
	}
	return out
}

func (b summary) cpu(at string, c host.CgroupSample) *statsapi.CPUStats {
	out := &statsapi.CPUStats{Time: b.time, UsageCoreNanoSeconds: known(int64(c.CPU.Usage)), PSI: psi(c.Pressure.CPU)}
	if n, ok := b.UsageNanoCores(at); ok {
		out.UsageNanoCores = &n
	}
	return out
}

func (b summary) memory(c host.CgroupSample) *statsapi.MemoryStats {
	m := c.Memory
	out := &statsapi.MemoryStats{
		Time: b.time, UsageBytes: known(m.Usage), WorkingSetBytes: known(m.WorkingSet()), RSSBytes: known(m.Anon),
		PageFaults: known(m.PageFaults), MajorPageFaults: known(m.MajorPageFaults), PSI: psi(c.Pressure.Memory),
	}
	if m.Limit >= 0 && m.Limit != host.Unlimited && m.Usage >= 0 {
		out.AvailableBytes = unsigned(m.Limit - m.WorkingSet())
	}
	return out
}

func (b summary) swap(c host.CgroupSample) *statsapi.SwapStats {
	m := c.Memory
	available := int64(host.Unknown)
	if m.SwapLimit >= 0 && m.SwapLimit != host.Unlimited {
		available = max(m.SwapLimit-m.Swap, 0)
	}
	return swapOf(b.time, m.Swap, available)
}

func swapOf(at metav1.Time, used, available int64) *statsapi.SwapStats {
	if used < 0 {
		return nil
	}
	return &statsapi.SwapStats{Time: at, SwapUsageBytes: known(used), SwapAvailableBytes: known(available)}
}

func (b summary) io(c host.CgroupSample) *statsapi.IOStats {
	if c.Pressure.IO == nil {
		return nil
	}
	return &statsapi.IOStats{Time: b.time, PSI: psi(c.Pressure.IO)}
}

// mainInterface is the interface that a kubelet shows as that of a pod and of the node.
const mainInterface = "eth0"

func (b summary) network(interfaces []host.Interface) *statsapi.NetworkStats {
	out := &statsapi.NetworkStats{Time: b.time}
	for _, i := range interfaces {
		s := statsapi.InterfaceStats{Name: i.Name, RxBytes: unsigned(i.RxBytes), RxErrors: unsigned(i.RxErrors), TxBytes: unsigned(i.TxBytes), TxErrors: unsigned(i.TxErrors)}
		out.Interfaces = append(out.Interfaces, s)
		if i.Name == mainInterface {
			out.InterfaceStats = s
		}
	}
	return out
}

func (b summary) fs(of host.FileSystem, used host.Usage, at time.Time) *statsapi.FsStats {
	out := &statsapi.FsStats{
		Time: metav1.NewTime(at), AvailableBytes: unsigned(of.FreeBytes), CapacityBytes: unsigned(of.Bytes),
		UsedBytes: unsigned(used.Bytes), InodesUsed: unsigned(used.Inodes),
	}
	if of.Inodes > 0 {
		out.Inodes, out.InodesFree = unsigned(of.Inodes), unsigned(of.InodesFree)
	}
	return out
}

// psi shows stalls. The total is in microseconds, as kubelets report it.
func psi(p *host.Pressure) *statsapi.PSIStats {
	if p == nil {
		return nil
	}
	data := func(s host.Stall) statsapi.PSIData {
		return statsapi.PSIData{Total: uint64(s.Total.Microseconds()), Avg10: s.Avg10, Avg60: s.Avg60, Avg300: s.Avg300}
	}
	return &statsapi.PSIStats{Full: data(p.Full), Some: data(p.Some)}
}

// known is nil for a counter that the host does not have.
func known(n int64) *uint64 {
	if n < 0 {
		return nil
	}
	return unsigned(n)
}

func unsigned(n int64) *uint64 {
	u := natural(n)
	return &u
}
