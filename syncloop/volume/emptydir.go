package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/syncloop/volume/render"
)

// setUpEmptyDir sets up an emptyDir. It sets the ownership once in the volume's life, and the ready
// file records that across restarts of Bowline; so later changes by the pod (chmod of the root,
// chown of a file) stay.
func (m *Manager) setUpEmptyDir(ctx context.Context, p *v1.Pod, v *v1.Volume, vs *volumeState, at setUpState) error {
	e := v.EmptyDir
	dir := m.volumeDir(p.UID, pluginEmptyDir, v.Name)
	ready := path.Join(m.podDir(p.UID), "plugins", pluginEmptyDir, v.Name, "ready")
	vs.mount = Mount{HostPath: dir, SELinux: true}

	var memory, huge bool
	switch {
	case e.Medium == v1.StorageMediumDefault:
	case e.Medium == v1.StorageMediumMemory, isHugePages(e.Medium):
		memory, huge = true, isHugePages(e.Medium)
		vs.memory = dir
		if !at.mounted[dir] {
			vs.ready = false // lost with a reboot of the host, if it was ever mounted
		}
	default:
		return &render.UnsupportedError{Type: "emptyDir with medium " + string(e.Medium)}
	}
	if vs.ready {
		return nil
	}
	if !at.fresh && (!memory || at.mounted[dir]) {
		done, err := m.exist(ctx, ready, dir)
		if err != nil {
			return err
		}
		if done {
			vs.ready = true
			return nil
		}
	}

	if memory {
		if !at.mounted[dir] && huge {
			if err := m.mountHugePages(ctx, dir, p, e.Medium); err != nil {
				return err
			}
		} else if !at.mounted[dir] {
			if err := m.mountTmpfs(ctx, dir, m.memorySize(p, e.SizeLimit), tmpfsMode(e.Mode)); err != nil {
				return err
			}
		}
	} else if err := m.cfg.Host.MkdirAll(ctx, dir, dirMode(e.Mode), nil); err != nil {
		return fmt.Errorf("make directory %s: %w", dir, err)
	}
	if gid := fsGroup(p); gid != nil {
		if err := m.cfg.Host.ChownGroup(ctx, dir, *gid, false); err != nil {
			return fmt.Errorf("give %s to group %d: %w", dir, *gid, err)
		}
	}
	if _, err := m.cfg.Host.Make(ctx, host.Entry{Path: ready, Mode: 0o640}); err != nil {
		return fmt.Errorf("mark emptyDir %q ready: %w", v.Name, err)
	}
	vs.ready = true
	return nil
}

// exist reports whether all paths exist.
func (m *Manager) exist(ctx context.Context, paths ...string) (bool, error) {
	for _, p := range paths {
		_, err := m.cfg.Host.Stat(ctx, p)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return false, nil
		case err != nil:
			return false, fmt.Errorf("look for %s: %w", p, err)
		}
	}
	return true, nil
}

// tmpfsMode is emptyDir.mode as a mount option; empty leaves 1777.
func tmpfsMode(mode *int32) string {
	if mode == nil {
		return ""
	}
	return strconv.FormatInt(int64(*mode), 8)
}

// dirMode is emptyDir.mode (Unix bits, including sticky and setgid) as an fs.FileMode.
func dirMode(mode *int32) fs.FileMode {
	if mode == nil {
		return volumeDirMode
	}
	m := fs.FileMode(*mode) & fs.ModePerm
	if *mode&0o1000 != 0 {
		m |= fs.ModeSticky
	}
	if *mode&0o2000 != 0 {
		m |= fs.ModeSetgid
	}
	if *mode&0o4000 != 0 {
		m |= fs.ModeSetuid
	}
	return m
}
