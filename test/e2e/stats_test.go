package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// nodeAPI returns what the node's API answers at this path.
func nodeAPI(ctx context.Context, p string) ([]byte, error) {
	p, query, _ := strings.Cut(p, "?")
	r := lab.Client.CoreV1().RESTClient().Get().Resource("nodes").Name(host).SubResource("proxy").Suffix(p)
	if key, value, ok := strings.Cut(query, "="); ok {
		r = r.Param(key, value)
	}
	return r.Do(ctx).Raw()
}

// scrape returns the families at a path of the node's API.
func scrape(ctx context.Context, p string) (map[string]*dto.MetricFamily, error) {
	data, err := nodeAPI(ctx, p)
	if err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	return parser.TextToMetricFamilies(bytes.NewReader(data))
}

// series returns the series of a family with these labels, "name=value".
func series(families map[string]*dto.MetricFamily, name string, labels ...string) []*dto.Metric {
	var out []*dto.Metric
	for _, m := range families[name].GetMetric() {
		has := map[string]bool{}
		for _, l := range m.GetLabel() {
			has[l.GetName()+"="+l.GetValue()] = true
		}
		all := true
		for _, l := range labels {
			all = all && has[l]
		}
		if all {
			out = append(out, m)
		}
	}
	return out
}

func value(m *dto.Metric) float64 {
	return m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetUntyped().GetValue()
}

// number returns the value of the only series with these labels.
func number(t *testing.T, families map[string]*dto.MetricFamily, name string, labels ...string) float64 {
	t.Helper()
	found := series(families, name, labels...)
	if len(found) != 1 {
		t.Errorf("%d series %s%q, want one: %v", len(found), name, labels, families[name].GetMetric())
		return math.NaN()
	}
	return value(found[0])
}

// cgroupFile returns the content of a file of a container's cgroup, under either version.
func cgroupFile(t *testing.T, id string, files ...string) string {
	t.Helper()
	for _, f := range files {
		for _, pattern := range []string{"/sys/fs/cgroup/*", "/sys/fs/cgroup"} {
			for _, depth := range []string{"/*/*/*/*", "/*/*/*/*/*", "/*/*/*", "/*/*/*/*/*/*"} {
				found, _ := filepath.Glob(pattern + depth + "/*" + id + "*/" + f)
				if len(found) > 0 {
					data, err := os.ReadFile(found[0])
					testutil.Must(t, err)
					return string(data)
				}
			}
		}
	}
	t.Fatalf("no cgroup of %s has any of %q", id, files)
	return ""
}

// used is what the kernel says that a container uses: CPU time, and memory without inactive pages.
func used(t *testing.T, id string) (cpu time.Duration, memory int64) {
	t.Helper()
	usage := strings.TrimSpace(cgroupFile(t, id, "cpuacct.usage", "cpu.stat"))
	if micros, ok := strings.CutPrefix(strings.Split(usage, "\n")[0], "usage_usec "); ok {
		usage = micros + "000"
	}
	ns, err := strconv.ParseInt(usage, 10, 64)
	testutil.Must(t, err)
	memory, err = strconv.ParseInt(strings.TrimSpace(cgroupFile(t, id, "memory.usage_in_bytes", "memory.current")), 10, 64)
	testutil.Must(t, err)
	stat := "\n" + cgroupFile(t, id, "memory.stat")
	for _, key := range []string{"\ntotal_inactive_file ", "\ninactive_file "} {
		if _, rest, ok := strings.Cut(stat, key); ok {
			inactive, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			testutil.Must(t, err)
			return time.Duration(ns), max(memory-inactive, 0)
		}
	}
	t.Fatalf("no inactive_file in %q", stat)
	return 0, 0
}

func containerOf(p *v1.Pod, name string) string {
	for _, s := range p.Status.ContainerStatuses {
		if s.Name == name {
			_, id, _ := strings.Cut(s.ContainerID, "://")
			return id
		}
	}
	return ""
}

// What the node says that a pod uses agrees with the pod's control groups, in every form in which it
// says it.
func TestStats(t *testing.T) {
	parallel(t)
	ns := namespace(t)
	create(t, ns, brief("busy", `
  containers:
  - name: main
    image: $TOOLBOX
    command: [sh, -c, "head -c 1000000 /dev/zero > /tmp/written; head -c 500000 /dev/zero > /scratch/file; x=$(head -c 16777216 /dev/zero | tr '\\0' x); echo started; while true; do i=0; while [ $i -lt 2000 ]; do i=$((i+1)); done; sleep 0.05; done"]
    resources: {limits: {memory: 128Mi, cpu: 500m}, requests: {cpu: 10m, memory: 16Mi}}
    volumeMounts: [{name: scratch, mountPath: /scratch}]
  - {name: idle, image: $TOOLBOX, command: [sleep, inf]}
  volumes: [{name: scratch, emptyDir: {}}]
`))
	p := ready(t, ns, "busy")
	id := containerOf(p, "main")
	until(t, "its memory is in use", func(context.Context) error {
		if _, memory := used(t, id); memory < 16<<20 {
			return fmt.Errorf("%d bytes", memory)
		}
		return nil
	})

	var resource map[string]*dto.MetricFamily
	labels := []string{"container=main", "pod=busy", "namespace=" + ns}
	cpu, memory := used(t, id)
	until(t, "/metrics/resource has what was used", func(ctx context.Context) (err error) {
		if resource, err = scrape(ctx, "metrics/resource"); err != nil {
			return err
		}
		found := series(resource, "container_cpu_usage_seconds_total", labels...)
		if len(found) != 1 || value(found[0]) < cpu.Seconds() {
			return fmt.Errorf("it has %v, the container had used %v before", found, cpu)
		}
		// The container may still grow or shrink: a sample may be ten seconds old.
		_, memory = used(t, id)
		if got := number(t, resource, "container_memory_working_set_bytes", labels...); !(math.Abs(got-float64(memory)) <= 0.05*float64(memory)) {
			return fmt.Errorf("the working set is %v, want about %v", got, memory)
		}
		return nil
	})
	after, _ := used(t, id)
	if got := number(t, resource, "container_cpu_usage_seconds_total", labels...); got > after.Seconds() {
		t.Errorf("the container has used %v s of CPU, the kernel says %v", got, after)
	}
	for _, name := range []string{"pod_cpu_usage_seconds_total", "pod_memory_working_set_bytes"} {
		if number(t, resource, name, labels[1:]...) <= 0 {
			t.Errorf("%s is not above 0", name)
		}
	}
	if start := number(t, resource, "container_start_time_seconds", labels...); time.Since(time.UnixMilli(int64(start*1000))).Abs() > 10*time.Minute {
		t.Errorf("the container began at %v", start)
	}
	equal(t, "resource_scrape_error", number(t, resource, "resource_scrape_error"), 0)
	if _, there := resource["scrape_error"]; there {
		t.Error("there is scrape_error, which kubelets hid long ago")
	}
	if number(t, resource, "node_cpu_usage_seconds_total") <= after.Seconds() || number(t, resource, "node_memory_working_set_bytes") <= float64(memory) {
		t.Error("the node uses less than one container")
	}
	taken := series(resource, "container_cpu_usage_seconds_total", labels...)[0].GetTimestampMs()
	if at := time.UnixMilli(taken); time.Since(at) < 0 || time.Since(at) > time.Minute {
		t.Errorf("taken at %v, now it is %v", at, time.Now())
	}

	summary := statsapi.Summary{}
	var main statsapi.ContainerStats
	until(t, "the summary has the pod with its storage", func(ctx context.Context) error {
		data, err := nodeAPI(ctx, "stats/summary")
		if err != nil {
			return err
		}
		summary = statsapi.Summary{}
		if err := json.Unmarshal(data, &summary); err != nil {
			return err
		}
		pod := podStats(&summary, ns, "busy")
		if pod == nil || len(pod.Containers) != 2 || pod.EphemeralStorage == nil {
			return fmt.Errorf("it has %+v", pod)
		}
		for _, c := range pod.Containers {
			if c.Name == "main" {
				main = c
			}
		}
		if main.Rootfs == nil || main.Rootfs.UsedBytes == nil || *main.Rootfs.UsedBytes < 1_000_000 || main.Logs == nil {
			return fmt.Errorf("the container has %+v and logs %+v", main.Rootfs, main.Logs)
		}
		return nil
	})
	pod := podStats(&summary, ns, "busy")
	if main.CPU.UsageNanoCores == nil || *main.CPU.UsageNanoCores < 1e6 || *main.CPU.UsageNanoCores > 700e6 {
		t.Errorf("the container uses %v nanocores", main.CPU.UsageNanoCores)
	}
	_, memory = used(t, id)
	near(t, "working set in the summary", float64(*main.Memory.WorkingSetBytes), float64(memory))
	near(t, "available memory", float64(*main.Memory.AvailableBytes), float64(128<<20-memory))
	if pod.Network == nil || pod.Network.Name != "eth0" || *pod.Network.RxBytes == 0 {
		t.Errorf("network %+v", pod.Network)
	}
	if len(pod.VolumeStats) != 2 {
		t.Errorf("volumes %+v", pod.VolumeStats)
	}
	for _, v := range pod.VolumeStats {
		if v.Name == "scratch" && (*v.UsedBytes < 500_000 || *v.UsedBytes > 600_000 || *v.CapacityBytes == 0) {
			t.Errorf("the emptyDir uses %d bytes of %d", *v.UsedBytes, *v.CapacityBytes)
		}
	}
	if used := *pod.EphemeralStorage.UsedBytes; used < 1_500_000 || used > 5_000_000 {
		t.Errorf("the pod uses %d bytes of ephemeral storage", used)
	}
	n := summary.Node
	if n.NodeName != host || n.Fs == nil || *n.Fs.CapacityBytes == 0 || n.Runtime == nil || *n.Runtime.ImageFs.UsedBytes == 0 || n.Rlimit == nil || n.Network == nil || n.StartTime.IsZero() {
		t.Errorf("the node: %+v", n)
	}

	brief, err := nodeAPI(t.Context(), "stats/summary?only_cpu_and_memory=true")
	testutil.Must(t, err)
	summary = statsapi.Summary{}
	testutil.Must(t, json.Unmarshal(brief, &summary))
	if pod := podStats(&summary, ns, "busy"); pod == nil || pod.CPU == nil || pod.Memory == nil || pod.Network != nil || pod.EphemeralStorage != nil || summary.Node.Fs != nil {
		t.Errorf("with only_cpu_and_memory: %s", brief)
	}
	testCadvisor(t, ns, id, labels)
	testNodeMetrics(t)

	// A later scrape has later times.
	until(t, "the times advance", func(ctx context.Context) error {
		families, err := scrape(ctx, "metrics/resource")
		if err != nil {
			return err
		}
		found := series(families, "container_cpu_usage_seconds_total", labels...)
		if len(found) != 1 || found[0].GetTimestampMs() <= taken {
			return fmt.Errorf("still %d", taken)
		}
		return nil
	})
}

// testNodeMetrics: /metrics has the series of the node that kubernetes-mixin's rules and dashboards
// ask for.
func testNodeMetrics(t *testing.T) {
	families, err := scrape(t.Context(), "metrics")
	testutil.Must(t, err)
	for name, labels := range map[string][]string{
		"kubelet_http_requests_total":      {"method=GET", "path=metrics/resource", "server_type=readwrite", "long_running=false"},
		"kubelet_http_inflight_requests":   {"method=GET", "path=metrics", "server_type=readwrite", "long_running=false"},
		"rest_client_requests_total":       {"code=200", "method=PATCH"},
		"kubelet_running_pods":             nil,
		"kubelet_node_name":                {"node=" + host},
		"kubelet_runtime_operations_total": {"operation_type=run_podsandbox"},
		"volume_manager_total_volumes":     {"plugin_name=kubernetes.io/empty-dir", "state=actual_state_of_world"},
		"kubelet_running_containers":       {"container_state=running"},
		"kubernetes_build_info":            nil,
	} {
		found := series(families, name, labels...)
		if len(found) == 0 || value(found[0]) < 1 {
			t.Errorf("%s with %v: %v", name, labels, found)
		}
	}
	for name, labels := range map[string][]string{
		"kubelet_http_requests_duration_seconds":      {"path=metrics/resource"},
		"rest_client_request_duration_seconds":        {"verb=GET"},
		"storage_operation_duration_seconds":          {"volume_plugin=kubernetes.io/empty-dir", "operation_name=volume_mount", "status=success"},
		"kubelet_pod_worker_duration_seconds":         nil,
		"kubelet_pod_start_duration_seconds":          nil,
		"kubelet_cgroup_manager_duration_seconds":     nil,
		"kubelet_pleg_relist_duration_seconds":        nil,
		"kubelet_pleg_relist_interval_seconds":        nil,
		"kubelet_runtime_operations_duration_seconds": {"operation_type=create_container"},
	} {
		found := series(families, name, labels...)
		if len(found) == 0 || found[0].GetHistogram().GetSampleCount() == 0 {
			t.Errorf("%s with %v: %v", name, labels, found)
		}
	}
}

func testCadvisor(t *testing.T, ns, id string, labels []string) {
	families, err := scrape(t.Context(), "metrics/cadvisor")
	testutil.Must(t, err)
	equal(t, "container_scrape_error", number(t, families, "container_scrape_error"), 0)
	equal(t, "machine_scrape_error", number(t, families, "machine_scrape_error"), 0)
	full := append(labels, "name="+id, "image="+toolbox)
	cpu, memory := used(t, id)
	if got := number(t, families, "container_cpu_usage_seconds_total", append(full, "cpu=total")...); got <= 0 || got > cpu.Seconds() {
		t.Errorf("cAdvisor's CPU time is %v s, the kernel's %v", got, cpu)
	}
	near(t, "cAdvisor's working set", number(t, families, "container_memory_working_set_bytes", full...), float64(memory))
	equal(t, "memory limit", number(t, families, "container_spec_memory_limit_bytes", full...), 128<<20)
	equal(t, "CPU quota", number(t, families, "container_spec_cpu_quota", full...), 50000)
	if number(t, families, "container_cpu_cfs_periods_total", full...) <= 0 || number(t, families, "container_processes", full...) < 1 {
		t.Error("no CFS periods or no processes")
	}
	if got := number(t, families, "container_network_receive_bytes_total", "container=", "pod=busy", "namespace="+ns, "interface=eth0"); got <= 0 {
		t.Errorf("the pod has received %v bytes", got)
	}
	if number(t, families, "machine_memory_bytes") <= 0 || number(t, families, "machine_cpu_cores") < 1 || number(t, families, "container_memory_working_set_bytes", "id=/") <= float64(memory) {
		t.Error("the machine")
	}
	for _, family := range []string{"container_memory_rss", "container_memory_cache", "container_memory_usage_bytes", "container_memory_swap", "container_threads", "container_last_seen", "container_start_time_seconds"} {
		if len(series(families, family, full...)) != 1 {
			t.Errorf("no %s", family)
		}
	}
}

func podStats(s *statsapi.Summary, ns, name string) *statsapi.PodStats {
	for i := range s.Pods {
		if s.Pods[i].PodRef.Namespace == ns && s.Pods[i].PodRef.Name == name {
			return &s.Pods[i]
		}
	}
	return nil
}

// near fails unless got is within 5 % of want.
func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if !(math.Abs(got-want) <= 0.05*want) {
		t.Errorf("%s is %v, want about %v", what, got, want)
	}
}

// While the link is down, a scrape succeeds and says that it has nothing. It has no old numbers.
func TestStatsWithoutTheLink(t *testing.T) {
	serial(t)
	onlyRemote(t)
	const old = "container_cpu_usage_seconds_total"
	families, err := scrape(t.Context(), "metrics/resource")
	testutil.Must(t, err)
	equal(t, "resource_scrape_error", number(t, families, "resource_scrape_error"), 0)
	if len(families["node_cpu_usage_seconds_total"].GetMetric()) != 1 {
		t.Error("no CPU time of the node")
	}
	wire.Cut()
	defer wire.Restore()
	for path, failed := range map[string]string{"metrics/resource": "resource_scrape_error", "metrics/cadvisor": "container_scrape_error"} {
		until(t, path+" says that it has nothing", func(ctx context.Context) error {
			families, err := scrape(ctx, path)
			if err != nil {
				return err
			}
			found := series(families, failed)
			if len(found) != 1 || value(found[0]) != 1 || len(families[old].GetMetric()) > 0 {
				return fmt.Errorf("%v, and %d old series", found, len(families[old].GetMetric()))
			}
			return nil
		})
	}
	if _, err := nodeAPI(t.Context(), "stats/summary"); err == nil {
		t.Error("there is a summary of a host that does not answer")
	}
	wire.Restore()
	until(t, "the node has events of its link", func(ctx context.Context) error {
		for _, reason := range []string{"LinkDown", "LinkUp"} {
			list, err := lab.Client.CoreV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=Node,involvedObject.name=" + host + ",reason=" + reason})
			if err != nil || len(list.Items) == 0 {
				return fmt.Errorf("no %s: %v", reason, err)
			}
		}
		return nil
	})
	testutil.Must(t, labtest.Until(t.Context(), patience, "there are numbers again", func(ctx context.Context) error {
		families, err := scrape(ctx, "metrics/resource")
		if err == nil && len(families["node_cpu_usage_seconds_total"].GetMetric()) != 1 {
			err = fmt.Errorf("none")
		}
		return err
	}))
}
