package volume

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/schema"
)

// pluginClaims is the directory of the records about a pod's claims.
const pluginClaims = "bowline.io~claims"

// givenLimit is more than any path on the host needs.
const givenLimit = 64 << 10

// givenVersion is the schema version of givenRecord. Version 0 is the source alone, without JSON.
const givenVersion = 1

// givenRecord says which path of the host the pod has behind a volume.
type givenRecord struct {
	SchemaVersion int    `json:"schemaVersion"`
	Source        string `json:"source"` // as ownPath writes it
}

// decodeGiven reads a record. One that is damaged names no source, so the policy decides as if the
// pod did not have the volume.
func decodeGiven(data []byte, at string) (source string, err error) {
	if !bytes.HasPrefix(data, []byte("{")) {
		return string(data), nil
	}
	var r givenRecord
	if err := schema.Decode(data, givenVersion, &r); schema.Newer(err) {
		return "", fmt.Errorf("the volume record %s belongs to another Bowline: %w", at, err)
	} else if err != nil {
		return "", nil
	}
	return r.Source, nil
}

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
	source, err := decodeGiven(data, m.givenPath(p, v))
	return err == nil && source == want, err
}

// recordGiven writes the record before the pod has the volume, so that a crash in between is
// harmless.
func (m *Manager) recordGiven(ctx context.Context, p *v1.Pod, v *v1.Volume, pv *v1.PersistentVolume) error {
	source := ownPath(pv)
	if source == "" {
		return nil
	}
	data, err := json.Marshal(givenRecord{givenVersion, source})
	if err != nil {
		return fmt.Errorf("record which volume the pod has: %w", err)
	}
	if _, err := m.cfg.Host.Make(ctx, host.Entry{Path: m.givenPath(p, v), Mode: 0o640, Data: data, Synced: true}); err != nil {
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
