package kubeletmetrics

import (
	"net/http"

	"k8s.io/component-base/metrics"
)

// Healthchecks are what a kubelet serves at /metrics/slis: the results of its health checks.
type Healthchecks struct {
	registry metrics.KubeRegistry
	last     *metrics.GaugeVec
	total    *metrics.CounterVec
}

// NewHealthchecks returns the results of a node's health checks, in a registry of their own.
func NewHealthchecks() *Healthchecks {
	h := &Healthchecks{
		registry: metrics.NewKubeRegistry(),
		last: metrics.NewGaugeVec(&metrics.GaugeOpts{Namespace: "kubernetes", Name: "healthcheck",
			Help: "This metric records the result of a single healthcheck.", StabilityLevel: metrics.STABLE}, []string{"name", "type"}),
		total: metrics.NewCounterVec(&metrics.CounterOpts{Namespace: "kubernetes", Name: "healthchecks_total",
			Help: "This metric records the results of all healthcheck.", StabilityLevel: metrics.STABLE}, []string{"name", "type", "status"}),
	}
	h.registry.MustRegister(h.last, h.total)
	return h
}

// healthz is the type of the checks of /healthz.
const healthz = "healthz"

// Observe counts the result of a check; nil is a success.
func (h *Healthchecks) Observe(name string, err error) {
	ok, status := 1.0, "success"
	if err != nil {
		ok, status = 0, "error"
	}
	h.last.WithLabelValues(name, healthz).Set(ok)
	h.total.WithLabelValues(name, healthz, status).Inc()
}

// ServeHTTP serves the metrics.
func (h *Healthchecks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	metrics.HandlerFor(h.registry, metrics.HandlerOpts{}).ServeHTTP(w, r)
}
