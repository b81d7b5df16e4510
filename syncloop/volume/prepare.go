package volume

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/syncloop/volume/render"
)

// Prepare sets up every volume of the pod and returns them by name. It may be called at any time
// and repeatedly: for a pod that is new to this process it adopts what exists, and it leaves
// existing mounts alone.
//
// The error joins one *Error per failed volume (see Failures). Volumes that succeeded stay and cost
// nothing the next time.
func (m *Manager) Prepare(ctx context.Context, p *v1.Pod) (map[string]Mount, error) {
	ps, err := m.lock(ctx, p.UID)
	if err != nil {
		return nil, err
	}
	defer m.unlock(ps)

	ctx, cancel := context.WithCancel(ctx)
	ahead := m.renderAhead(ctx, p)
	defer ahead.all.Wait()
	defer cancel()
	if err := m.ensurePodDirs(ctx, p, ps); err != nil {
		return nil, err
	}
	mounted, err := m.mountPoints(ctx, p.UID, ps)
	if err != nil {
		return nil, err
	}

	volumes := p.Spec.Volumes
	for i := range volumes {
		if ps.volumes[volumes[i].Name] == nil {
			ps.volumes[volumes[i].Name] = &volumeState{}
		}
	}
	// In parallel: a token is a request to the API server, and a remote host answers several
	// requests in the time of one.
	faults := make([]error, len(volumes))
	var wg sync.WaitGroup
	for i := range volumes {
		v, vs := &volumes[i], ps.volumes[volumes[i].Name]
		wg.Go(func() {
			err := budget.ErrPanicked
			defer budget.From(ctx).Recover("set a volume up")
			defer func() {
				if err != nil {
					faults[i] = failed(v.Name, err)
				}
			}()
			known, began := vs.ready, time.Now()
			if ahead.contents[i] != nil {
				began = ahead.began
			}
			err = m.setUp(ctx, p, v, vs, setUpState{mounted: mounted, fresh: ps.fresh, content: ahead.contents[i]})
			vs.failed = err != nil
			if vs.plugin = PluginName(v); !known {
				m.observe(vs.plugin, opMount, began, err)
			}
		})
	}
	wg.Wait()
	ps.fresh = false
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return m.publish(p.UID, ps), nil
}

// setUpState is the state of the host before a volume is set up.
type setUpState struct {
	mounted map[string]bool // mount points in the pod directory
	fresh   bool            // nothing of this pod can exist yet
	// content waits for the content of a rendered volume; nil for another.
	content func() (render.Tree, error)
}

func (m *Manager) setUp(ctx context.Context, p *v1.Pod, v *v1.Volume, vs *volumeState, at setUpState) error {
	switch {
	case render.Is(v):
		return m.setUpRendered(ctx, p, v, vs, at)
	case v.EmptyDir != nil:
		return m.setUpEmptyDir(ctx, p, v, vs, at)
	case v.HostPath != nil:
		return m.setUpHostPath(ctx, v, vs)
	case v.NFS != nil:
		return m.setUpNFS(ctx, p, v.Name, v.NFS, nil, v.NFS.ReadOnly, vs, at)
	case v.PersistentVolumeClaim != nil, v.Ephemeral != nil:
		return m.setUpClaim(ctx, p, v, vs, at)
	case v.CSI != nil:
		return driverError(v.CSI.Driver)
	case v.Image != nil:
		// The runtime mounts it when a container is created; its image is pulled before.
		vs.mount, vs.ready = Mount{ReadOnly: true, SELinux: true}, true
		return nil
	}
	return &render.UnsupportedError{Type: render.TypeOf(v)}
}

// driverError is the kubelet's error for a CSI driver that is not registered with it. On this node
// none can be.
func driverError(driver string) error {
	return fmt.Errorf("kubernetes.io/csi: driver name %s not found in the list of registered CSI drivers: this node does not support CSI volumes", driver)
}

// mountPoints lists the mounts of the pod. It asks the host each time, because the host may have
// rebooted while this process ran.
func (m *Manager) mountPoints(ctx context.Context, uid types.UID, ps *podState) (map[string]bool, error) {
	points := map[string]bool{}
	if ps.fresh {
		return points, nil
	}
	list, err := m.cfg.Host.ListMounts(ctx, m.podDir(uid))
	if err != nil {
		return nil, fmt.Errorf("list the mounts of pod %s: %w", uid, err)
	}
	for _, mount := range list {
		points[mount.Target] = true
	}
	return points, nil
}

// Mounts returns the pod's volumes by name, from the last successful Prepare of this process; nil
// if there was none. It does not block. The caller must not change the map.
func (m *Manager) Mounts(uid types.UID) map[string]Mount {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mounts[uid]
}

func (m *Manager) publish(uid types.UID, ps *podState) map[string]Mount {
	mounts := make(map[string]Mount, len(ps.volumes))
	for name, vs := range ps.volumes {
		mounts[name] = vs.mount
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mounts[uid] = mounts
	return mounts
}
