package volume

import (
	"time"

	v1 "k8s.io/api/core/v1"
)

// The names of the operations that Config.Observe gets, as a kubelet's metrics have them.
const (
	opMount   = "volume_mount"
	opUnmount = "volume_unmount"
)

// PluginName returns a kubelet's name for the plugin of a volume.
func PluginName(v *v1.Volume) string {
	switch {
	case v.ConfigMap != nil:
		return "kubernetes.io/configmap"
	case v.Secret != nil:
		return "kubernetes.io/secret"
	case v.Projected != nil:
		return "kubernetes.io/projected"
	case v.DownwardAPI != nil:
		return "kubernetes.io/downward-api"
	case v.EmptyDir != nil:
		return "kubernetes.io/empty-dir"
	case v.HostPath != nil:
		return "kubernetes.io/host-path"
	case v.NFS != nil:
		return "kubernetes.io/nfs"
	case v.Image != nil:
		return "kubernetes.io/image"
	case v.PersistentVolumeClaim != nil, v.Ephemeral != nil:
		return "kubernetes.io/persistent-claim"
	}
	return "N/A"
}

// observe reports an operation that began at this time.
func (m *Manager) observe(plugin, operation string, began time.Time, err error) {
	if m.cfg.Observe != nil {
		m.cfg.Observe(plugin, operation, time.Since(began), err)
	}
}
