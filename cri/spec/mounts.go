package spec

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// VolumeMount is a v1.Volume as it was prepared on the host.
type VolumeMount struct {
	HostPath string
	ReadOnly bool // of the volume itself, whatever the mount says
	SELinux  bool // relabel it for the pod
	// Image is set for an image volume, which the runtime mounts itself.
	Image *runtimeapi.ImageSpec
}

// SubPath is a volume mount of a container with a subPath.
type SubPath struct {
	Index  int    // into Container.VolumeMounts
	Volume string // name
	Path   string // clean, relative, without ".."
}

// SubPaths lists the subPaths that c mounts, with expressions expanded. The pod can write its
// volume's content, so a subPath may be a link out of the volume, and a checked path may have
// changed by the time the runtime mounts it. The caller must therefore mount each one at a place
// that no container can reach, and pass that place as ContainerInput.SubPaths.
func SubPaths(c *v1.Container, env []EnvVar) ([]SubPath, error) {
	var out []SubPath
	for i := range c.VolumeMounts {
		part, err := subPath(&c.VolumeMounts[i], env)
		if err != nil {
			return nil, err
		}
		if part != "" {
			out = append(out, SubPath{Index: i, Volume: c.VolumeMounts[i].Name, Path: part})
		}
	}
	return out, nil
}

func subPath(mount *v1.VolumeMount, env []EnvVar) (string, error) {
	part := mount.SubPath
	if mount.SubPathExpr != "" {
		var missing []string
		lookup := envLookup(env)
		part = Expand(mount.SubPathExpr, func(name string) (string, bool) {
			value, ok := lookup(name)
			if !ok || value == "" {
				missing = append(missing, name)
			}
			return value, true
		})
		if len(missing) > 0 {
			slices.Sort(missing)
			return "", fmt.Errorf("missing value for %s", strings.Join(slices.Compact(missing), ", "))
		}
	}
	if part == "" {
		return "", nil
	}
	if path.IsAbs(part) {
		return "", fmt.Errorf("error SubPath `%s` must not be an absolute path", part)
	}
	if slices.Contains(strings.Split(part, "/"), "..") {
		return "", fmt.Errorf("unable to provision SubPath `%s`: must not contain '..'", part)
	}
	return path.Clean(part), nil
}

// mounts returns the container's volumes in the spec's order, then /etc/hosts, then the termination
// log. The runtime itself provides /dev/shm, /etc/hostname and /etc/resolv.conf.
func mounts(p *v1.Pod, c *v1.Container, m Machine, in ContainerInput) ([]*runtimeapi.Mount, error) {
	var out []*runtimeapi.Mount
	for i := range c.VolumeMounts {
		mount, err := volumeMount(c, i, m, in)
		if err != nil {
			return nil, err
		}
		out = append(out, mount)
	}
	if in.EtcHostsPath != "" && ManagesHosts(p, c, in.PodIPs) {
		out = append(out, &runtimeapi.Mount{HostPath: in.EtcHostsPath, ContainerPath: etcHosts, SelinuxRelabel: m.SELinux})
	}
	if in.TerminationLogPath != "" && c.TerminationMessagePath != "" {
		out = append(out, &runtimeapi.Mount{
			HostPath:       in.TerminationLogPath,
			ContainerPath:  absolute(c.TerminationMessagePath),
			SelinuxRelabel: m.SELinux,
		})
	}
	return out, nil
}

func volumeMount(c *v1.Container, index int, m Machine, in ContainerInput) (*runtimeapi.Mount, error) {
	mount := &c.VolumeMounts[index]
	volume, ok := in.Mounts[mount.Name]
	if !ok || volume.HostPath == "" && volume.Image == nil {
		return nil, fmt.Errorf("cannot find volume %q to mount into container %q", mount.Name, c.Name)
	}
	part, err := subPath(mount, in.Env)
	if err != nil {
		return nil, err
	}
	recursive, err := recursiveReadOnly(mount, m)
	if err != nil {
		return nil, fmt.Errorf("failed to resolve recursive read-only mode: %w", err)
	}
	propagation, err := mountPropagation(mount)
	if err != nil {
		return nil, err
	}
	out := &runtimeapi.Mount{
		ContainerPath:     absolute(mount.MountPath),
		Readonly:          mount.ReadOnly || volume.ReadOnly,
		RecursiveReadOnly: recursive,
		SelinuxRelabel:    volume.SELinux && m.SELinux,
		Propagation:       propagation,
	}
	switch resolved := in.SubPaths[index]; {
	case volume.Image != nil:
		out.Image, out.ImageSubPath = volume.Image, part
	case part == "":
		out.HostPath = volume.HostPath
	case resolved != "":
		out.HostPath = resolved
	default:
		// This only joins strings and ignores links below: see SubPaths.
		out.HostPath = join(volume.HostPath, part)
	}
	return out, nil
}

func absolute(p string) string {
	if path.IsAbs(p) {
		return p
	}
	return "/" + p
}

func mountPropagation(mount *v1.VolumeMount) (runtimeapi.MountPropagation, error) {
	if mount.MountPropagation == nil {
		return runtimeapi.MountPropagation_PROPAGATION_PRIVATE, nil
	}
	switch *mount.MountPropagation {
	case v1.MountPropagationHostToContainer:
		return runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER, nil
	case v1.MountPropagationBidirectional:
		return runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL, nil
	case v1.MountPropagationNone:
		return runtimeapi.MountPropagation_PROPAGATION_PRIVATE, nil
	}
	return 0, fmt.Errorf("invalid MountPropagation mode: %q", *mount.MountPropagation)
}

func recursiveReadOnly(mount *v1.VolumeMount, m Machine) (bool, error) {
	if mount.RecursiveReadOnly == nil || *mount.RecursiveReadOnly == v1.RecursiveReadOnlyDisabled {
		return false, nil
	}
	if !mount.ReadOnly {
		return false, fmt.Errorf("volume %q requested recursive read-only mode, but it is not read-only", mount.Name)
	}
	if mount.MountPropagation != nil && *mount.MountPropagation != v1.MountPropagationNone {
		return false, fmt.Errorf("volume %q requested recursive read-only mode, but it is not compatible with propagation %q", mount.Name, *mount.MountPropagation)
	}
	switch *mount.RecursiveReadOnly {
	case v1.RecursiveReadOnlyIfPossible:
		return m.RecursiveReadOnly, nil
	case v1.RecursiveReadOnlyEnabled:
		if !m.RecursiveReadOnly {
			return false, fmt.Errorf("volume %q requested recursive read-only mode, but it is not supported by the runtime", mount.Name)
		}
		return true, nil
	}
	return false, errors.New("unknown recursive read-only mode " + string(*mount.RecursiveReadOnly))
}
