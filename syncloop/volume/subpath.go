package volume

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/host"
)

// SubPath bind mounts a part of one of the pod's prepared volumes where no container can change it,
// and returns that place on the host. The container must mount that place, not the path in the
// volume, which may be anything by then. index is that of vm in the container's volumeMounts; part
// is vm.SubPath, or the expanded SubPathExpr. Missing directories are created with the volume's own
// mode.
//
// Each start of a container calls it again, and gets the file that the path leads to at that time. The mounts
// belong to the pod and go with Release.
//
// Errors are the kubelet's and reveal nothing of the host's file system.
func (m *Manager) SubPath(ctx context.Context, p *v1.Pod, container string, index int, vm *v1.VolumeMount, part string) (string, error) {
	if path.IsAbs(part) {
		return "", fmt.Errorf("error SubPath `%s` must not be an absolute path", part)
	}
	if slices.Contains(strings.Split(part, "/"), "..") {
		return "", fmt.Errorf("unable to provision SubPath `%s`: must not contain '..'", part)
	}
	// Hold the pod, so that nothing is mounted after a Release.
	ps, err := m.known(ctx, p.UID)
	if err != nil {
		return "", err
	}
	if ps != nil {
		defer m.unlock(ps)
		ps.parts = true
	}
	mount, ok := m.Mounts(p.UID)[vm.Name]
	if !ok {
		return "", fmt.Errorf("cannot find volume %q to mount into container %q", vm.Name, container)
	}
	if part = path.Clean(part); part == "." {
		return mount.HostPath, nil
	}
	target := path.Join(m.subPathDir(p.UID), vm.Name, container, strconv.Itoa(index))
	err = m.cfg.Host.BindSubPath(ctx, host.SubPath{Root: mount.HostPath, Path: part, Target: target})
	switch {
	case err == nil:
		return target, nil
	case errors.Is(err, host.ErrUnreachable), ctx.Err() != nil, errors.Is(err, context.DeadlineExceeded):
		// The host did not answer, which reveals nothing of its file system.
		return "", fmt.Errorf("prepare subPath for volumeMount %q of container %q: %w", vm.Name, container, err)
	}
	what := "prepare subPath"
	if errors.Is(err, host.ErrSubPathMake) {
		what = "create subPath directory"
	}
	klog.FromContext(ctx).Error(err, "Failed to prepare a subPath", "pod", klog.KObj(p), "container", container, "volume", vm.Name)
	return "", fmt.Errorf("failed to %s for volumeMount %q of container %q", what, vm.Name, container)
}

// subPathDir holds <volume>/<container>/<index> for each subPath of the pod.
func (m *Manager) subPathDir(uid types.UID) string {
	return path.Join(m.podDir(uid), "volume-subpaths")
}
