package syncloop_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"

	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop"
)

// counted returns the sum of all series of a family: of their values, or of a histogram's counts.
func (w *world) counted(name string) (sum float64) {
	w.t.Helper()
	families, err := w.registry.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.Metric {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

// TestMetricsOfALife: what happens to a pod is counted, once.
func TestMetricsOfALife(t *testing.T) {
	w := newWorld(t, fake.Config{})
	w.registry, w.allocatable = metrics.NewKubeRegistry(), amounts("2", "1Gi")
	w.up()
	w.createReady(sizedPod("p", "100m", "200Mi"))
	w.untilResized("p", "100m", "100m", "200Mi", "200Mi")
	if got := w.node.loop.Working(); len(got) != 1 || got[syncloop.Work{Phase: pod.Syncing, Sourced: true}] != 1 {
		t.Errorf("the workers: %v", got)
	}
	w.resize("p", func(p *v1.Pod) { sized(&p.Spec.Containers[0], "200m", "200m", "200Mi", "200Mi") })
	w.untilResized("p", "200m", "200m", "200Mi", "200Mi")
	w.end(1, "p")
	w.untilGone()
	for name, want := range map[string]float64{
		"kubelet_started_pods_total": 1, "kubelet_started_pods_errors_total": 0, "kubelet_run_podsandbox_duration_seconds": 1, "kubelet_run_podsandbox_errors_total": 0,
		"kubelet_started_containers_total": 1, "kubelet_containers_per_pod_count": 1, "kubelet_pod_worker_start_duration_seconds": 1,
		"kubelet_pod_start_duration_seconds": 1, "kubelet_pod_level_resources_admission_total": 1,
		"kubelet_container_requested_resizes_total": 2, "kubelet_pod_resize_duration_milliseconds": 1,
		"kubelet_orphaned_runtime_pods_total": 0, "kubelet_restarted_pods_total": 0, "kubelet_image_volume_requested_total": 0,
	} {
		if got := w.counted(name); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	if h, err := testutil.GetHistogramVecFromGatherer(w.registry, "kubelet_pod_resize_duration_milliseconds", map[string]string{"success": "true"}); err != nil || h.GetAggregatedSampleCount() != 1 {
		t.Errorf("the resize: %v, %v", h, err)
	}
}

// TestMetricsOfAnOrphan: a pod that runs, and that no source has, is counted once, however long it takes
// to end.
func TestMetricsOfAnOrphan(t *testing.T) {
	w := newWorld(t, fake.Config{})
	w.registry = metrics.NewKubeRegistry()
	w.up()
	w.createReady(newPod("p"))
	w.down()
	w.api.delete("p", 0)
	w.registry = metrics.NewKubeRegistry()
	w.up()
	w.untilGone()
	if got := w.counted("kubelet_orphaned_runtime_pods_total"); got != 1 {
		t.Errorf("%v orphans", got)
	}
	if got := w.counted("kubelet_containers_per_pod_count"); got != 0 {
		t.Errorf("the orphan counts as a pod that the node starts: %v", got)
	}
}
