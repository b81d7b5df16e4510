package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/host"
)

// SubPath is the place on the machine of a subPath within one of the pod's
// prepared volumes. subPath is volumeMount.SubPath, or SubPathExpr already
// expanded. Missing directories are made with the volume's own mode. Links are
// resolved here, one element after another, and must stay within the volume;
// the path returned holds none below the volume's root.
//
// Errors are the kubelet's and do not tell what is where on the machine.
func (m *Manager) SubPath(ctx context.Context, p *v1.Pod, container string, vm *v1.VolumeMount, subPath string) (string, error) {
	mount, ok := m.Mounts(p.UID)[vm.Name]
	if !ok {
		return "", fmt.Errorf("cannot find volume %q to mount into container %q", vm.Name, container)
	}
	if subPath == "" {
		return mount.HostPath, nil
	}
	if path.IsAbs(subPath) {
		return "", fmt.Errorf("error SubPath `%s` must not be an absolute path", subPath)
	}
	parts := strings.Split(subPath, "/")
	if slices.Contains(parts, "..") {
		return "", fmt.Errorf("unable to provision SubPath `%s`: must not contain '..'", subPath)
	}
	resolved, err := m.resolve(ctx, mount.HostPath, parts)
	switch {
	case err == nil:
		return resolved, nil
	case errors.Is(err, errMakeSubPath):
		return "", fmt.Errorf("failed to create subPath directory for volumeMount %q of container %q", vm.Name, container)
	case errors.Is(err, errUnsafeSubPath), errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("failed to prepare subPath for volumeMount %q of container %q", vm.Name, container)
	}
	// The machine did not answer: that is no secret of its file system.
	return "", fmt.Errorf("prepare subPath for volumeMount %q of container %q: %w", vm.Name, container, err)
}

var (
	errUnsafeSubPath = errors.New("subPath leaves its volume")
	errMakeSubPath   = errors.New("subPath cannot be made")
)

// element of a path that is still to be walked.
type element struct {
	name     string
	fromLink bool // came out of a link's target: it must exist
}

// resolve walks parts below root.
func (m *Manager) resolve(ctx context.Context, root string, parts []string) (string, error) {
	root, rootInfo, err := m.follow(ctx, root)
	if err != nil {
		return "", err
	}
	var todo []element
	for _, name := range parts {
		todo = append(todo, element{name: name})
	}
	var done []string // below root, all directories but perhaps the last
	last := rootInfo
	for links := 0; len(todo) > 0; {
		e := todo[0]
		todo = todo[1:]
		switch e.name {
		case "", ".":
			continue
		case "..":
			if len(done) == 0 {
				return "", errUnsafeSubPath
			}
			done = done[:len(done)-1]
			last.Mode = fs.ModeDir
			continue
		}
		if !last.Mode.IsDir() {
			return "", errMakeSubPath
		}
		at := path.Join(append([]string{root}, append(slices.Clone(done), e.name)...)...)
		info, err := m.cfg.Host.Stat(ctx, at)
		switch {
		case errors.Is(err, fs.ErrNotExist) && !e.fromLink:
			if info, err = m.makeSubDir(ctx, at, rootInfo.Mode); err != nil {
				return "", err
			}
		case err != nil:
			return "", err
		case info.Mode&fs.ModeSymlink != 0:
			if links++; links > maxLinks || path.IsAbs(info.Target) {
				return "", errUnsafeSubPath
			}
			var target []element
			for _, name := range strings.Split(info.Target, "/") {
				target = append(target, element{name: name, fromLink: true})
			}
			todo = append(target, todo...)
			continue
		}
		done = append(done, e.name)
		last = info
	}
	return path.Join(append([]string{root}, done...)...), nil
}

// makeSubDir makes one directory with the mode of the volume's root, setgid
// included, so that an fsGroup holds in it.
func (m *Manager) makeSubDir(ctx context.Context, at string, mode fs.FileMode) (host.FileInfo, error) {
	mode &= fs.ModePerm | fs.ModeSetgid
	if err := m.cfg.Host.MkdirAll(ctx, at, mode, nil); err != nil {
		if errors.Is(err, host.ErrUnreachable) {
			return host.FileInfo{}, err
		}
		return host.FileInfo{}, fmt.Errorf("%w: %w", errMakeSubPath, err)
	}
	return host.FileInfo{Name: path.Base(at), Mode: fs.ModeDir | mode}, nil
}
