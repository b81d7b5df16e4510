package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/host"
)

// pluginClaims is the directory of the records about a pod's claims.
const pluginClaims = "bowline.io~claims"

// givenLimit is more than any path on the host needs.
const givenLimit = 64 << 10

// given reports whether the pod already has this very persistent volume behind its volume v. The
// names of the claim and of the persistent volume prove nothing, as they can be reused. What the
// node mounted for the pod is still mounted; for a path of the host that containers use directly
// there is a record.
func (m *Manager) given(ctx context.Context, p *v1.Pod, v *v1.Volume, pv *v1.PersistentVolume, at setUpState) (bool, error) {
	if at.fresh {
		return false, nil
	}
	if dir := m.mountedAt(p, pv); dir != "" {
		return at.mounted[dir], nil
	}
	want := ownPath(pv)
	if want == "" {
		return false, nil
	}
	data, err := m.cfg.Host.ReadFile(ctx, m.givenPath(p, v), givenLimit)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read which volume the pod has: %w", err)
	}
	return string(data) == want, nil
}

// recordGiven writes the record before the pod has the volume, so that a crash in between is
// harmless.
func (m *Manager) recordGiven(ctx context.Context, p *v1.Pod, v *v1.Volume, pv *v1.PersistentVolume) error {
	source := ownPath(pv)
	if source == "" {
		return nil
	}
	if _, err := m.cfg.Host.Make(ctx, host.Entry{Path: m.givenPath(p, v), Mode: 0o640, Data: []byte(source), Synced: true}); err != nil {
		return fmt.Errorf("record which volume the pod has: %w", err)
	}
	return nil
}

func (m *Manager) givenPath(p *v1.Pod, v *v1.Volume) string {
	return path.Join(m.podDir(p.UID), "plugins", pluginClaims, v.Name)
}

// mountedAt is where the node mounts the volume for the pod; empty: it does not mount it.
func (m *Manager) mountedAt(p *v1.Pod, pv *v1.PersistentVolume) string {
	switch {
	case pv.Spec.NFS != nil:
		return m.volumeDir(p.UID, pluginNFS, pv.Name)
	case pv.Spec.Local != nil && !isBlock(pv):
		return m.volumeDir(p.UID, pluginLocal, pv.Name)
	}
	return ""
}

// ownPath is the host's path that containers use directly, with its kind in front; empty: they use
// none.
func ownPath(pv *v1.PersistentVolume) string {
	switch {
	case pv.Spec.HostPath != nil:
		return "hostPath " + pv.Spec.HostPath.Path
	case pv.Spec.Local != nil && isBlock(pv):
		return "device " + pv.Spec.Local.Path
	}
	return ""
}

func isBlock(pv *v1.PersistentVolume) bool {
	return pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == v1.PersistentVolumeBlock
}
