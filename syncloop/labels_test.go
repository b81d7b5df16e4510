package syncloop_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// A changed label reaches the volume that shows it at once, long before the next regular refresh.
func TestLabelsReachTheirVolume(t *testing.T) {
	t.Parallel()
	w := up(t)
	w.api.create(with(newPod("web"), func(p *v1.Pod) {
		p.Labels = map[string]string{"colour": "red"}
		p.Spec.Volumes = []v1.Volume{{Name: "down", VolumeSource: v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{
			Items: []v1.DownwardAPIVolumeFile{{Path: "labels", FieldRef: &v1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.labels"}}}}}}}
		p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "down", MountPath: "/down"}}
	}))
	p := w.untilReady("web")
	file := filepath.Join(w.dir, "root", "pods", string(p.UID), "volumes", "kubernetes.io~downward-api", "down", "labels")
	shows := func(colour string) func() bool {
		return func() bool {
			data, err := os.ReadFile(file)
			return err == nil && strings.Contains(string(data), `colour="`+colour+`"`)
		}
	}
	w.until("the file shows the first label", shows("red"))
	w.api.update("web", func(p *v1.Pod) { p.Labels["colour"] = "blue" })
	w.within(30*time.Second, "the file shows the new label", shows("blue"))
	w.api.delete("web", 1)
	w.untilGone()
}
