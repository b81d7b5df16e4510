package syncloop

import (
	"errors"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-base/metrics"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

// Metrics are the series of one node; the zero value counts nothing.
type Metrics struct {
	// illegalEdges counts phase edges that must not be; it stays at zero.
	illegalEdges *metrics.Counter
	// userNamespaces and userNamespacesFailed have the kubelet's names: sandboxes of pods
	// with users of their own that were asked for, and what of such pods could not be
	// started.
	userNamespaces, userNamespacesFailed *metrics.Counter
}

// NewMetrics makes the series of a node and registers them with r, which is the node's
// own: a process may run many nodes.
func NewMetrics(r metrics.KubeRegistry) Metrics {
	counter := func(name, help string) *metrics.Counter {
		return metrics.NewCounter(&metrics.CounterOpts{Name: name, Help: help, StabilityLevel: metrics.ALPHA})
	}
	m := Metrics{
		illegalEdges: counter("bowline_pod_worker_illegal_phase_edges_total",
			"Phase edges that the planner asked for and that cannot be. Any is a defect."),
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

// countUsers counts an operation of a pod with users of its own.
func (m Metrics) countUsers(p *v1.Pod, kind plan.OpKind, err error) {
	if p.Spec.HostUsers == nil || *p.Spec.HostUsers || m.userNamespaces == nil {
		return
	}
	if kind == plan.OpSandbox {
		m.userNamespaces.Inc()
	}
	if err != nil && (kind == plan.OpSandbox || kind == plan.OpStart) && !errors.Is(err, host.ErrUnreachable) {
		m.userNamespacesFailed.Inc()
	}
}
