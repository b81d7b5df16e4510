package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/bowline-k8s/bowline/node"
	"github.com/bowline-k8s/bowline/pool"
	"github.com/bowline-k8s/bowline/version"
)

// hostMetrics are the metrics of the process about its hosts.
type hostMetrics struct {
	metrics.BaseStableCollector
	states     func() map[string]pool.State
	nodes      func() map[string]node.State // of those that serve
	operations *operations
}

var (
	hostsByState = hostDesc("bowline_hosts", "The number of hosts by their state in this process.", "state")
	linkUp       = hostDesc("bowline_host_link_up", "Whether the link to a remote host is up.", "host")
	linkRTT      = hostDesc("bowline_host_link_rtt_seconds", "The round trip of the last keepalive on the link to a remote host.", "host")
	reconnects   = hostDesc("bowline_host_link_reconnects_total", "How often the link to a remote host was connected again, since Bowline last started to manage the host.", "host")
	linkBytes    = hostDesc("bowline_host_link_bytes_total", "The bytes of all SSH connections to a remote host, since Bowline last started to manage it.", "host", "direction")
	observedAge  = hostDesc("bowline_host_observation_age_seconds", "The time since Bowline last listed what the host's runtime has.", "host")
	buildInfo    = hostDesc("bowline_build_info", "A constant 1, with the version of Bowline.", "version", "commit", "go_version")
)

func hostDesc(name, help string, labels ...string) *metrics.Desc {
	return metrics.NewDesc(name, help, labels, nil, metrics.ALPHA, "")
}

// ObserveHosts adds the metrics about the hosts of this process to those of the process.
func ObserveHosts(hosts *pool.Pool, drivers *Drivers) {
	legacyregistry.CustomMustRegister(&hostMetrics{states: hosts.States, nodes: drivers.serving, operations: drivers.operations})
}

// DescribeWithStability implements metrics.StableCollector.
func (m *hostMetrics) DescribeWithStability(ch chan<- *metrics.Desc) {
	for _, d := range []*metrics.Desc{hostsByState, linkUp, linkRTT, reconnects, linkBytes, observedAge, buildInfo, operationTime, operationErrors} {
		ch <- d
	}
}

// phases are all states, so that one without a host is shown as 0.
var phases = []pool.Phase{pool.Waiting, pool.Managed, pool.Failed, pool.Quarantined, pool.Ending}

// CollectWithStability implements metrics.StableCollector.
func (m *hostMetrics) CollectWithStability(ch chan<- metrics.Metric) {
	put := func(d *metrics.Desc, kind metrics.ValueType, v float64, labels ...string) {
		ch <- metrics.NewLazyConstMetric(d, kind, v, labels...)
	}
	count := map[pool.Phase]int{}
	for _, s := range m.states() {
		count[s.Phase]++
	}
	for _, phase := range phases {
		put(hostsByState, metrics.GaugeValue, float64(count[phase]), string(phase))
	}
	b := version.This()
	put(buildInfo, metrics.GaugeValue, 1, b.Version, b.Commit, b.Go)
	m.operations.collect(ch)
	for name, s := range m.nodes() {
		if !s.ObservedAt.IsZero() {
			put(observedAge, metrics.GaugeValue, time.Since(s.ObservedAt).Seconds(), name)
		}
		l := s.Link
		if l == nil {
			continue
		}
		up := 0.0
		if l.Up {
			up = 1
		}
		put(linkUp, metrics.GaugeValue, up, name)
		if l.RTT > 0 {
			put(linkRTT, metrics.GaugeValue, l.RTT.Seconds(), name)
		}
		put(reconnects, metrics.CounterValue, float64(max(l.Connection-1, 0)), name)
		put(linkBytes, metrics.CounterValue, float64(l.Read), name, "received")
		put(linkBytes, metrics.CounterValue, float64(l.Written), name, "sent")
	}
}

// aliveTimeout bounds the question to the pool.
const aliveTimeout = 5 * time.Second

// Alive returns why the process is stuck, or nil: its pool does not answer, or the sync loop of
// a node is stuck. Neither depends on a host.
func Alive(ctx context.Context, hosts *pool.Pool, drivers *Drivers) error {
	ctx, cancel := context.WithTimeout(ctx, aliveTimeout)
	defer cancel()
	errs := []error{hosts.Ping(ctx)}
	for name, s := range drivers.serving() {
		if err := s.Stuck; err != nil {
			errs = append(errs, fmt.Errorf("host %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}
