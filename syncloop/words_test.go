package syncloop

import (
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

// What people read of a failure: the runtime's own words where it refused a start.
func TestWordsOfFailures(t *testing.T) {
	refused := &cri.Error{Method: "StartContainer", Object: "0123", Err: status.Error(codes.NotFound, "no such file")}
	lost := &cri.Error{Method: "StartContainer", Object: "0123", Kind: cri.KindTransport, Err: status.Error(codes.Unavailable, "gone")}
	for _, tc := range []struct {
		op   plan.OpKind
		err  error
		want string
	}{
		{plan.OpStart, because("RunContainerError", refused), "no such file"},
		{plan.OpStart, because("CreateContainerError", fmt.Errorf("again: %w", refused)), "no such file"},
		{plan.OpSandbox, refused, "rpc error: code = NotFound desc = no such file"},
		{plan.OpStart, because(postStartHookError, fmt.Errorf("the hook: %w", refused)), `the hook: cri StartContainer "0123": no such file`},
		{plan.OpStop, fmt.Errorf("stop: %w", refused), `stop: cri StartContainer "0123": no such file`},
		{plan.OpStart, because("RunContainerError", lost), `cri StartContainer "0123": no answer from the container runtime: gone`},
		{plan.OpSandbox, errors.New("no such class"), "no such class"},
	} {
		if got := (&job{op: plan.Operation{Kind: tc.op}}).words(tc.err); got != tc.want {
			t.Errorf("%s, %v: %q, not %q", tc.op, tc.err, got, tc.want)
		}
	}
}

// A container whose postStart hook has failed is told as running by nobody, though it
// runs until it is stopped.
func TestFailedPostStartIsNotToldAsRunning(t *testing.T) {
	p := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "app", Lifecycle: &v1.Lifecycle{PostStart: &v1.LifecycleHandler{}}}}}}
	o := pod.Observed{Containers: []pod.Container{{Name: "app", ID: "1", State: pod.StateRunning}}}
	for why, want := range map[plan.Stop]pod.ContainerState{
		{Cause: plan.StopPostStart, Words: "reworded"}: pod.StateCreated, {}: pod.StateRunning,
		{Cause: plan.StopLivenessProbe, Words: "PostStartHookError"}: pod.StateRunning,
	} {
		ledger := plan.Ledger{Hooked: map[string]bool{"1": true}, Why: map[string]plan.Stop{"1": why}}
		if got := unhooked(p, o, ledger, nil, &v1.PodStatus{}).Containers[0].State; got != want {
			t.Errorf("stopped for %v: it is %v, not %v", why, got, want)
		}
	}
	if o.Containers[0].State != pod.StateRunning {
		t.Error("what was observed has changed")
	}
}
