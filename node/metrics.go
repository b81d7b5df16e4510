package node

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/restclient" // rest_client_requests_total, as on a kubelet

	"github.com/bowline-k8s/bowline/kubeletmetrics"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop"
	"github.com/bowline-k8s/bowline/syncloop/prober"
	"github.com/bowline-k8s/bowline/syncloop/volume"
	"github.com/bowline-k8s/bowline/version"
)

// ProcessMetrics serves the metrics of the process and of no node: its API requests, memory and CPU
// time.
func ProcessMetrics() http.Handler { return legacyregistry.Handler() }

// Metrics are the metrics of one node.
type Metrics struct {
	registry   metrics.KubeRegistry
	build      *metrics.GaugeVec
	loop       syncloop.Metrics
	operations *kubeletmetrics.Operations
	requests   *kubeletmetrics.Requests
	client     *kubeletmetrics.Client
	storage    *metrics.HistogramVec
	relist     *metrics.Histogram
	interval   *metrics.Histogram
	evictions  *metrics.CounterVec

	// Of their own, because a kubelet serves them at other paths.
	probesRegistry metrics.KubeRegistry
	probes         prober.Metrics
	health         *kubeletmetrics.Healthchecks

	mu      sync.Mutex
	kubelet string // the version in build
}

// NewMetrics returns the metrics of a node, all of them zero.
func NewMetrics() *Metrics {
	r, probes := metrics.NewKubeRegistry(), metrics.NewKubeRegistry()
	histogram := func(name, help string) *metrics.Histogram {
		return metrics.NewHistogram(&metrics.HistogramOpts{Subsystem: "kubelet", Name: name, Help: help, Buckets: metrics.DefBuckets, StabilityLevel: metrics.ALPHA})
	}
	m := &Metrics{
		registry: r, loop: syncloop.NewMetrics(r), operations: kubeletmetrics.NewOperations(r), requests: kubeletmetrics.NewRequests(r), client: kubeletmetrics.NewClient(r),
		probesRegistry: probes, probes: prober.NewMetrics(probes), health: kubeletmetrics.NewHealthchecks(),
		relist:   histogram("pleg_relist_duration_seconds", "Duration in seconds for relisting pods in PLEG."),
		interval: histogram("pleg_relist_interval_seconds", "Interval in seconds between relisting in PLEG."),
		evictions: metrics.NewCounterVec(&metrics.CounterOpts{Subsystem: "kubelet", Name: "evictions",
			Help: "Cumulative number of pod evictions by eviction signal", StabilityLevel: metrics.ALPHA}, []string{"eviction_signal"}),
		storage: metrics.NewHistogramVec(&metrics.HistogramOpts{Name: "storage_operation_duration_seconds", Help: "Storage operation duration",
			Buckets: []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600}, StabilityLevel: metrics.BETA},
			[]string{"volume_plugin", "operation_name", "status", "migrated"}),
		build: metrics.NewGaugeVec(&metrics.GaugeOpts{
			Name:           "kubernetes_build_info",
			Help:           "A constant 1, with the kubelet version that the node reports and the build of Bowline as labels.",
			StabilityLevel: metrics.BETA,
		}, []string{"major", "minor", "git_version", "git_commit", "git_tree_state", "build_date", "go_version", "compiler", "platform"})}
	r.MustRegister(m.build, m.storage, m.relist, m.interval, m.evictions)
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

// relisted observes a relist. One that waited for the link is no relist of the runtime; pleg does not
// report it.
func (m *Metrics) relisted(took, interval time.Duration) {
	m.relist.Observe(took.Seconds())
	if interval > 0 {
		m.interval.Observe(interval.Seconds())
	}
}

// stored observes an operation on a pod's volume.
func (m *Metrics) stored(plugin, operation string, took time.Duration, err error) {
	status := "success"
	if err != nil {
		status = "fail-unknown"
	}
	m.storage.WithLabelValues(plugin, operation, status, "false").Observe(took.Seconds())
}

func (m *Metrics) evicted(signal string) { m.evictions.WithLabelValues(signal).Inc() }

// handler serves the metrics, with those that are read from the node's state at the time of the request.
func (m *Metrics) handler(state func(context.Context) kubeletmetrics.State) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		all := prometheus.Gatherers{m.registry, state(r.Context()).Registry()}
		metrics.HandlerFor(all, metrics.HandlerOpts{}).ServeHTTP(w, r)
	})
}

// probeHandler serves the metrics of the probes.
func (m *Metrics) probeHandler() http.Handler {
	return metrics.HandlerFor(m.probesRegistry, metrics.HandlerOpts{})
}

// metricsState returns what the node has now.
func (n *Node) metricsState(ctx context.Context) kubeletmetrics.State {
	s := kubeletmetrics.State{
		NodeName: n.name, CgroupVersion: n.seen.load().facts.CgroupVersion,
		Containers: map[string]int{}, Desired: map[bool]int{}, Active: map[bool]int{}, Volumes: map[string]int{},
		CertificateTTL: map[string]float64{},
	}
	for name, c := range map[string]*tls.Certificate{"client": n.cluster.Identity.Certificate(), "server": n.servingCertificate()} {
		if c != nil && c.Leaf != nil {
			s.CertificateTTL[name] = time.Until(c.Leaf.NotAfter).Seconds()
		}
	}
	cache := n.pleg.Cache()
	for _, ref := range cache.Known() {
		o := cache.Get(ref.UID)
		if slices.ContainsFunc(o.Sandboxes, func(b pod.Sandbox) bool { return b.Ready }) {
			s.Sandboxes++
		}
		for _, c := range o.Containers {
			s.Containers[strings.ToLower(c.State.String())]++
		}
	}
	for _, p := range n.sources.Pods() {
		static := pod.IsStatic(p)
		s.Desired[static]++
		if static {
			s.MirrorPods++
		}
		if !n.loop.State(p.UID).Ended() {
			s.Active[static]++
		}
		s.EphemeralContainers += len(p.Spec.EphemeralContainers)
		mounts := n.parts.volumes.Mounts(p.UID)
		for i := range p.Spec.Volumes {
			if _, ok := mounts[p.Spec.Volumes[i].Name]; ok {
				s.Volumes[volume.PluginName(&p.Spec.Volumes[i])]++
			}
		}
	}
	s.Claims = n.stats.Claims(ctx)
	if at := n.pleg.RelistedAt(); !at.IsZero() {
		s.RelistedAt = float64(at.UnixNano()) / 1e9
	}
	return s
}

// servingCertificate returns the serving certificate that the cluster signed for the node, or nil.
func (n *Node) servingCertificate() *tls.Certificate {
	if n.serving == nil {
		return nil
	}
	return n.serving.Current()
}
