package node

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/features"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/kubeletmetrics"
	"github.com/bowline-k8s/bowline/kubeletmetrics/kubelettest"
	"github.com/bowline-k8s/bowline/stats"
)

// someState is a state that has each kind of series.
var someState = kubeletmetrics.State{
	NodeName: "n1", CgroupVersion: 2, Sandboxes: 2, Containers: map[string]int{"running": 3}, Desired: map[bool]int{false: 2}, Active: map[bool]int{false: 2},
	Volumes:         map[kubeletmetrics.Volumes]int{{Plugin: "kubernetes.io/secret", State: kubeletmetrics.Actual}: 1, {Plugin: "kubernetes.io/secret", State: kubeletmetrics.Desired}: 2},
	Working:         map[kubeletmetrics.Work]int{{Lifecycle: kubeletmetrics.Syncing, Config: kubeletmetrics.OfSource}: 2},
	PendingResizes:  map[kubeletmetrics.Pending]int{{Reason: "deferred", Priority: "normal"}: 1},
	PodCertificates: map[kubeletmetrics.PodCertificate]int{{Signer: "example.com/signer", State: "fresh"}: 1},
	Logs:            map[kubeletmetrics.Log]int64{{UID: "u1", Namespace: "shop", Pod: "web", Container: "main"}: 4096},
	Claims:          map[kubeletmetrics.Claim]host.FileSystem{{Namespace: "shop", Name: "data"}: {Bytes: 100, FreeBytes: 40, Inodes: 10, InodesFree: 3}},
	CertificateTTL:  map[string]float64{"client": 100, "server": 200},
	RelistedAt:      1,
	Features:        []features.State{{Name: "ContainerCheckpoint", Stage: "BETA"}},
}

// fakeNode is what a node's endpoints serve: families by name, with their labels.
type fakeNode struct {
	// registered are those at /metrics and /metrics/probes, whether or not they have series.
	registered map[string]kubelettest.Family
	// shown are those that the endpoints show for a node with two pods.
	shown map[string]*dto.MetricFamily
}

func newFakeNode(t *testing.T) fakeNode {
	t.Helper()
	r, probes := kubelettest.NewRecorder(), kubelettest.NewRecorder()
	m := newMetrics(r, probes)
	exercise(t, m)
	out := fakeNode{registered: map[string]kubelettest.Family{}, shown: map[string]*dto.MetricFamily{}}
	state := kubelettest.NewRecorder()
	someState.Register(state)
	for _, of := range []*kubelettest.Recorder{r, probes, state} {
		maps.Copy(out.registered, of.Families)
	}
	server := fakeStats(t)
	for _, page := range []http.HandlerFunc{
		m.handler(func(context.Context) kubeletmetrics.State { return someState }).ServeHTTP, m.probeHandler().ServeHTTP, server.Cadvisor, server.Resource,
	} {
		w := httptest.NewRecorder()
		page(w, httptest.NewRequest("GET", "/", nil))
		parser := expfmt.NewTextParser(model.LegacyValidation)
		families, err := parser.TextToMetricFamilies(bytes.NewReader(w.Body.Bytes()))
		testutil.Must(t, err)
		for name, f := range families {
			if had := out.shown[name]; had != nil {
				f.Metric = append(f.Metric, had.Metric...) // the series of containers have the same names at two endpoints
			}
			out.shown[name] = f
		}
	}
	return out
}

// exercise makes something happen that each part reports.
func exercise(t *testing.T, m *Metrics) {
	t.Helper()
	m.reports("v1.37.1")
	p, failed := m.parts, errors.New("no")
	p.StatusSynced(time.Second)
	p.Relisted(time.Second, time.Second)
	p.PodRelisted(time.Second)
	p.HintDropped()
	p.Evicted("memory.available")
	p.EvictionDecided("memory.available", time.Second)
	p.Stored("kubernetes.io/secret", "volume_mount", time.Second, nil)
	p.OrphansCleaned(2, 1)
	p.HTTPSFallback()
	p.SleepCut()
	p.Pulled(5<<20, time.Second)
	p.ImageEnsured("always", nil, new(true))
	p.ImageChecked("error")
	p.ImageCollected("age")
	p.PluginRan("provider", time.Second, failed)
	p.ShuttingDown(time.Unix(10, 0))
	p.ShutDown(time.Unix(20, 0))
	p.ClientCertificate().Inc()
	p.ServerCertificate().Observe(5)
	p.Streamed("exec")
	p.Started(kubeletmetrics.Startup{Booted: time.Unix(1, 0), Began: time.Unix(2, 0), Asked: time.Unix(3, 0), Registered: time.Unix(4, 0), Ready: time.Unix(5, 0)})
	hook := m.operations.Hook(func(ctx context.Context, _ string, call func(context.Context) error) error { return call(ctx) })
	for _, label := range []string{"cri/RunPodSandbox", "host/EnsureCgroup"} {
		_ = hook.Do(t.Context(), label, func(context.Context) error { return failed })
	}
	m.requests.Begin("GET", "pods", false)()
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	answer, err := (&http.Client{Transport: m.client.Wrap(http.DefaultTransport)}).Get(server.URL)
	testutil.Must(t, err)
	answer.Body.Close()
}

// fakeMeters are a host with two pods, one of them on the host's network.
type fakeMeters struct{ trees map[string]host.CgroupSample }

func (m fakeMeters) Sample(_ context.Context, r host.SampleRequest) (host.Sampled, error) {
	out := host.Sampled{Uptime: time.Hour, MemoryBytes: 1 << 30, Node: sampledCgroup(), Cgroups: m.trees, Disks: []host.Disk{{Major: 8, Name: "sda"}},
		Networks: map[string][]host.Interface{"/kubepods/pod1": {{Name: "eth0", RxBytes: 1}}}}
	for range r.Paths {
		out.FileSystems = append(out.FileSystems, host.FileSystem{Device: 8 << 8, Bytes: 100, FreeBytes: 40})
	}
	return out, nil
}
func (fakeMeters) Measure(context.Context, string, ...string) (host.Measured, error) {
	return host.Measured{}, errors.New("no claim")
}
func (fakeMeters) DiskUsage(_ context.Context, dirs ...string) ([]host.Usage, error) {
	return make([]host.Usage, len(dirs)), nil
}
func (fakeMeters) ListContainerStats(context.Context, string) ([]*runtimeapi.ContainerStats, error) {
	return nil, nil
}
func (fakeMeters) ImageFsInfo(context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
	return &runtimeapi.ImageFsInfoResponse{}, nil
}

func sampledCgroup() host.CgroupSample {
	c := host.UnknownSample()
	c.CPU.Usage, c.CPU.Periods, c.CPU.ThrottledPeriods, c.CPU.QuotaUS, c.CPU.PeriodUS, c.CPU.Shares = time.Second, 5, 1, 50_000, 100_000, 100
	c.Memory.Usage, c.Memory.InactiveFile, c.Memory.Anon, c.Memory.File, c.Memory.Swap, c.Memory.Limit, c.Memory.SwapLimit = 5<<20, 1<<20, 1<<20, 1<<20, 0, host.Unlimited, 1<<20
	c.IO = []host.IOSample{{Major: 8, Device: "sda", ReadBytes: 1, WriteBytes: 1, ReadOps: 1, WriteOps: 1}}
	c.Pids, c.PidsMax, c.Processes, c.Files, c.Sockets, c.FilesMax = 2, 100, 1, 5, 1, 1024
	return c
}

func fakeStats(t *testing.T) *stats.Server {
	t.Helper()
	id := func(digit string) string { return strings.Repeat(digit, 64) }
	m := fakeMeters{trees: map[string]host.CgroupSample{}}
	for _, at := range []string{"/kubepods", "/kubepods/pod1", "/kubepods/pod1/" + id("a"), "/kubepods/pod1/" + id("b"), "/kubepods/pod2", "/kubepods/pod2/" + id("c")} {
		m.trees[at] = sampledCgroup()
	}
	began := time.Now().Add(-time.Minute)
	container := func(digit, name string) stats.Container {
		return stats.Container{ID: id(digit), Name: name, Image: "example.com/" + name, CreatedAt: began, StartedAt: began}
	}
	c, err := stats.New(stats.Config{Host: m, Runtime: m, RootDir: "/var/lib/kubelet", PodsTree: func() string { return "/kubepods" },
		System: func() stats.System { return stats.System{} }, Pods: func() []stats.Pod {
			return []stats.Pod{
				{Namespace: "shop", Name: "web", UID: "u1", CreatedAt: began, SandboxID: id("b"), SandboxImage: "pause", Containers: []stats.Container{container("a", "main")}},
				{Namespace: "kube-system", Name: "agent", UID: "u2", CreatedAt: began, HostNetwork: true, Containers: []stats.Container{container("c", "agent")}},
			}
		}})
	testutil.Must(t, err)
	return &stats.Server{Collector: c, Node: "n1", Machine: func() stats.Machine { return stats.Machine{CPUs: 2, MaxPods: 110} }}
}

// TestFamilies: the metrics with a kubelet's names have its types, labels and buckets. A family of a
// kubelet that a node does not have is in docs/monitoring.md, with the reason.
func TestFamilies(t *testing.T) {
	n, kubelet, lacking := newFakeNode(t), kubelettest.Families(), lackingFamilies(t)
	for name, f := range n.registered {
		of, ok := kubelet[name]
		switch {
		case ok:
			if difference := f.Differs(of); difference != "" {
				t.Errorf("%s is %s", name, difference)
			}
		case strings.HasPrefix(name, "bowline_"), slices.Contains(fromLibraries, name):
		default:
			t.Errorf("no kubelet has %s", name)
		}
	}
	used := map[string]bool{}
	for name := range kubelet {
		_, registered := n.registered[name]
		served := registered || n.shown[name] != nil
		excuse := ""
		for pattern := range lacking {
			if ok, err := path.Match(pattern, name); err != nil || ok {
				excuse, used[pattern] = pattern, true
			}
		}
		switch {
		case served && excuse != "":
			t.Errorf("a node has %s, although docs/monitoring.md says that it lacks %s", name, excuse)
		case !served && excuse == "":
			t.Errorf("a node lacks %s, and docs/monitoring.md does not say why", name)
		}
	}
	for pattern, reason := range lacking {
		if !used[pattern] || reason == "" {
			t.Errorf("docs/monitoring.md: no kubelet has %s, or it is without a reason", pattern)
		}
	}
	for name := range n.registered {
		if of, ok := n.shown[name]; ok && kubelet[name].Type != "" && !strings.EqualFold(of.GetType().String(), kubelet[name].Type) {
			t.Errorf("%s is shown as a %s, a kubelet has a %s", name, of.GetType(), kubelet[name].Type)
		}
	}
}

// fromLibraries are the families that a kubelet has from libraries.
var fromLibraries = []string{"kubernetes_build_info", "kubernetes_feature_enabled", "rest_client_requests_total", "rest_client_request_duration_seconds"}

var (
	row    = regexp.MustCompile("(?m)^\\| (`[a-z_*]+`(?:, `[a-z_*]+`)*) \\| (.*) \\|$")
	quoted = regexp.MustCompile("`([a-z_*]+)`")
)

// lackingFamilies are those that a node lacks, with the reasons, from the table in docs/monitoring.md.
func lackingFamilies(t *testing.T) map[string]string {
	t.Helper()
	_, section, ok := strings.Cut(string(testutil.ReadFile(t, "../docs/monitoring.md")), "## Metrics that a node lacks\n")
	if !ok {
		t.Fatal("docs/monitoring.md does not list the metrics that a node lacks")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	out := map[string]string{}
	for _, r := range row.FindAllStringSubmatch(section, -1) {
		for _, name := range quoted.FindAllStringSubmatch(r[1], -1) {
			out[name[1]] = r[2]
		}
	}
	return out
}

// notInKubelets are the series that kubernetes-mixin uses and that no kubelet has any more.
var notInKubelets = map[string]string{
	"storage_operation_errors_total": "removed in Kubernetes 1.21: storage_operation_duration_seconds has the label status",
	"kubelet_node_config_error":      "removed in Kubernetes 1.24, with dynamic kubelet configuration",
}

// TestMixin: every series that kubernetes-mixin asks of a kubelet is served, with its labels.
func TestMixin(t *testing.T) {
	n := newFakeNode(t)
	lines, known := 0, kubelettest.Families()
	for line := range strings.Lines(string(testutil.ReadFile(t, "testdata/kubernetes-mixin.txt"))) {
		v := strings.Fields(line)
		if len(v) == 0 || v[0] == "#" {
			continue
		}
		lines++
		name, labels := v[0], []string(nil)
		if len(v) > 1 {
			labels = strings.Split(v[1], ",")
		}
		served, problem := n.serves(name, labels)
		switch reason := notInKubelets[name]; {
		case reason != "" && served:
			t.Errorf("%s is served, although it is excepted: %s", name, reason)
		case reason != "" && known[name].Name != "":
			t.Errorf("%s is excepted, although kubelets have it", name)
		case reason == "" && !served:
			t.Errorf("%s: %s", name, problem)
		}
	}
	if lines < 50 {
		t.Errorf("the mixin uses %d series: the list is cut", lines)
	}
	if ok, _ := n.serves("kubelet_running_pods", []string{"nothing"}); ok {
		t.Error("a label that no series has was found")
	}
}

// serves reports whether a series is served with these labels.
func (n fakeNode) serves(name string, labels []string) (ok bool, problem string) {
	base := name
	for _, suffix := range []string{"_bucket", "_count", "_sum"} {
		if trimmed, cut := strings.CutSuffix(name, suffix); cut && (n.registered[trimmed].Type == "histogram" || n.shown[trimmed].GetType() == dto.MetricType_HISTOGRAM) {
			base = trimmed
			labels = slices.DeleteFunc(slices.Clone(labels), func(l string) bool { return l == "le" })
		}
	}
	f, shown := n.shown[base]
	if !shown {
		// Only what happens to pods has no series here: the sync loop observes it.
		of, registered := n.registered[base]
		if !registered {
			return false, "no endpoint serves it"
		}
		for _, l := range labels {
			if !slices.Contains(of.Labels, l) {
				return false, "it has no label " + l
			}
		}
		return true, ""
	}
	for _, m := range f.Metric {
		if !slices.ContainsFunc(labels, func(want string) bool {
			return !slices.ContainsFunc(m.Label, func(l *dto.LabelPair) bool { return l.GetName() == want && l.GetValue() != "" })
		}) {
			return true, ""
		}
	}
	return false, "no series has all of the labels " + strings.Join(labels, ", ")
}
