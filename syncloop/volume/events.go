package volume

import (
	"context"
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/bowline-k8s/bowline/host/budget"
)

// event records an event with a kubelet's reason, on a pod or on a persistent volume.
func (m *Manager) event(about runtime.Object, kind, reason, message string) {
	if m.cfg.Event != nil {
		m.cfg.Event(about, kind, reason, message)
	}
}

// A change of group that takes groupFirst has an event, and another each groupAgain, as with a
// kubelet.
const (
	groupFirst = 30 * time.Second
	groupAgain = time.Minute
)

// reportSlowGroup records that the files of a volume get the pod's group, until ctx ends.
func (m *Manager) reportSlowGroup(ctx context.Context, p *v1.Pod, dir string) {
	if i := strings.Index(dir, string(p.UID)); i >= 0 {
		dir = dir[i:]
	}
	message := fmt.Sprintf("the pod waits until the files in %s have its fsGroup; fsGroupChangePolicy OnRootMismatch skips those that have it", dir)
	budget.From(ctx).Go("report a slow change of group", func() {
		for pause := groupFirst; ; pause = groupAgain {
			timer := time.NewTimer(pause)
			select {
			case <-ctx.Done():
				timer.Stop()
				return
			case <-timer.C:
			}
			m.event(p, v1.EventTypeWarning, "VolumePermissionChangeInProgress", message)
		}
	})
}

// mapped records that a block volume was given to the pod.
func (m *Manager) mapped(p *v1.Pod, volume, device string) {
	m.event(p, v1.EventTypeNormal, "SuccessfulMountVolume", fmt.Sprintf("MapVolume.MapPodDevice succeeded for volume %q devicePath %q", volume, device))
}

// mismatched records, on the persistent volume, that its device has another file system than it says.
func (m *Manager) mismatched(pv *v1.PersistentVolume, err error) {
	m.event(pv, v1.EventTypeWarning, "FailedMountOnFilesystemMismatch", fmt.Sprintf("MountVolume failed for volume %q %v", pv.Name, err))
}
