package stats

import (
	"net/http"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/klog/v2"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// WriteResource answers a request for what a kubelet serves at /metrics/resource, each value with
// the time at which it was read. summary has no detail; if there is an error instead, the answer only
// says that it failed.
func WriteResource(w http.ResponseWriter, r *http.Request, summary *statsapi.Summary, err error) {
	if err != nil {
		klog.FromContext(r.Context()).Error(err, "Failed to collect the resource metrics")
	}
	registry := metrics.NewKubeRegistry()
	registry.CustomMustRegister(&resourceMetrics{summary: summary})
	metrics.HandlerFor(registry, metrics.HandlerOpts{ErrorHandling: metrics.ContinueOnError}).ServeHTTP(w, r)
}

// resourceMetrics are the metrics of one summary, or of a failure if it is nil.
type resourceMetrics struct {
	metrics.BaseStableCollector
	summary *statsapi.Summary
}

var (
	ofContainer = []string{"container", "pod", "namespace"}
	ofPod       = []string{"pod", "namespace"}

	nodeCPU         = desc("node_cpu_usage_seconds_total", "Cumulative cpu time consumed by the node in core-seconds", nil, metrics.STABLE)
	nodeMemory      = desc("node_memory_working_set_bytes", "Current working set of the node in bytes", nil, metrics.STABLE)
	nodeSwap        = desc("node_swap_usage_bytes", "Current swap usage of the node in bytes. Reported only on non-windows systems", nil, metrics.ALPHA)
	containerCPU    = desc("container_cpu_usage_seconds_total", "Cumulative cpu time consumed by the container in core-seconds", ofContainer, metrics.STABLE)
	containerMemory = desc("container_memory_working_set_bytes", "Current working set of the container in bytes", ofContainer, metrics.STABLE)
	containerSwap   = desc("container_swap_usage_bytes", "Current amount of the container swap usage in bytes. Reported only on non-windows systems", ofContainer, metrics.ALPHA)
	containerLimit  = desc("container_swap_limit_bytes", "Current amount of the container swap limit in bytes. Reported only on non-windows systems", ofContainer, metrics.ALPHA)
	containerStart  = desc("container_start_time_seconds", "Start time of the container since unix epoch in seconds", ofContainer, metrics.STABLE)
	podCPU          = desc("pod_cpu_usage_seconds_total", "Cumulative cpu time consumed by the pod in core-seconds", ofPod, metrics.STABLE)
	podMemory       = desc("pod_memory_working_set_bytes", "Current working set of the pod in bytes", ofPod, metrics.STABLE)
	podSwap         = desc("pod_swap_usage_bytes", "Current amount of the pod swap usage in bytes. Reported only on non-windows systems", ofPod, metrics.ALPHA)
	scrapeError     = desc("resource_scrape_error", "1 if there was an error while getting container metrics, 0 otherwise", nil, metrics.STABLE)
)

func desc(name, help string, labels []string, stability metrics.StabilityLevel) *metrics.Desc {
	return metrics.NewDesc(name, help, labels, nil, stability, "")
}

// DescribeWithStability implements metrics.StableCollector.
func (r *resourceMetrics) DescribeWithStability(ch chan<- *metrics.Desc) {
	for _, d := range []*metrics.Desc{nodeCPU, nodeMemory, nodeSwap, containerStart, containerCPU, containerMemory, containerSwap,
		containerLimit, podCPU, podMemory, podSwap, scrapeError} {
		ch <- d
	}
}

// CollectWithStability implements metrics.StableCollector.
func (r *resourceMetrics) CollectWithStability(ch chan<- metrics.Metric) {
	failed := 1.0
	if r.summary != nil {
		failed = 0
		resources{ch}.node(r.summary)
	}
	ch <- metrics.NewLazyConstMetric(scrapeError, metrics.GaugeValue, failed)
}

type resources struct{ ch chan<- metrics.Metric }

// put sends a value, unless it is unknown.
func (r resources) put(d *metrics.Desc, kind metrics.ValueType, at time.Time, v *uint64, unit float64, labels ...string) {
	if v != nil {
		r.ch <- metrics.NewLazyMetricWithTimestamp(at, metrics.NewLazyConstMetric(d, kind, float64(*v)/unit, labels...))
	}
}

func (r resources) cpu(d *metrics.Desc, c *statsapi.CPUStats, labels ...string) {
	if c != nil {
		r.put(d, metrics.CounterValue, c.Time.Time, c.UsageCoreNanoSeconds, 1e9, labels...)
	}
}

func (r resources) memory(d *metrics.Desc, m *statsapi.MemoryStats, labels ...string) {
	if m != nil {
		r.put(d, metrics.GaugeValue, m.Time.Time, m.WorkingSetBytes, 1, labels...)
	}
}

func (r resources) swap(d *metrics.Desc, s *statsapi.SwapStats, labels ...string) {
	if s != nil {
		r.put(d, metrics.GaugeValue, s.Time.Time, s.SwapUsageBytes, 1, labels...)
	}
}

func (r resources) node(s *statsapi.Summary) {
	r.cpu(nodeCPU, s.Node.CPU)
	r.memory(nodeMemory, s.Node.Memory)
	r.swap(nodeSwap, s.Node.Swap)
	for i := range s.Pods {
		p := &s.Pods[i]
		for j := range p.Containers {
			r.container(p, &p.Containers[j])
		}
		r.cpu(podCPU, p.CPU, p.PodRef.Name, p.PodRef.Namespace)
		r.memory(podMemory, p.Memory, p.PodRef.Name, p.PodRef.Namespace)
		r.swap(podSwap, p.Swap, p.PodRef.Name, p.PodRef.Namespace)
	}
}

func (r resources) container(p *statsapi.PodStats, c *statsapi.ContainerStats) {
	labels := []string{c.Name, p.PodRef.Name, p.PodRef.Namespace}
	if c.StartTime.Unix() > 0 {
		r.ch <- metrics.NewLazyConstMetric(containerStart, metrics.GaugeValue, float64(c.StartTime.UnixNano())/1e9, labels...)
	}
	r.cpu(containerCPU, c.CPU, labels...)
	r.memory(containerMemory, c.Memory, labels...)
	r.swap(containerSwap, c.Swap, labels...)
	if s := c.Swap; s != nil && s.SwapUsageBytes != nil && s.SwapAvailableBytes != nil {
		limit := *s.SwapUsageBytes + *s.SwapAvailableBytes
		r.put(containerLimit, metrics.GaugeValue, s.Time.Time, &limit, 1, labels...)
	}
}
