package node

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	v1 "k8s.io/api/core/v1"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/restclient" // rest_client_requests_total, as on a kubelet

	"github.com/bowline-k8s/bowline/kubeletmetrics"
	"github.com/bowline-k8s/bowline/syncloop"
	"github.com/bowline-k8s/bowline/syncloop/prober"
	"github.com/bowline-k8s/bowline/version"
)

// ProcessMetrics serves the metrics of the process and of no node: its API requests, memory and CPU
// time.
func ProcessMetrics() http.Handler { return legacyregistry.Handler() }

// process has the CPU time, memory and goroutines of the process, which all of its nodes show: see
// decision 0044.
var process = sync.OnceValue(func() prometheus.Gatherer {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewGoCollector())
	return r
})

// Metrics are the metrics of one node.
type Metrics struct {
	registry   metrics.KubeRegistry
	build      *metrics.GaugeVec
	loop       syncloop.Metrics
	operations *kubeletmetrics.Operations
	requests   *kubeletmetrics.Requests
	client     *kubeletmetrics.Client
	parts      *kubeletmetrics.Parts

	// Of their own, because a kubelet serves them at other paths.
	probesRegistry metrics.KubeRegistry
	probes         prober.Metrics
	health         *kubeletmetrics.Healthchecks

	mu      sync.Mutex
	kubelet string // the version in build
}

// NewMetrics returns the metrics of a node, all of them zero.
func NewMetrics() *Metrics { return newMetrics(metrics.NewKubeRegistry(), metrics.NewKubeRegistry()) }

func newMetrics(r, probes metrics.KubeRegistry) *Metrics {
	m := &Metrics{
		registry: r, loop: syncloop.NewMetrics(r), operations: kubeletmetrics.NewOperations(r), requests: kubeletmetrics.NewRequests(r),
		client: kubeletmetrics.NewClient(r), parts: kubeletmetrics.NewParts(r),
		probesRegistry: probes, probes: prober.NewMetrics(probes), health: kubeletmetrics.NewHealthchecks(),
		build: metrics.NewGaugeVec(&metrics.GaugeOpts{
			Name:           "kubernetes_build_info",
			Help:           "A constant 1, with the kubelet version that the node reports and the build of Bowline as labels.",
			StabilityLevel: metrics.BETA,
		}, []string{"major", "minor", "git_version", "git_commit", "git_tree_state", "build_date", "go_version", "compiler", "platform"})}
	r.MustRegister(m.build)
	return m
}

// reports sets kubernetes_build_info to what the node reports in nodeInfo.kubeletVersion: alerts
// compare it with the version of the API server.
func (m *Metrics) reports(kubelet string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if kubelet == m.kubelet {
		return
	}
	m.kubelet = kubelet
	major, minor := "", ""
	if v, err := utilversion.ParseSemantic(kubelet); err == nil {
		major, minor = fmt.Sprint(v.Major()), fmt.Sprint(v.Minor())
	}
	m.build.Reset()
	m.build.WithLabelValues(major, minor, kubelet, version.This().Commit, "", "", runtime.Version(), runtime.Compiler, runtime.GOOS+"/"+runtime.GOARCH).Set(1)
}

// version returns the version that the node reports.
func (m *Metrics) version() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.kubelet
}

// see handles a new version of the Node object. The node reports the API server's version as its
// own, and the API server may be met after the node is built, or be upgraded.
func (m *Metrics) see(node *v1.Node) {
	if kubelet := node.Status.NodeInfo.KubeletVersion; kubelet != "" {
		m.reports(kubelet)
	}
}

// handler serves the metrics, with those that are read from the node's state at the time of the request.
func (m *Metrics) handler(state func(context.Context) kubeletmetrics.State) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		all := prometheus.Gatherers{m.registry, state(r.Context()).Registry(), process()}
		metrics.HandlerFor(all, metrics.HandlerOpts{}).ServeHTTP(w, r)
	})
}

// probeHandler serves the metrics of the probes.
func (m *Metrics) probeHandler() http.Handler {
	return metrics.HandlerFor(m.probesRegistry, metrics.HandlerOpts{})
}
