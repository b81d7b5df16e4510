package kubeletmetrics

import (
	"net/http"
	"strconv"
	"time"

	"k8s.io/component-base/metrics"
)

// Client counts and times a node's requests to the API server. client-go's own metrics are those of
// the whole process.
type Client struct {
	total    *metrics.CounterVec
	duration *metrics.HistogramVec
}

// NewClient registers the metrics with r.
func NewClient(r metrics.KubeRegistry) *Client {
	c := &Client{
		total: metrics.NewCounterVec(&metrics.CounterOpts{Name: "rest_client_requests_total",
			Help: "Number of HTTP requests, partitioned by status code, method, and host.", StabilityLevel: metrics.ALPHA}, []string{"code", "method", "host"}),
		duration: metrics.NewHistogramVec(&metrics.HistogramOpts{Name: "rest_client_request_duration_seconds",
			Help:    "Request latency in seconds. Broken down by verb, and host.",
			Buckets: []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60}, StabilityLevel: metrics.ALPHA}, []string{"verb", "host"}),
	}
	r.MustRegister(c.total, c.duration)
	return c
}

// Wrap returns a transport that counts the requests of next.
func (c *Client) Wrap(next http.RoundTripper) http.RoundTripper { return &counting{c, next} }

type counting struct {
	client *Client
	next   http.RoundTripper
}

func (c *counting) RoundTrip(r *http.Request) (*http.Response, error) {
	began := time.Now()
	answer, err := c.next.RoundTrip(r)
	c.client.duration.WithLabelValues(r.Method, r.URL.Host).Observe(time.Since(began).Seconds())
	code := "<error>"
	if err == nil {
		code = strconv.Itoa(answer.StatusCode)
	}
	c.client.total.WithLabelValues(code, r.Method, r.URL.Host).Inc()
	return answer, err
}

// WrappedRoundTripper lets client-go reach the transport below, for example to close its idle
// connections.
func (c *counting) WrappedRoundTripper() http.RoundTripper { return c.next }
