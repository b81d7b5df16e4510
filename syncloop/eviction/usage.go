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
	"github.com/bowline-k8s/bowline/syncloop/eviction/choose"
)

// usages asks what these pods have: of memory, and what they have written, by the
// runtime; of logs and emptyDirs, with disk, by the machine; of processes by the runtime,
// where it knows. ranking: who has most is asked for, and what the runtime told is better
// than nothing.
func (m *Manager) usages(ctx context.Context, pods []*v1.Pod, disk, processes, ranking bool) (choose.Usages, error) {
	out := choose.Usages{}
	for _, p := range pods {
		out[string(p.UID)] = &choose.Usage{Volumes: map[string]choose.Disk{}}
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
		u.Containers = append(u.Containers, choose.Container{
			Name:   s.GetAttributes().GetLabels()[pod.LabelContainerName],
			Memory: int64(s.GetMemory().GetWorkingSetBytes().GetValue()),
			RootFs: choose.Disk{Bytes: int64(s.GetWritableLayer().GetUsedBytes().GetValue()), Inodes: int64(s.GetWritableLayer().GetInodesUsed().GetValue())},
		})
	}
	if processes {
		m.processes(ctx, out)
	}
	if disk {
		err := m.disks(ctx, pods, out)
		if err != nil && ranking && !errors.Is(err, host.ErrUnreachable) {
			klog.FromContext(ctx).Info("What pods have in their directories is not known: the runtime's figures alone count", "err", err)
			err = nil
		}
		return out, err
	}
	return out, nil
}

// processes counts them where the runtime can; of others priority alone decides.
func (m *Manager) processes(ctx context.Context, out choose.Usages) {
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

// disks adds what is in the directories of the pods, in one request.
func (m *Manager) disks(ctx context.Context, pods []*v1.Pod, out choose.Usages) error {
	var dirs []string
	var to []func(choose.Disk)
	for _, p := range pods {
		u := out[string(p.UID)]
		for i := range u.Containers {
			c := &u.Containers[i]
			dirs = append(dirs, path.Join(m.cfg.LogDir(p), c.Name))
			to = append(to, func(d choose.Disk) {
				c.Logs = d
				u.Logs = choose.Disk{Bytes: u.Logs.Bytes + d.Bytes, Inodes: u.Logs.Inodes + d.Inodes}
			})
		}
		for _, v := range p.Spec.Volumes {
			if v.EmptyDir == nil || v.EmptyDir.Medium != v1.StorageMediumDefault {
				continue
			}
			dirs = append(dirs, path.Join(m.cfg.RootDir, "pods", string(p.UID), "volumes/kubernetes.io~empty-dir", v.Name))
			to = append(to, func(d choose.Disk) { u.Volumes[v.Name] = d })
		}
	}
	got, err := m.cfg.Host.DiskUsage(ctx, dirs...)
	if err != nil {
		return err
	}
	for i, d := range got {
		to[i](choose.Disk{Bytes: d.Bytes, Inodes: d.Inodes})
	}
	return nil
}
