package kubeletmetrics

import (
	"strconv"
	"time"

	"k8s.io/component-base/metrics"
)

// Requests counts and times the requests to a node's API.
type Requests struct {
	total    *metrics.CounterVec
	duration *metrics.HistogramVec
	inflight *metrics.GaugeVec
}

// NewRequests registers the metrics with r.
func NewRequests(r metrics.KubeRegistry) *Requests {
	labels := []string{"method", "path", "server_type", "long_running"}
	q := &Requests{
		total: metrics.NewCounterVec(&metrics.CounterOpts{Subsystem: "kubelet", Name: "http_requests_total",
			Help: "Number of the http requests received since the server started", StabilityLevel: metrics.ALPHA}, labels),
		duration: metrics.NewHistogramVec(&metrics.HistogramOpts{Subsystem: "kubelet", Name: "http_requests_duration_seconds",
			Help: "Duration in seconds to serve http requests", Buckets: metrics.DefBuckets, StabilityLevel: metrics.ALPHA}, labels),
		inflight: metrics.NewGaugeVec(&metrics.GaugeOpts{Subsystem: "kubelet", Name: "http_inflight_requests",
			Help: "Number of the inflight http requests", StabilityLevel: metrics.ALPHA}, labels),
	}
	r.MustRegister(q.total, q.duration, q.inflight)
	return q
}

// Begin counts a request; done is to be called when it has been answered. method and path are
// bounded in number: path is the first part of a path, or two parts for /metrics/.... Streams are
// long-running requests.
func (q *Requests) Begin(method, path string, stream bool) (done func()) {
	labels := []string{method, path, "readwrite", strconv.FormatBool(stream)}
	q.total.WithLabelValues(labels...).Inc()
	inflight := q.inflight.WithLabelValues(labels...)
	inflight.Inc()
	began := time.Now()
	return func() {
		inflight.Dec()
		q.duration.WithLabelValues(labels...).Observe(time.Since(began).Seconds())
	}
}
