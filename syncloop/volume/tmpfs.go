package volume

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/pod"
)

// mountTmpfs mounts a tmpfs of at most size bytes on dir (0: the kernel's default, half of the
// memory). mode is octal, or empty for the kernel's default 1777.
func (m *Manager) mountTmpfs(ctx context.Context, dir string, size int64, mode string) error {
	mount := host.Mount{Source: "tmpfs", Target: dir, Type: "tmpfs"}
	if size > 0 {
		mount.Options = append(mount.Options, "size="+strconv.FormatInt(size, 10))
	}
	if mode != "" {
		mount.Options = append(mount.Options, "mode="+mode)
	}
	if m.cfg.TmpfsNoSwap != nil && m.cfg.TmpfsNoSwap() {
		mount.Options = append(mount.Options, "noswap")
	}
	if err := m.cfg.Host.Mount(ctx, mount); err != nil {
		return fmt.Errorf("mount tmpfs on %s: %w", dir, err)
	}
	return nil
}

// memorySize is the size of a memory-backed volume in bytes: the least of the node's allocatable
// memory, the pod's memory limit and the volume's own limit; 0 if none is set.
func (m *Manager) memorySize(p *v1.Pod, limit *resource.Quantity) int64 {
	allocatable := m.cfg.Allocatable()
	size := allocatable.Memory().Value()
	smaller := func(n int64) {
		if n > 0 && (size <= 0 || n < size) {
			size = n
		}
	}
	if memoryIsLimited(p) {
		limits := resourcehelper.PodLimits(p, resourcehelper.PodResourcesOptions{})
		smaller(limits.Memory().Value())
	}
	if limit != nil {
		smaller(limit.Value())
	}
	return size
}

// memoryIsLimited reports whether the pod's cgroup has a memory limit, because the pod has one or
// each of its containers has.
func memoryIsLimited(p *v1.Pod) bool {
	if r := p.Spec.Resources; r != nil {
		if _, ok := r.Limits[v1.ResourceMemory]; ok {
			return true
		}
	}
	for c := range pod.Containers(&p.Spec) {
		if c.Resources.Limits.Memory().IsZero() {
			return false
		}
	}
	return true
}

// NoSwapSupported reports whether tmpfs has the noswap option in a kernel of this version
// ("6.8.0-31-generic"); it came with Linux 6.4.
func NoSwapSupported(kernelVersion string) bool {
	major, rest, ok := strings.Cut(kernelVersion, ".")
	if !ok {
		return false
	}
	end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	if end >= 0 {
		rest = rest[:end]
	}
	a, errA := strconv.Atoi(major)
	b, errB := strconv.Atoi(rest)
	return errA == nil && errB == nil && (a > 6 || a == 6 && b >= 4)
}
