package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/host"
)

// maxEnvFile is the greatest size of a file with environment variables, in bytes.
const maxEnvFile = 1 << 20

// EnvFile reads a file in a volume of the pod that sets a container's environment. It does not trust
// the content of the volume, which containers may have written: no link may lead out of the volume, and only a regular
// file is read. Like a subPath, the checked file is bind mounted where no container can change it,
// so that exactly this file is read, whatever changes meanwhile.
func (m *Manager) EnvFile(ctx context.Context, uid types.UID, volume, file string) ([]byte, error) {
	// Hold the pod, so that nothing is mounted after a Release, and one file is read at a time.
	ps, err := m.known(ctx, uid)
	if err != nil {
		return nil, err
	}
	if ps != nil {
		defer m.unlock(ps)
		ps.parts = true
	}
	mount, ok := m.Mounts(uid)[volume]
	if !ok {
		return nil, fmt.Errorf("cannot find the volume %q referenced by FileKeyRef", volume)
	}
	at, err := m.inside(ctx, mount.HostPath, file)
	if err != nil {
		return nil, fmt.Errorf("find %s in volume %q: %w", file, volume, err)
	}
	// No container can have this name: see SubPath.
	target := path.Join(m.subPathDir(uid), volume, "_env", "0")
	if err := m.cfg.Host.BindSubPath(ctx, host.SubPath{Root: mount.HostPath, Path: at, Target: target}); err != nil {
		return nil, fmt.Errorf("read %s of volume %q: %w", file, volume, err)
	}
	data, err := m.cfg.Host.ReadTail(ctx, target, maxEnvFile+1)
	// If the unmount fails, Release unmounts it.
	err = errors.Join(err, m.cfg.Host.Unmount(ctx, target))
	if err != nil {
		return nil, fmt.Errorf("read %s of volume %q: %w", file, volume, err)
	}
	if len(data) > maxEnvFile {
		return nil, fmt.Errorf("%s of volume %q has more than %d bytes", file, volume, maxEnvFile)
	}
	return data, nil
}

// inside resolves a path below root with its links, none of which leads out; an absolute link
// begins at root, as for containers that have the volume as their root. The result is relative to
// root and has no links. This check comes first because a missing file must not be created when it
// is mounted.
func (m *Manager) inside(ctx context.Context, root, file string) (string, error) {
	todo := strings.Split(file, "/")
	var done []string
	for links := 0; len(todo) > 0; {
		name := todo[0]
		todo = todo[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			done = done[:max(len(done)-1, 0)]
			continue
		}
		info, err := m.cfg.Host.Stat(ctx, path.Join(append([]string{root}, append(slices.Clone(done), name)...)...))
		if err != nil {
			return "", err
		}
		if info.Mode&fs.ModeSymlink == 0 {
			done = append(done, name)
			continue
		}
		if links++; links > maxLinks {
			return "", fmt.Errorf("more than %d links: %w", maxLinks, fs.ErrInvalid)
		}
		if path.IsAbs(info.Target) {
			done = nil
		}
		todo = append(strings.Split(info.Target, "/"), todo...)
	}
	return path.Join(done...), nil
}
