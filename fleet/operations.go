package fleet

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/component-base/metrics"

	"github.com/bowline-k8s/bowline/host"
)

// operations times the calls to the hosts of this process and to their runtimes, by host and by the label
// of the call. The labels are constants of this program, so nothing that a host says adds a series.
type operations struct {
	mu     sync.Mutex
	byHost map[string]*hostOperations
}

// hostOperations are those of one host, through all of its drivers: the counters of a host do not fall when
// its driver starts again.
type hostOperations struct {
	mu      sync.Mutex
	byLabel map[string]*operation // from the first call of each
}

// operationBounds are few, because a process may have hundreds of hosts, and each has a series for each of
// them and for each operation.
var operationBounds = [...]float64{.01, .1, 1, 10}

type operation struct {
	answered uint64
	took     time.Duration                // of all that were answered
	within   [len(operationBounds)]uint64 // that took at most the bound, and more than the one before it
	failed   uint64
}

func newOperations() *operations { return &operations{byHost: map[string]*hostOperations{}} }

// of returns the operations of a host; the first call for a host creates them.
func (o *operations) of(host string) *hostOperations {
	o.mu.Lock()
	defer o.mu.Unlock()
	h := o.byHost[host]
	if h == nil {
		h = &hostOperations{byLabel: map[string]*operation{}}
		o.byHost[host] = h
	}
	return h
}

// keep drops the hosts that are gone.
func (o *operations) keep(gone func(host string) bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	maps.DeleteFunc(o.byHost, func(host string, _ *hostOperations) bool { return gone(host) })
}

// timed returns a hook that times the calls of next.
func (h *hostOperations) timed(next host.Hook) host.Hook {
	return func(ctx context.Context, label string, call func(context.Context) error) error {
		began := time.Now()
		err := next.Do(ctx, label, call)
		h.add(label, time.Since(began), err)
		return err
	}
}

// add counts one call. One that was not answered has no duration, because how soon a link or a socket refuses
// a call says nothing about the host.
func (h *hostOperations) add(label string, took time.Duration, err error) {
	answered := !errors.Is(err, host.ErrUnreachable) && status.Code(err) != codes.Unavailable
	h.mu.Lock()
	defer h.mu.Unlock()
	o := h.byLabel[label]
	if o == nil {
		o = &operation{}
		h.byLabel[label] = o
	}
	if err != nil {
		o.failed++
	}
	if !answered {
		return
	}
	o.answered++
	o.took += took
	for i, bound := range operationBounds {
		if took.Seconds() <= bound {
			o.within[i]++
			break
		}
	}
}

const (
	durationName = "bowline_host_operation_duration_seconds"
	durationHelp = "How long the calls to a host and to its runtime took that were answered, by the kind of call."
)

var (
	operationTime   = hostDesc(durationName, durationHelp, "host", "operation")
	operationErrors = hostDesc("bowline_host_operation_errors_total", "The calls to a host and to its runtime that failed, by the kind of call.", "host", "operation")
	// component-base has no constant histograms.
	operationHistogram = prometheus.NewDesc(durationName, "["+string(metrics.ALPHA)+"] "+durationHelp, []string{"host", "operation"}, nil)
)

// collect passes a histogram of each operation that a host has answered, and a counter of each that has failed.
func (o *operations) collect(ch chan<- metrics.Metric) {
	o.mu.Lock()
	hosts := maps.Clone(o.byHost)
	o.mu.Unlock()
	for name, h := range hosts {
		for label, of := range h.read() {
			if of.answered > 0 {
				ch <- prometheus.MustNewConstHistogram(operationHistogram, of.answered, of.took.Seconds(), of.buckets(), name, label)
			}
			if of.failed > 0 {
				ch <- metrics.NewLazyConstMetric(operationErrors, metrics.CounterValue, float64(of.failed), name, label)
			}
		}
	}
}

// buckets are the calls that took at most each bound.
func (o *operation) buckets() map[float64]uint64 {
	out, sum := make(map[float64]uint64, len(operationBounds)), uint64(0)
	for i, bound := range operationBounds {
		sum += o.within[i]
		out[bound] = sum
	}
	return out
}

func (h *hostOperations) read() map[string]operation {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make(map[string]operation, len(h.byLabel))
	for label, o := range h.byLabel {
		out[label] = *o
	}
	return out
}
