package syncloop

import (
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// illegalEdges counts phase edges that must not be; it stays at zero.
var illegalEdges = metrics.NewCounter(&metrics.CounterOpts{
	Name:           "bowline_pod_worker_illegal_phase_edges_total",
	Help:           "Phase edges that the planner asked for and that cannot be. Any is a defect.",
	StabilityLevel: metrics.ALPHA,
})

func init() { legacyregistry.MustRegister(illegalEdges) }
