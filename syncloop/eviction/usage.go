package eviction

import (
	"context"
	"errors"
	"path"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/eviction/evictionpolicy"
)

// usages measures what these pods use: memory and writable layers from the runtime's stats; logs
// and disk-backed emptyDirs, if disk is set, from the host; processes, if set, from the runtime as
// far as it reports them. With ranking, an error from the host other than ErrUnreachable is only
// logged, as a ranking by the runtime's stats alone is better than none.
func (m *Manager) usages(ctx context.Context, pods []*v1.Pod, disk, processes, ranking bool) (evictionpolicy.Usages, error) {
	out := evictionpolicy.Usages{}
	for _, p := range pods {
		out[string(p.UID)] = &evictionpolicy.Usage{Volumes: map[string]evictionpolicy.Disk{}}
	}
	stats, err := m.cfg.Runtime.ListContainerStats(ctx, "")
	if err != nil {
		return nil, err
	}
	for _, s := range stats {
		u := out[s.GetAttributes().GetLabels()[pod.LabelPodUID]]
		if u == nil {
			continue
		}
		u.Containers = append(u.Containers, evictionpolicy.Container{
			Name:   s.GetAttributes().GetLabels()[pod.LabelContainerName],
			Memory: int64(s.GetMemory().GetWorkingSetBytes().GetValue()),
			RootFs: evictionpolicy.Disk{Bytes: int64(s.GetWritableLayer().GetUsedBytes().GetValue()), Inodes: int64(s.GetWritableLayer().GetInodesUsed().GetValue())},
		})
	}
	if processes {
		m.processes(ctx, out)
	}
	if disk {
		err := m.disks(ctx, pods, out)
		if err != nil && ranking && !errors.Is(err, host.ErrUnreachable) {
			klog.FromContext(ctx).Error(err, "Failed to measure the pods' directories; using only the runtime's figures")
			err = nil
		}
		return out, err
	}
	return out, nil
}

// processes adds the process counts if the runtime reports them; without them, priority alone
// decides.
func (m *Manager) processes(ctx context.Context, out evictionpolicy.Usages) {
	stats, err := m.cfg.Runtime.ListPodSandboxStats(ctx)
	if err != nil {
		return
	}
	for _, s := range stats {
		if u := out[s.GetAttributes().GetLabels()[pod.LabelPodUID]]; u != nil {
			u.Processes = int64(processCount(s))
		}
	}
}

func processCount(s *runtimeapi.PodSandboxStats) uint64 {
	return s.GetLinux().GetProcess().GetProcessCount().GetValue()
}

// disks adds the sizes of the pods' log and emptyDir directories, in one request to the host.
func (m *Manager) disks(ctx context.Context, pods []*v1.Pod, out evictionpolicy.Usages) error {
	var dirs []string
	var to []func(evictionpolicy.Disk)
	for _, p := range pods {
		u := out[string(p.UID)]
		for i := range u.Containers {
			c := &u.Containers[i]
			dirs = append(dirs, path.Join(m.cfg.LogDir(p), c.Name))
			to = append(to, func(d evictionpolicy.Disk) {
				c.Logs = d
				u.Logs = evictionpolicy.Disk{Bytes: u.Logs.Bytes + d.Bytes, Inodes: u.Logs.Inodes + d.Inodes}
			})
		}
		for _, v := range p.Spec.Volumes {
			if v.EmptyDir == nil || v.EmptyDir.Medium != v1.StorageMediumDefault {
				continue
			}
			dirs = append(dirs, path.Join(m.cfg.RootDir, "pods", string(p.UID), "volumes/kubernetes.io~empty-dir", v.Name))
			to = append(to, func(d evictionpolicy.Disk) { u.Volumes[v.Name] = d })
		}
	}
	got, err := m.cfg.Host.DiskUsage(ctx, dirs...)
	if err != nil {
		return err
	}
	for i, d := range got {
		to[i](evictionpolicy.Disk{Bytes: d.Bytes, Inodes: d.Inodes})
	}
	return nil
}
