package kubeletmetrics

import "k8s.io/component-base/metrics"

// Maker makes metrics of the stability of most of a kubelet's, and registers them.
type Maker struct{ Registry metrics.KubeRegistry }

// Counter makes a counter.
func (f Maker) Counter(name, help string) *metrics.Counter {
	m := metrics.NewCounter(&metrics.CounterOpts{Name: name, Help: help, StabilityLevel: metrics.ALPHA})
	f.Registry.MustRegister(m)
	return m
}

// Counters makes counters with these labels.
func (f Maker) Counters(name, help string, labels ...string) *metrics.CounterVec {
	m := metrics.NewCounterVec(&metrics.CounterOpts{Name: name, Help: help, StabilityLevel: metrics.ALPHA}, labels)
	f.Registry.MustRegister(m)
	return m
}

// Gauge makes a gauge.
func (f Maker) Gauge(name, help string) *metrics.Gauge {
	m := metrics.NewGauge(&metrics.GaugeOpts{Name: name, Help: help, StabilityLevel: metrics.ALPHA})
	f.Registry.MustRegister(m)
	return m
}

// Histogram makes a histogram with these upper bounds.
func (f Maker) Histogram(name, help string, buckets []float64) *metrics.Histogram {
	m := metrics.NewHistogram(&metrics.HistogramOpts{Name: name, Help: help, Buckets: buckets, StabilityLevel: metrics.ALPHA})
	f.Registry.MustRegister(m)
	return m
}

// Histograms makes histograms with these upper bounds and labels.
func (f Maker) Histograms(name, help string, buckets []float64, labels ...string) *metrics.HistogramVec {
	m := metrics.NewHistogramVec(&metrics.HistogramOpts{Name: name, Help: help, Buckets: buckets, StabilityLevel: metrics.ALPHA}, labels)
	f.Registry.MustRegister(m)
	return m
}
