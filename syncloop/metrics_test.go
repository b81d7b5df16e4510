package syncloop

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/allocation"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

// shows compares the series of counters and gauges, "name{labels} value", and of histograms
// "name_count{labels} value".
func shows(t *testing.T, r metrics.KubeRegistry, names string, want ...string) {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range families {
		if !strings.Contains(names, f.GetName()) {
			continue
		}
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			value := m.GetCounter().GetValue() + m.GetGauge().GetValue()
			if h := m.GetHistogram(); h != nil {
				value = float64(h.GetSampleCount())
			}
			got = append(got, fmt.Sprintf("%s{%s} %v", strings.TrimPrefix(f.GetName(), "kubelet_"), strings.Join(labels, ","), value))
		}
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func aPod(change func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u1", CreationTimestamp: metav1.NewTime(time.Now().Add(-time.Minute))},
		Spec: v1.PodSpec{Containers: []v1.Container{{Name: "app"}}}}
	if change != nil {
		change(p)
	}
	return p
}

func cpu(requests, limits string) v1.ResourceRequirements {
	r := v1.ResourceRequirements{}
	if requests != "" {
		r.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse(requests)}
	}
	if limits != "" {
		r.Limits = v1.ResourceList{v1.ResourceCPU: resource.MustParse(limits)}
	}
	return r
}

func TestCountsOfResizes(t *testing.T) {
	r := metrics.NewKubeRegistry()
	m := NewMetrics(r)
	with := func(app, init, sidecar v1.ResourceRequirements) *v1.Pod {
		always := v1.ContainerRestartPolicyAlways
		return aPod(func(p *v1.Pod) {
			p.Spec.Containers[0].Resources = app
			p.Spec.InitContainers = []v1.Container{{Name: "init", Resources: init}, {Name: "sidecar", Resources: sidecar, RestartPolicy: &always}}
		})
	}
	before := with(cpu("100m", "200m"), cpu("100m", ""), cpu("", "1"))
	m.wanted(before, before)
	m.wanted(before, with(cpu("200m", ""), cpu("300m", ""), cpu("50m", "500m")))
	other := with(cpu("200m", "300m"), cpu("", ""), cpu("", ""))
	other.UID = "u2"
	m.wanted(before, other) // another pod of the same name
	m.resized(20*time.Millisecond, nil)
	m.resized(20*time.Millisecond, errors.New("no"))
	low := int32(-5)
	m.resolved(aPod(nil), allocation.Accepted, "pod_updated", time.Minute, true)
	m.resolved(aPod(func(p *v1.Pod) { p.Spec.Priority = &low }), allocation.Reverted, "pod_updated", time.Minute, false)
	m.preempt(v1.ResourceCPU)
	m.neverResized("plr_feature_gate_off")
	shows(t, r, "kubelet_pod_infeasible_resizes_total kubelet_container_requested_resizes_total kubelet_pod_resize_duration_milliseconds kubelet_pod_deferred_accepted_resizes_total kubelet_pod_deferred_resize_duration_seconds kubelet_preemptions",
		"container_requested_resizes_total{operation=add,requirement=requests,resource=cpu} 1",
		"container_requested_resizes_total{operation=decrease,requirement=limits,resource=cpu} 1",
		"container_requested_resizes_total{operation=increase,requirement=requests,resource=cpu} 1",
		"container_requested_resizes_total{operation=remove,requirement=limits,resource=cpu} 1",
		"pod_deferred_accepted_resizes_total{retry_trigger=pod_updated} 1",
		"pod_deferred_resize_duration_seconds{priority_bucket=low,resolution=reverted} 1",
		"pod_deferred_resize_duration_seconds{priority_bucket=normal,resolution=accepted} 1",
		"pod_infeasible_resizes_total{reason_detail=plr_feature_gate_off} 1",
		"pod_resize_duration_milliseconds{success=false} 1",
		"pod_resize_duration_milliseconds{success=true} 1",
		"preemptions{preemption_signal=cpu} 1")
}

func TestPriorityBuckets(t *testing.T) {
	for priority, want := range map[int32]string{2_000_000_000: "system-critical", 1_999_999_999: "high", 100_000: "high", 99_999: "medium", 1: "medium",
		0: "normal", -1: "low", -999: "low", -1000: "very-low"} {
		if got := PriorityBucket(aPod(func(p *v1.Pod) { p.Spec.Priority = &priority })); got != want {
			t.Errorf("%d is %s, want %s", priority, got, want)
		}
	}
	if got := PriorityBucket(aPod(nil)); got != "normal" {
		t.Errorf("no priority is %s", got)
	}
}

func TestCountsOfStarts(t *testing.T) {
	r := metrics.NewKubeRegistry()
	m := NewMetrics(r)
	m.ranSandbox("", time.Second, nil)
	m.ranSandbox("kata", time.Second, errors.New("no"))
	m.ranSandbox("kata", time.Second, fmt.Errorf("dial: %w", host.ErrUnreachable))
	m.mountedImages(0, nil)
	m.mountedImages(2, nil)
	m.mountedImages(1, errors.New("something else"))
	m.orphaned()
	m.restart(true)
	m.restart(false)
	m.admit(aPod(nil))
	m.admit(aPod(func(p *v1.Pod) { p.Spec.Containers[0].Resources = cpu("1", "") }))
	m.admit(aPod(func(p *v1.Pod) { r := cpu("1", ""); p.Spec.Resources = &r }))
	m.admit(aPod(func(p *v1.Pod) { r := cpu("1", ""); p.Spec.Resources, p.Spec.Containers[0].Resources = &r, r }))
	shows(t, r, "kubelet_run_podsandbox_duration_seconds kubelet_run_podsandbox_errors_total kubelet_image_volume_requested_total kubelet_image_volume_mounted_succeed_total kubelet_image_volume_mounted_errors_total kubelet_orphaned_runtime_pods_total kubelet_restarted_pods_total kubelet_pod_level_resources_admission_total",
		"image_volume_mounted_errors_total{} 0",
		"image_volume_mounted_succeed_total{} 2",
		"image_volume_requested_total{} 3",
		"orphaned_runtime_pods_total{} 1",
		"pod_level_resources_admission_total{config_mode=,qos_class=besteffort} 1",
		"pod_level_resources_admission_total{config_mode=container_level,qos_class=burstable} 1",
		"pod_level_resources_admission_total{config_mode=pod_and_container_level,qos_class=burstable} 1",
		"pod_level_resources_admission_total{config_mode=pod_level,qos_class=burstable} 1",
		"restarted_pods_total{static=} 1",
		"restarted_pods_total{static=true} 1",
		"run_podsandbox_duration_seconds{runtime_handler=} 1",
		"run_podsandbox_duration_seconds{runtime_handler=kata} 1",
		"run_podsandbox_errors_total{runtime_handler=kata} 2")
}

// TestCountsOfAnEndingPod: a worker that begins with the end of a pod starts nothing. It may be the
// successor of one that ended while the API server's last word on the pod arrived.
func TestCountsOfAnEndingPod(t *testing.T) {
	for _, ending := range []bool{false, true} {
		r := metrics.NewKubeRegistry()
		l := &Loop{cfg: Config{Metrics: NewMetrics(r)}, allocation: allocation.New(allocation.Config{})}
		w := newWorker(l, pod.Ref{}, false)
		w.api = aPod(nil)
		want := "1"
		if ending {
			w.term, want = &plan.Terminate{}, "0"
		}
		w.sync.begin(w, time.Now(), pod.Observed{Seq: 1})
		shows(t, r, "kubelet_pod_worker_start_duration_seconds kubelet_containers_per_pod_count",
			"containers_per_pod_count{} "+want, "pod_worker_start_duration_seconds{} "+want)
	}
}

// TestStartSLI: the SLI leaves out pods with volumes that outlive them, and the first pod with a network
// of its own sets the gauge.
func TestStartSLI(t *testing.T) {
	r := metrics.NewKubeRegistry()
	m := NewMetrics(r)
	now := time.Now()
	start := func(age time.Duration, change func(*v1.Pod)) {
		p := aPod(change)
		p.CreationTimestamp = metav1.NewTime(now.Add(-age))
		s := starting{seen: now.Add(-time.Second)}
		s.reported(m, now, startDone, p, &v1.PodStatus{})
	}
	start(10*time.Second, func(p *v1.Pod) { p.Spec.HostNetwork = true })
	start(20*time.Second, func(p *v1.Pod) {
		p.Spec.Volumes = []v1.Volume{{VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	})
	start(30*time.Second, func(p *v1.Pod) {
		p.Spec.Volumes = []v1.Volume{{VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
	})
	start(40*time.Second, nil)
	shows(t, r, "kubelet_pod_start_sli_duration_seconds kubelet_pod_start_total_duration_seconds kubelet_first_network_pod_start_sli_duration_seconds",
		"first_network_pod_start_sli_duration_seconds{} 30",
		"pod_start_sli_duration_seconds{} 3",
		"pod_start_total_duration_seconds{} 4")
	if h, err := testutil.GetHistogramVecFromGatherer(r, "kubelet_pod_start_duration_seconds", nil); err != nil || h.GetAggregatedSampleCount() != 4 {
		t.Errorf("starts: %v, %v", h, err)
	}
}

// TestNoMetrics: without a registry nothing is counted.
func TestNoMetrics(t *testing.T) {
	var m Metrics
	p := aPod(nil)
	m.wanted(p, p)
	m.resized(0, nil)
	m.resolved(p, allocation.Accepted, "", 0, true)
	m.preempt("")
	m.neverResized("")
	m.ranSandbox("", 0, nil)
	m.mountedImages(1, nil)
	m.orphaned()
	m.restart(true)
	m.admit(p)
	m.reject("")
	m.illegalEdge()
	(&starting{}).follow(m, time.Now(), time.Now(), pod.Observed{})
}
