package prober

import (
	"time"

	"k8s.io/component-base/metrics"
)

// Metrics are the metrics of a node's probes, with the kubelet's names; the zero value counts nothing.
type Metrics struct {
	results  *metrics.CounterVec
	duration *metrics.HistogramVec
}

// NewMetrics makes the metrics of a node and registers them with r.
func NewMetrics(r metrics.KubeRegistry) Metrics {
	m := Metrics{
		results: metrics.NewCounterVec(&metrics.CounterOpts{Subsystem: "prober", Name: "probe_total",
			Help: "Cumulative number of a liveness, readiness or startup probe for a container by result.", StabilityLevel: metrics.BETA},
			[]string{"probe_type", "result", "container", "pod", "namespace", "pod_uid"}),
		duration: metrics.NewHistogramVec(&metrics.HistogramOpts{Subsystem: "prober", Name: "probe_duration_seconds",
			Help: "Duration in seconds for a probe response.", StabilityLevel: metrics.ALPHA},
			[]string{"probe_type", "container", "pod", "namespace"}),
	}
	r.MustRegister(m.results, m.duration)
	return m
}

const (
	successful = "successful"
	failed     = "failed"
	unknown    = "unknown"
)

// count counts a run of a probe, and a run without a result as unknown. The duration is that of a run
// that had one.
func (m Metrics) count(p *probe, o outcome, took time.Duration) {
	if m.results == nil {
		return
	}
	result := unknown
	switch o.result {
	case Success:
		result = successful
	case Failure:
		result = failed
	}
	m.results.With(m.labels(p, result)).Inc()
	if result != unknown {
		m.duration.With(m.labels(p, "")).Observe(took.Seconds())
	}
}

// forget removes the series of a container, so that they do not accumulate over the life of a node.
func (m Metrics) forget(t *target) {
	if m.results == nil {
		return
	}
	for _, p := range t.probes {
		if p == nil {
			continue
		}
		for _, result := range []string{successful, failed, unknown} {
			m.results.Delete(m.labels(p, result))
		}
		m.duration.Delete(m.labels(p, ""))
	}
}

// labels are those of a probe's results, or of its durations if result is empty.
func (m Metrics) labels(p *probe, result string) map[string]string {
	t := p.target
	l := map[string]string{"probe_type": p.kind.String(), "container": t.container.Name, "pod": t.pod.Name, "namespace": t.pod.Namespace}
	if result != "" {
		l["result"], l["pod_uid"] = result, string(t.pod.UID)
	}
	return l
}
