package volume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/host"
)

// Release unmounts everything in the pod's directory, removes the directory, and drops the pod's
// tokens and certificates. It needs no earlier Prepare, may be called again, and is complete when it
// returns nil. It removes nothing through a mount: if an unmount fails, it returns an error and
// keeps the tree.
//
// The pod's record stays for the sweep of its logs and cgroup. A directory without a record is
// ErrForeign.
func (m *Manager) Release(ctx context.Context, uid types.UID) error {
	ps, err := m.lock(ctx, uid)
	if err != nil {
		return err
	}
	defer m.unlock(ps)

	exists, err := m.ours(ctx, uid, ps)
	if err != nil {
		return fmt.Errorf("release volumes of pod %s: %w", uid, err)
	}
	if exists {
		began := time.Now()
		err := m.removePodDir(ctx, uid, ps)
		for _, vs := range ps.volumes {
			m.observe(vs.plugin, opUnmount, began, err)
		}
		if err != nil {
			return fmt.Errorf("release volumes of pod %s: %w", uid, err)
		}
	}
	m.forget(uid, ps) // before forgetSources: see forgetAgain
	m.forgetSources(uid)
	return nil
}

// forgetSources drops the pod's tokens and certificates.
func (m *Manager) forgetSources(uid types.UID) {
	m.cfg.Tokens.Forget(uid)
	if m.cfg.Certificates != nil {
		m.cfg.Certificates.Forget(uid)
	}
}

// forgetAgain is for a caller that fetched tokens and certificates without holding the pod. If the
// pod was released meanwhile, they would be kept, and renewed, as long as this process lives.
func (m *Manager) forgetAgain(uid types.UID, ps *podState) {
	m.mu.Lock()
	released := m.pods[uid] != ps
	m.mu.Unlock()
	if released {
		m.forgetSources(uid)
	}
}

// ours reports whether there is a pod directory to remove, and returns ErrForeign for a foreign
// one.
func (m *Manager) ours(ctx context.Context, uid types.UID, ps *podState) (bool, error) {
	if ps.made {
		return true, nil
	}
	exists, err := m.exist(ctx, m.podDir(uid))
	if err != nil || !exists {
		return false, err
	}
	recorded, err := m.exist(ctx, m.recordPath(uid))
	if err != nil {
		return false, err
	}
	if !recorded {
		return false, fmt.Errorf("%s: %w", m.podDir(uid), ErrForeign)
	}
	return true, nil
}

// removeTries bounds the retries if a mount appears between ListMounts and the removal (a
// container's own mount that propagated late).
const removeTries = 3

func (m *Manager) removePodDir(ctx context.Context, uid types.UID, ps *podState) error {
	dir := m.podDir(uid)
	if known, all := ps.memoryMounts(); all {
		err := m.removeDir(ctx, dir, known...)
		if !errors.Is(err, host.ErrMountInside) {
			return err
		}
	}
	var err error
	for range removeTries {
		if err = m.unmountAll(ctx, dir); err == nil {
			err = m.removeDir(ctx, dir)
		}
		if !errors.Is(err, host.ErrMountInside) {
			break
		}
	}
	return err
}

// removeDir removes the directory of a pod if nothing but the file systems at unmount is mounted
// in it.
func (m *Manager) removeDir(ctx context.Context, dir string, unmount ...string) error {
	if err := m.cfg.Host.RemoveTree(ctx, dir, unmount...); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return nil
}

// memoryMounts returns where this process has mounted file systems in memory, and whether it knows
// of no other mounts. Most pods have no others, so that Release need not list them: the removal
// notices a mount that is left.
func (ps *podState) memoryMounts() (targets []string, all bool) {
	if !ps.new || ps.parts {
		return nil, false
	}
	for _, vs := range ps.volumes {
		if vs.bound {
			return nil, false
		}
		if vs.memory != "" {
			targets = append(targets, vs.memory)
		}
	}
	return targets, true
}

// unmountAll unmounts what is mounted in dir, deepest first.
func (m *Manager) unmountAll(ctx context.Context, dir string) error {
	mounts, err := m.cfg.Host.ListMounts(ctx, dir)
	if err != nil {
		return fmt.Errorf("list mounts in %s: %w", dir, err)
	}
	// Unmount subPaths before their volumes: after its last mount, the server of a volume may be
	// told that it is no longer used.
	parts := path.Join(dir, "volume-subpaths") + "/"
	slices.SortStableFunc(mounts, func(a, b host.Mount) int {
		return cmp.Compare(rank(a.Target, parts), rank(b.Target, parts))
	})
	var held []error // busy mounts, which do not keep the others from being unmounted
	for _, mount := range mounts {
		if mount.Target != dir && !strings.HasPrefix(mount.Target, dir+"/") {
			continue
		}
		if len(held) > 0 && rank(mount.Target, parts) > 0 && slices.ContainsFunc(held, partOf(parts, mount.Target)) {
			continue
		}
		err := m.cfg.Host.Unmount(ctx, mount.Target)
		switch {
		case errors.Is(err, host.ErrBusy):
			held = append(held, err)
		case err != nil:
			return fmt.Errorf("unmount %s: %w", mount.Target, err)
		}
	}
	return errors.Join(held...)
}

// partOf returns a func that reports whether a busy mount is a subPath of the volume at target.
// Such a volume stays mounted.
func partOf(parts, target string) func(error) bool {
	volume := parts + path.Base(target) + "/"
	return func(err error) bool {
		var busy *host.BusyError
		return errors.As(err, &busy) && strings.HasPrefix(busy.Target, volume)
	}
}

// rank is 0 for mounts below parts, else 1.
func rank(target, parts string) int {
	if strings.HasPrefix(target, parts) {
		return 0
	}
	return 1
}

// Orphans returns the pods of ours that have a directory on the host, whether or not this process
// has seen them. The caller releases those without a worker. records is a list of RecordDir.
func (m *Manager) Orphans(ctx context.Context, records []host.FileInfo) ([]types.UID, error) {
	dirs, err := m.list(ctx, PodDir(m.cfg.RootDir, ""))
	if err != nil || len(dirs) == 0 {
		return nil, err
	}
	ours := make(map[string]bool, len(records))
	for _, r := range records {
		ours[r.Name] = true
	}
	var uids []types.UID
	for _, d := range dirs {
		if d.Mode.IsDir() && ours[d.Name] {
			uids = append(uids, types.UID(d.Name))
		}
	}
	return uids, nil
}

// list is the host's List; a missing directory counts as empty.
func (m *Manager) list(ctx context.Context, dir string) ([]host.FileInfo, error) {
	infos, err := m.cfg.Host.List(ctx, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", dir, err)
	}
	return infos, nil
}
