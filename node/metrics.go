package node

import (
	"fmt"
	"net/http"
	"runtime"
	"sync"

	v1 "k8s.io/api/core/v1"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/restclient" // rest_client_requests_total, as on a kubelet

	"github.com/bowline-k8s/bowline/syncloop"
	"github.com/bowline-k8s/bowline/version"
)

// ProcessMetrics serves the metrics of the process and of no node: its API requests, memory and CPU
// time.
func ProcessMetrics() http.Handler { return legacyregistry.Handler() }

// nodeMetrics are the metrics of one node.
type nodeMetrics struct {
	registry metrics.KubeRegistry
	build    *metrics.GaugeVec
	loop     syncloop.Metrics

	mu      sync.Mutex
	kubelet string // the version in build
}

// nodesMetrics has the metrics of each node that this process runs or has run, by node name.
// Counters continue when a host's driver starts again.
type nodesMetrics struct {
	mu     sync.Mutex
	byNode map[string]*nodeMetrics
}

var seriesOf nodesMetrics

func (all *nodesMetrics) of(node string) *nodeMetrics {
	all.mu.Lock()
	defer all.mu.Unlock()
	m := all.byNode[node]
	if m == nil {
		m = newNodeMetrics()
		if all.byNode == nil {
			all.byNode = map[string]*nodeMetrics{}
		}
		all.byNode[node] = m
	}
	return m
}

func newNodeMetrics() *nodeMetrics {
	r := metrics.NewKubeRegistry()
	m := &nodeMetrics{registry: r, loop: syncloop.NewMetrics(r), build: metrics.NewGaugeVec(&metrics.GaugeOpts{
		Name:           "kubernetes_build_info",
		Help:           "A constant 1, with the kubelet version that the node reports and the build of Bowline as labels.",
		StabilityLevel: metrics.BETA,
	}, []string{"major", "minor", "git_version", "git_commit", "git_tree_state", "build_date", "go_version", "compiler", "platform"})}
	r.MustRegister(m.build)
	return m
}

// reports sets kubernetes_build_info to what the node reports in nodeInfo.kubeletVersion: alerts
// compare it with the version of the API server.
func (m *nodeMetrics) reports(kubelet string) {
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

// see handles a new version of the Node object. The node reports the API server's version as its
// own, and the API server may be met after the node is built, or be upgraded.
func (m *nodeMetrics) see(node *v1.Node) {
	if kubelet := node.Status.NodeInfo.KubeletVersion; kubelet != "" {
		m.reports(kubelet)
	}
}

func (m *nodeMetrics) handler() http.Handler {
	return metrics.HandlerFor(m.registry, metrics.HandlerOpts{})
}
