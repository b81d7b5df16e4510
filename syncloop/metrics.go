package syncloop

import (
	"errors"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-base/metrics"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

// Metrics are the metrics of one node; the zero value counts nothing.
type Metrics struct {
	// illegalEdges counts illegal phase transitions; it stays at zero.
	illegalEdges *metrics.Counter
	// userNamespaces and userNamespacesFailed have the kubelet's names. For pods with a user
	// namespace they count the sandboxes that were requested, and the sandboxes and containers that
	// could not be started.
	userNamespaces, userNamespacesFailed *metrics.Counter
}

// NewMetrics makes the metrics of a node and registers them with r, which belongs to that node: a
// process may run many nodes.
func NewMetrics(r metrics.KubeRegistry) Metrics {
	counter := func(name, help string) *metrics.Counter {
		return metrics.NewCounter(&metrics.CounterOpts{Name: name, Help: help, StabilityLevel: metrics.ALPHA})
	}
	m := Metrics{
		illegalEdges: counter("bowline_pod_worker_illegal_phase_edges_total",
			"Impossible phase transitions that the planner requested. Any is a defect."),
		userNamespaces:       counter("kubelet_started_user_namespaced_pods_total", "Cumulative number of pods with user namespaces started."),
		userNamespacesFailed: counter("kubelet_started_user_namespaced_pods_errors_total", "Cumulative number of errors when starting pods with user namespaces."),
	}
	r.MustRegister(m.illegalEdges, m.userNamespaces, m.userNamespacesFailed)
	return m
}

func (m Metrics) illegalEdge() {
	if m.illegalEdges != nil {
		m.illegalEdges.Inc()
	}
}

// countUsers counts an operation of a pod with a user namespace.
func (m Metrics) countUsers(p *v1.Pod, kind plan.OpKind, err error) {
	if m.userNamespaces == nil || !pod.HasUserNamespace(p) {
		return
	}
	if kind == plan.OpSandbox {
		m.userNamespaces.Inc()
	}
	if err != nil && (kind == plan.OpSandbox || kind == plan.OpStart) && !errors.Is(err, host.ErrUnreachable) {
		m.userNamespacesFailed.Inc()
	}
}
