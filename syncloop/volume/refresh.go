package volume

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/syncloop/volume/render"
)

// Refresh brings the pod's configMap, secret, downwardAPI and projected volumes
// to the present state of their objects, labels and tokens. Call it when one of
// them changed and each minute or so; where nothing changed it does not touch
// the machine. A volume that Prepare has not made in this process is left to
// Prepare. On an error the old content stays; errors are as Prepare's.
func (m *Manager) Refresh(ctx context.Context, p *v1.Pod) error {
	ps, volumes, err := m.refreshable(ctx, p)
	if err != nil || len(volumes) == 0 {
		return err
	}
	select {
	case ps.refresh <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("refresh volumes of pod %s: wait for the refresh before: %w", p.UID, ctx.Err())
	}
	defer func() { <-ps.refresh }()

	// The objects are asked for without holding the pod: while the API server is
	// silent, a Release need not wait for it.
	defer m.forgetAgain(p.UID, ps)
	trees := make([]render.Tree, len(volumes))
	faults := make([]error, len(volumes))
	for i, v := range volumes {
		if trees[i], err = m.render(ctx, p, v); err != nil {
			faults[i] = failed(v.Name, err)
		}
	}
	now, err := m.lock(ctx, p.UID)
	if err != nil {
		return err
	}
	defer m.unlock(now)
	if now != ps {
		// Released meanwhile; what is there now is another's to fill.
		if !now.made {
			m.forget(p.UID, now)
		}
		return nil
	}
	for i, v := range volumes {
		if faults[i] != nil {
			continue
		}
		if err := m.update(ctx, p, v, ps.volumes[v.Name], trees[i]); err != nil {
			faults[i] = failed(v.Name, err)
		}
	}
	return errors.Join(faults...)
}

// refreshable are the pod's rendered volumes that this process has made.
func (m *Manager) refreshable(ctx context.Context, p *v1.Pod) (*podState, []*v1.Volume, error) {
	ps, err := m.known(ctx, p.UID)
	if ps == nil {
		return nil, nil, err
	}
	defer m.unlock(ps)
	var volumes []*v1.Volume
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if vs := ps.volumes[v.Name]; vs != nil && vs.ready && render.Is(v) {
			volumes = append(volumes, v)
		}
	}
	return ps, volumes, nil
}

// update writes a volume whose content changed.
func (m *Manager) update(ctx context.Context, p *v1.Pod, v *v1.Volume, vs *volumeState, tree render.Tree) error {
	if vs.written && vs.hash == hash(tree) {
		return nil
	}
	plugin, memory := placeOf(v)
	dir := m.volumeDir(p.UID, plugin, v.Name)
	if memory {
		// A machine that was started anew has lost the mount, and the directory
		// beneath it is on disk, where a secret must never lie.
		mounts, err := m.cfg.Host.ListMounts(ctx, dir)
		if err != nil {
			return fmt.Errorf("list mounts at %s: %w", dir, err)
		}
		mounted := false
		for _, mount := range mounts {
			mounted = mounted || mount.Target == dir
		}
		if !mounted {
			vs.ready = false
			return fmt.Errorf("%s is no longer mounted: the pod's volumes must be prepared anew", dir)
		}
	}
	return m.write(ctx, p, dir, vs, tree)
}
