package volume

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/syncloop/volume/render"
)

// Refresh updates the pod's configMap, secret, downwardAPI and projected volumes to the current
// objects, labels and tokens. Call it after a change of any of them and about once a minute; if
// nothing changed, it does not touch the host. It skips volumes that Prepare has not set up in this
// process. On an error the old content stays; errors are like those of Prepare.
func (m *Manager) Refresh(ctx context.Context, p *v1.Pod) error {
	ps, volumes, err := m.refreshable(ctx, p)
	if err != nil || len(volumes) == 0 {
		return err
	}
	select {
	case ps.refresh <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("refresh volumes of pod %s: wait for the previous refresh: %w", p.UID, ctx.Err())
	}
	defer func() { <-ps.refresh }()

	// Fetch the objects without holding the pod: a Release must not wait for a silent API server.
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
		// Released meanwhile; the current state is for another call to fill.
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

// refreshable returns the pod's rendered volumes that this process has set up.
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
		// A reboot of the host removes the mount. The directory beneath it is on disk, where a
		// secret must never be.
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
			return fmt.Errorf("%s is no longer mounted: the pod's volumes must be prepared again", dir)
		}
	}
	return m.write(ctx, p, dir, vs, tree)
}
