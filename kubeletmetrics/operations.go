// Package kubeletmetrics has a kubelet's metrics that span several parts of a node: the operations of
// the runtime and of control groups, the requests of clients, and the state of a node at the time of
// a scrape. A Maker registers each metric of the other packages. Everything is made for one registry,
// which belongs to one node.
package kubeletmetrics

import (
	"context"
	"errors"
	"strings"
	"time"

	"k8s.io/component-base/metrics"

	"github.com/bowline-k8s/bowline/host"
)

// Operations counts and times the calls to a host and to its runtime.
type Operations struct {
	runtime, runtimeErrors *metrics.CounterVec
	runtimeDuration        *metrics.HistogramVec
	cgroups                *metrics.HistogramVec
}

const (
	runtimeLabel = "cri/"
	hostLabel    = "host/"
)

// NewOperations registers the metrics with r.
func NewOperations(r metrics.KubeRegistry) *Operations {
	histogram := func(name, help string, buckets []float64, labels ...string) *metrics.HistogramVec {
		return metrics.NewHistogramVec(&metrics.HistogramOpts{Subsystem: "kubelet", Name: name, Help: help, Buckets: buckets, StabilityLevel: metrics.ALPHA}, labels)
	}
	counter := func(name, help string, labels ...string) *metrics.CounterVec {
		return metrics.NewCounterVec(&metrics.CounterOpts{Subsystem: "kubelet", Name: name, Help: help, StabilityLevel: metrics.ALPHA}, labels)
	}
	o := &Operations{
		runtime:       counter("runtime_operations_total", "Cumulative number of runtime operations by operation type.", "operation_type"),
		runtimeErrors: counter("runtime_operations_errors_total", "Cumulative number of runtime operation errors by operation type.", "operation_type"),
		runtimeDuration: histogram("runtime_operations_duration_seconds", "Duration in seconds of runtime operations. Broken down by operation type.",
			metrics.ExponentialBuckets(.005, 2.5, 14), "operation_type"),
		cgroups: histogram("cgroup_manager_duration_seconds", "Duration in seconds for cgroup manager operations. Broken down by method.", metrics.DefBuckets, "operation_type"),
	}
	r.MustRegister(o.runtime, o.runtimeErrors, o.runtimeDuration, o.cgroups)
	return o
}

// cgroupOperations are the calls that a kubelet's cgroup manager makes, by label.
var cgroupOperations = map[string]string{"EnsureCgroup": "update", "RemoveCgroup": "destroy"}

// Hook returns a hook that counts the calls of next. A call that the link cut off counts as an error, but
// has no duration: it says nothing about the runtime.
func (o *Operations) Hook(next host.Hook) host.Hook {
	return func(ctx context.Context, label string, call func(context.Context) error) error {
		began := time.Now()
		err := next.Do(ctx, label, call)
		took := time.Since(began)
		reached := !errors.Is(err, host.ErrUnreachable)
		if name, ok := strings.CutPrefix(label, runtimeLabel); ok {
			kind := OperationType(name)
			o.runtime.WithLabelValues(kind).Inc()
			if err != nil {
				o.runtimeErrors.WithLabelValues(kind).Inc()
			}
			if reached {
				o.runtimeDuration.WithLabelValues(kind).Observe(took.Seconds())
			}
		} else if kind, ok := cgroupOperations[strings.TrimPrefix(label, hostLabel)]; ok && reached {
			o.cgroups.WithLabelValues(kind).Observe(took.Seconds())
		}
		return err
	}
}

// operationTypes are the methods whose operation a kubelet names otherwise than by words of their name.
var operationTypes = map[string]string{
	"RunPodSandbox": "run_podsandbox", "StopPodSandbox": "stop_podsandbox", "RemovePodSandbox": "remove_podsandbox",
	"PodSandboxStatus": "podsandbox_status", "ListPodSandbox": "list_podsandbox", "ListPodSandboxStats": "list_podsandbox_stats",
	"UpdateContainerResources": "update_container",
}

// OperationType returns the name that a kubelet gives the operation of a method, "run_podsandbox".
func OperationType(method string) string {
	if kind, ok := operationTypes[method]; ok {
		return kind
	}
	var b strings.Builder
	for i, r := range method {
		if i > 0 && r >= 'A' && r <= 'Z' {
			b.WriteByte('_')
		}
		b.WriteRune(r)
	}
	return strings.ToLower(b.String())
}
