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

// maxEnvFile is the most that a file of variables may have.
const maxEnvFile = 1 << 20

// EnvFile reads a file of a volume of the pod, from which a container's variables
// are taken. What the pod's containers wrote there is not trusted: no link may lead
// out of the volume, nothing but a regular file is read, and what is read is what was
// checked, whatever changes meanwhile: it is mounted where no container looks, as a
// subPath is.
func (m *Manager) EnvFile(ctx context.Context, uid types.UID, volume, file string) ([]byte, error) {
	// Held, so that nothing is mounted behind a Release, and one file at a time.
	ps, err := m.known(ctx, uid)
	if err != nil {
		return nil, err
	}
	if ps != nil {
		defer m.unlock(ps)
	}
	mount, ok := m.Mounts(uid)[volume]
	if !ok {
		return nil, fmt.Errorf("cannot find the volume %q referenced by FileKeyRef", volume)
	}
	at, err := m.inside(ctx, mount.HostPath, file)
	if err != nil {
		return nil, fmt.Errorf("find %s in volume %q: %w", file, volume, err)
	}
	// No container's name: see SubPath.
	target := path.Join(m.subPathDir(uid), volume, "_env", "0")
	if err := m.cfg.Host.BindSubPath(ctx, host.SubPath{Root: mount.HostPath, Path: at, Target: target}); err != nil {
		return nil, fmt.Errorf("read %s of volume %q: %w", file, volume, err)
	}
	data, err := m.cfg.Host.ReadTail(ctx, target, maxEnvFile+1)
	// What stays mounted goes with Release.
	err = errors.Join(err, m.cfg.Host.Unmount(ctx, target))
	if err != nil {
		return nil, fmt.Errorf("read %s of volume %q: %w", file, volume, err)
	}
	if len(data) > maxEnvFile {
		return nil, fmt.Errorf("%s of volume %q has more than %d bytes", file, volume, maxEnvFile)
	}
	return data, nil
}

// inside walks a path below root and follows the links, none of which leads out; an
// absolute one begins at root, as the containers see it that the volume is the root of.
// What it returns is below root and has no links. It is a first look: a file that is not
// there must not be made by what is done with it.
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
