package syncloop_test

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// A pod whose volume is in use when it ends keeps its API object, and an event names the mount and
// the process that uses it. When the volume is free, the pod goes away.
func TestAMountInUseKeepsThePodTerminating(t *testing.T) {
	t.Parallel()
	w := up(t)
	w.api.create(with(newPod("db"), func(p *v1.Pod) {
		p.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}}}
	}))
	w.untilReady("db")
	dir := "/pods/" + string(w.api.pod("db").UID) + "/volumes/kubernetes.io~empty-dir/v"
	w.host.inUse.Store(true)
	w.api.delete("db", 1)
	w.until("an event tells of the mount", func() bool {
		for _, e := range w.warnings() {
			if strings.HasPrefix(e, "Warning FailedUnMount ") && strings.Contains(e, dir+" (ext4 of /dev/sdb) is in use by process 42 (postgres)") {
				return true
			}
		}
		return false
	})
	if w.api.pod("db") == nil {
		t.Fatal("the API object went before its volumes")
	}
	w.host.inUse.Store(false)
	w.untilGone()
}
