package fleet

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/component-base/metrics"
	promtest "k8s.io/component-base/metrics/testutil"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/node"
	"github.com/bowline-k8s/bowline/pool"
)

// registryOf has the metrics of hosts in these states.
func registryOf(o *operations, states map[string]pool.State, nodes map[string]node.State) metrics.KubeRegistry {
	r := metrics.NewKubeRegistry()
	r.CustomMustRegister(&hostMetrics{states: func() map[string]pool.State { return states }, nodes: func() map[string]node.State { return nodes }, operations: o})
	return r
}

// TestOperations: each call of a host counts in the buckets of its duration. One that the host did not answer
// counts as a failure only.
func TestOperations(t *testing.T) {
	o := newOperations()
	r := registryOf(o, nil, nil)
	failed := errors.New("no")
	for _, c := range []struct {
		host, label string
		took        time.Duration
		err         error
	}{
		{"box", "cri/StartContainer", 10 * time.Millisecond, nil},
		{"box", "cri/StartContainer", 500 * time.Millisecond, nil},
		{"box", "cri/StartContainer", 20 * time.Second, failed},
		{"box", "cri/StartContainer", time.Millisecond, fmt.Errorf("dial: %w", host.ErrUnreachable)},
		{"box", "cri/StartContainer", time.Millisecond, status.Error(codes.Unavailable, "no connection")},
		{"other", "host/WriteTree", time.Second, nil},
		{"other", "host/Stat", time.Millisecond, host.ErrUnreachable},
	} {
		o.of(c.host).add(c.label, c.took, c.err)
	}
	const want = `
# HELP bowline_host_operation_duration_seconds [ALPHA] How long the calls to a host and to its runtime took that were answered, by the kind of call.
# TYPE bowline_host_operation_duration_seconds histogram
bowline_host_operation_duration_seconds_bucket{host="box",operation="cri/StartContainer",le="0.01"} 1
bowline_host_operation_duration_seconds_bucket{host="box",operation="cri/StartContainer",le="0.1"} 1
bowline_host_operation_duration_seconds_bucket{host="box",operation="cri/StartContainer",le="1"} 2
bowline_host_operation_duration_seconds_bucket{host="box",operation="cri/StartContainer",le="10"} 2
bowline_host_operation_duration_seconds_bucket{host="box",operation="cri/StartContainer",le="+Inf"} 3
bowline_host_operation_duration_seconds_sum{host="box",operation="cri/StartContainer"} 20.51
bowline_host_operation_duration_seconds_count{host="box",operation="cri/StartContainer"} 3
bowline_host_operation_duration_seconds_bucket{host="other",operation="host/WriteTree",le="0.01"} 0
bowline_host_operation_duration_seconds_bucket{host="other",operation="host/WriteTree",le="0.1"} 0
bowline_host_operation_duration_seconds_bucket{host="other",operation="host/WriteTree",le="1"} 1
bowline_host_operation_duration_seconds_bucket{host="other",operation="host/WriteTree",le="10"} 1
bowline_host_operation_duration_seconds_bucket{host="other",operation="host/WriteTree",le="+Inf"} 1
bowline_host_operation_duration_seconds_sum{host="other",operation="host/WriteTree"} 1
bowline_host_operation_duration_seconds_count{host="other",operation="host/WriteTree"} 1
# HELP bowline_host_operation_errors_total [ALPHA] The calls to a host and to its runtime that failed, by the kind of call.
# TYPE bowline_host_operation_errors_total counter
bowline_host_operation_errors_total{host="box",operation="cri/StartContainer"} 3
bowline_host_operation_errors_total{host="other",operation="host/Stat"} 1
`
	if err := promtest.GatherAndCompare(r, strings.NewReader(want), durationName, "bowline_host_operation_errors_total"); err != nil {
		t.Error(err)
	}
	o.keep(func(host string) bool { return host == "box" })
	if text := gathered(t, r); strings.Contains(text, `host="box"`) || !strings.Contains(text, `host="other"`) {
		t.Errorf("after box is gone, the metrics are\n%s", text)
	}
}

// gathered are the lines of the families of operations.
func gathered(t *testing.T, r metrics.KubeRegistry) string {
	t.Helper()
	families, err := r.Gather()
	testutil.Must(t, err)
	var b strings.Builder
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), "bowline_host_operation_") {
			for _, m := range f.Metric {
				fmt.Fprintf(&b, "%s{host=%q,operation=%q} %d %v\n", f.GetName(), m.Label[0].GetValue(), m.Label[1].GetValue(), m.GetHistogram().GetSampleCount(), m.GetCounter().GetValue())
			}
		}
	}
	return b.String()
}

// TestOperationsOfADriver: the calls of a driver are timed below the name of its host, also after it has
// started again, until the process forgets the host.
func TestOperationsOfADriver(t *testing.T) {
	rt, root := fake.Run(t, fake.Config{}), t.TempDir()
	d := newDrivers(1)
	r := registryOf(d.operations, nil, nil)
	failed := errors.New("the facts are not read")
	hook := func(ctx context.Context, label string, call func(context.Context) error) error {
		if label == "host/Facts" {
			return failed
		}
		return call(ctx)
	}
	for range 2 {
		err := d.Manage(t.Context(), &config.Host{Name: "box", NodeName: "box", Endpoint: "unix://" + rt.Socket, RootDirectory: root, Kubeconfig: filepath.Join(root, "none")}, hook)
		if !errors.Is(err, failed) {
			t.Fatal(err)
		}
	}
	text := gathered(t, r)
	for _, want := range []string{durationName + `{host="box",operation="host/Facts"} 2 `, `bowline_host_operation_errors_total{host="box",operation="host/Facts"} 0 2` + "\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	d.keep(map[string]pool.State{"box": {}})
	if gathered(t, r) == "" {
		t.Error("the operations of a host that waits are gone")
	}
	d.keep(nil)
	if text := gathered(t, r); text != "" {
		t.Errorf("the host is gone, and still there are\n%s", text)
	}
}

// TestTimingCostsLittle: a call whose label is known allocates nothing for its metrics.
func TestTimingCostsLittle(t *testing.T) {
	hook := newOperations().of("box").timed(nil)
	call, ctx := func(context.Context) error { return nil }, t.Context()
	testutil.Must(t, hook(ctx, "host/Stat", call))
	if n := testing.AllocsPerRun(100, func() { _ = hook(ctx, "host/Stat", call) }); n != 0 {
		t.Errorf("it allocates %v times", n)
	}
}
