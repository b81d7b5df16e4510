package main

import (
	"fmt"
	"net/http"
	"runtime"
	"sync"

	v1 "k8s.io/api/core/v1"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/restclient" // rest_client_requests_total, as a kubelet's

	"github.com/bowline-k8s/bowline/syncloop"
)

// processMetrics answers with what is the process's and no node's: its requests to API
// servers, its memory, its processor time.
func processMetrics() http.Handler { return legacyregistry.Handler() }

// nodeMetrics are the series of one node.
type nodeMetrics struct {
	registry metrics.KubeRegistry
	build    *metrics.GaugeVec
	loop     syncloop.Metrics

	mu      sync.Mutex
	kubelet string // that build says
}

// nodesMetrics has the series of each node that this process runs or has run, by the name
// of the node: counters go on where a host is driven again.
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
		Help:           "A constant 1 whose labels tell the version that the node reports as its kubelet's, and the build of Bowline.",
		StabilityLevel: metrics.BETA,
	}, []string{"major", "minor", "git_version", "git_commit", "git_tree_state", "build_date", "go_version", "compiler", "platform"})}
	r.MustRegister(m.build)
	return m
}

// reports makes kubernetes_build_info say what the node says in nodeInfo.kubeletVersion:
// alerts compare it with that of the API server.
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
	m.build.WithLabelValues(major, minor, kubelet, thisBuild().Commit, "", "", runtime.Version(), runtime.Compiler, runtime.GOOS+"/"+runtime.GOARCH).Set(1)
}

// see takes in a version of the node's object: the API server, by whose version the node
// reports its own, may be met later than the node is built, and upgraded.
func (m *nodeMetrics) see(node *v1.Node) {
	if kubelet := node.Status.NodeInfo.KubeletVersion; kubelet != "" {
		m.reports(kubelet)
	}
}

func (m *nodeMetrics) handler() http.Handler {
	return metrics.HandlerFor(m.registry, metrics.HandlerOpts{})
}
