package kubeletmetrics

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"

	"github.com/bowline-k8s/bowline/features"
	"github.com/bowline-k8s/bowline/host"
)

func TestOperationType(t *testing.T) {
	for method, want := range map[string]string{
		"RunPodSandbox": "run_podsandbox", "ListContainers": "list_containers", "ContainerStatus": "container_status", "Version": "version",
		"UpdateContainerResources": "update_container", "ImageFsInfo": "image_fs_info", "ReopenContainerLog": "reopen_container_log",
		"PodSandboxStatus": "podsandbox_status", "PullImage": "pull_image", "ExecSync": "exec_sync", "UpdateRuntimeConfig": "update_runtime_config",
	} {
		if got := OperationType(method); got != want {
			t.Errorf("%s is %s, want %s", method, got, want)
		}
	}
}

func TestOperations(t *testing.T) {
	r := metrics.NewKubeRegistry()
	o := NewOperations(r)
	failed := errors.New("no")
	hook := o.Hook(func(ctx context.Context, _ string, call func(context.Context) error) error { return call(ctx) })
	do := func(label string, err error) {
		if got := hook.Do(t.Context(), label, func(context.Context) error { return err }); got != err {
			t.Errorf("%s: %v, want %v", label, got, err)
		}
	}
	do("cri/StartContainer", nil)
	do("cri/StartContainer", failed)
	do("cri/StartContainer", fmt.Errorf("dial: %w", host.ErrUnreachable))
	do("host/EnsureCgroup", nil)
	do("host/WriteFile", nil)
	const want = `
# HELP kubelet_runtime_operations_errors_total [ALPHA] Cumulative number of runtime operation errors by operation type.
# TYPE kubelet_runtime_operations_errors_total counter
kubelet_runtime_operations_errors_total{operation_type="start_container"} 2
# HELP kubelet_runtime_operations_total [ALPHA] Cumulative number of runtime operations by operation type.
# TYPE kubelet_runtime_operations_total counter
kubelet_runtime_operations_total{operation_type="start_container"} 3
`
	if err := testutil.GatherAndCompare(r, strings.NewReader(want), "kubelet_runtime_operations_total", "kubelet_runtime_operations_errors_total"); err != nil {
		t.Error(err)
	}
	for name, n := range map[string]uint64{"kubelet_runtime_operations_duration_seconds": 2, "kubelet_cgroup_manager_duration_seconds": 1} {
		got, err := testutil.GetHistogramVecFromGatherer(r, name, nil)
		if err != nil || got.GetAggregatedSampleCount() != n {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

func TestState(t *testing.T) {
	s := State{
		NodeName: "n1", CgroupVersion: 2, Sandboxes: 3, Containers: map[string]int{"running": 4, "exited": 1}, Desired: map[bool]int{false: 3, true: 1},
		Active: map[bool]int{false: 2, true: 1}, MirrorPods: 1, EphemeralContainers: 1, Volumes: map[Volumes]int{{"kubernetes.io/secret", Actual}: 2},
		Claims:         map[Claim]host.FileSystem{{Namespace: "shop", Name: "data"}: {Bytes: 100, FreeBytes: 30, Inodes: 10, InodesFree: 4}},
		CertificateTTL: map[string]float64{"server": 3600}, RelistedAt: 1.5,
		Features: []features.State{{Name: "ContainerCheckpoint", Stage: "BETA"}, {Name: "ImageVolume", Enabled: true}},
	}
	const want = `
# HELP kubelet_active_pods [ALPHA] The number of pods the kubelet considers active and which are being considered when admitting new pods. static is true if the pod is not from the apiserver.
# TYPE kubelet_active_pods gauge
kubelet_active_pods{static=""} 2
kubelet_active_pods{static="true"} 1
# HELP kubelet_node_name [ALPHA] The node's name. The count is always 1.
# TYPE kubelet_node_name gauge
kubelet_node_name{node="n1"} 1
# HELP kubelet_running_containers [ALPHA] Number of containers currently running
# TYPE kubelet_running_containers gauge
kubelet_running_containers{container_state="exited"} 1
kubelet_running_containers{container_state="running"} 4
# HELP kubelet_running_pods [ALPHA] Number of pods that have a running pod sandbox
# TYPE kubelet_running_pods gauge
kubelet_running_pods 3
# HELP kubelet_volume_stats_inodes_used [ALPHA] Number of used inodes in the volume
# TYPE kubelet_volume_stats_inodes_used gauge
kubelet_volume_stats_inodes_used{namespace="shop",persistentvolumeclaim="data"} 6
# HELP kubelet_volume_stats_used_bytes [ALPHA] Number of used bytes in the volume
# TYPE kubelet_volume_stats_used_bytes gauge
kubelet_volume_stats_used_bytes{namespace="shop",persistentvolumeclaim="data"} 70
# HELP kubernetes_feature_enabled [BETA] This metric records the data about the stage and enablement of a k8s feature.
# TYPE kubernetes_feature_enabled gauge
kubernetes_feature_enabled{name="ContainerCheckpoint",stage="BETA"} 0
kubernetes_feature_enabled{name="ImageVolume",stage=""} 1
# HELP volume_manager_total_volumes [ALPHA] Number of volumes in Volume Manager
# TYPE volume_manager_total_volumes gauge
volume_manager_total_volumes{plugin_name="kubernetes.io/secret",state="actual_state_of_world"} 2
`
	if err := testutil.GatherAndCompare(s.Registry(), strings.NewReader(want), "kubelet_active_pods", "kubelet_node_name", "kubelet_running_containers",
		"kubelet_running_pods", "kubelet_volume_stats_inodes_used", "kubelet_volume_stats_used_bytes", "kubernetes_feature_enabled", "volume_manager_total_volumes"); err != nil {
		t.Error(err)
	}
}

func TestRequests(t *testing.T) {
	r := metrics.NewKubeRegistry()
	q := NewRequests(r)
	q.Begin("GET", "metrics/cadvisor", false)()
	q.Begin("POST", "exec", true)
	const want = `
# HELP kubelet_http_inflight_requests [ALPHA] Number of the inflight http requests
# TYPE kubelet_http_inflight_requests gauge
kubelet_http_inflight_requests{long_running="false",method="GET",path="metrics/cadvisor",server_type="readwrite"} 0
kubelet_http_inflight_requests{long_running="true",method="POST",path="exec",server_type="readwrite"} 1
# HELP kubelet_http_requests_total [ALPHA] Number of the http requests received since the server started
# TYPE kubelet_http_requests_total counter
kubelet_http_requests_total{long_running="false",method="GET",path="metrics/cadvisor",server_type="readwrite"} 1
kubelet_http_requests_total{long_running="true",method="POST",path="exec",server_type="readwrite"} 1
`
	if err := testutil.GatherAndCompare(r, strings.NewReader(want), "kubelet_http_inflight_requests", "kubelet_http_requests_total"); err != nil {
		t.Error(err)
	}
	got, err := testutil.GetHistogramVecFromGatherer(r, "kubelet_http_requests_duration_seconds", nil)
	if err != nil || got.GetAggregatedSampleCount() != 1 {
		t.Errorf("durations: %v, %v", got, err)
	}
}

func TestClient(t *testing.T) {
	r := metrics.NewKubeRegistry()
	server := httptest.NewServer(http.NotFoundHandler())
	client := &http.Client{Transport: NewClient(r).Wrap(http.DefaultTransport)}
	for range 2 {
		answer, err := client.Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
	}
	server.Close()
	if _, err := client.Get(server.URL); err == nil {
		t.Error("a server that is gone answers")
	}
	host := strings.TrimPrefix(server.URL, "http://")
	want := `
# HELP rest_client_requests_total [ALPHA] Number of HTTP requests, partitioned by status code, method, and host.
# TYPE rest_client_requests_total counter
rest_client_requests_total{code="404",host="` + host + `",method="GET"} 2
rest_client_requests_total{code="<error>",host="` + host + `",method="GET"} 1
`
	if err := testutil.GatherAndCompare(r, strings.NewReader(want), "rest_client_requests_total"); err != nil {
		t.Error(err)
	}
	got, err := testutil.GetHistogramVecFromGatherer(r, "rest_client_request_duration_seconds", map[string]string{"verb": "GET", "host": host})
	if err != nil || got.GetAggregatedSampleCount() != 3 {
		t.Errorf("durations: %v, %v", got, err)
	}
}

func TestHealthchecks(t *testing.T) {
	h := NewHealthchecks()
	h.Observe("syncloop", nil)
	h.Observe("syncloop", errors.New("stuck"))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/metrics/slis", nil))
	for _, want := range []string{`kubernetes_healthcheck{name="syncloop",type="healthz"} 0`, `kubernetes_healthchecks_total{name="syncloop",status="success",type="healthz"} 1`,
		`kubernetes_healthchecks_total{name="syncloop",status="error",type="healthz"} 1`} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("no %s in %s", want, w.Body)
		}
	}
}
