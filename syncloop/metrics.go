package syncloop

import (
	"errors"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

// illegalEdges counts phase edges that must not be; it stays at zero.
var illegalEdges = metrics.NewCounter(&metrics.CounterOpts{
	Name:           "bowline_pod_worker_illegal_phase_edges_total",
	Help:           "Phase edges that the planner asked for and that cannot be. Any is a defect.",
	StabilityLevel: metrics.ALPHA,
})

// userNamespaces and userNamespacesFailed have the kubelet's names: sandboxes of pods with
// users of their own that were asked for, and what of such pods could not be started.
var (
	userNamespaces = metrics.NewCounter(&metrics.CounterOpts{
		Name:           "kubelet_started_user_namespaced_pods_total",
		Help:           "Cumulative number of pods with user namespaces started.",
		StabilityLevel: metrics.ALPHA,
	})
	userNamespacesFailed = metrics.NewCounter(&metrics.CounterOpts{
		Name:           "kubelet_started_user_namespaced_pods_errors_total",
		Help:           "Cumulative number of errors when starting pods with user namespaces.",
		StabilityLevel: metrics.ALPHA,
	})
)

// countUsers counts an operation of a pod with users of its own.
func countUsers(p *v1.Pod, kind plan.OpKind, err error) {
	if p.Spec.HostUsers == nil || *p.Spec.HostUsers {
		return
	}
	if kind == plan.OpSandbox {
		userNamespaces.Inc()
	}
	if err != nil && (kind == plan.OpSandbox || kind == plan.OpStart) && !errors.Is(err, host.ErrUnreachable) {
		userNamespacesFailed.Inc()
	}
}

func init() { legacyregistry.MustRegister(illegalEdges, userNamespaces, userNamespacesFailed) }
