package syncloop

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

// If the runtime refused a start, users see the runtime's own message.
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

// Error messages from a host are kept for every pod, in twenty decisions each, so they are
// shortened on arrival.
func TestWordsOfFailuresAreBounded(t *testing.T) {
	long := "begin " + strings.Repeat("x", 64<<10) + " end"
	for _, err := range []error{
		&cri.Error{Method: "StartContainer", Err: status.Error(codes.Unknown, long)},
		because("RunContainerError", &cri.Error{Method: "StartContainer", Err: status.Error(codes.Unknown, long)}),
		errors.New(long), // a script's
	} {
		for _, kind := range []plan.OpKind{plan.OpStart, plan.OpSandbox, plan.OpVolumes} {
			got := (&job{op: plan.Operation{Kind: kind}}).words(err)
			if len(got) > budget.MaxText || !strings.Contains(got, "begin x") || !strings.HasSuffix(got, "x end") {
				t.Errorf("%s: %d bytes, %.60q", kind, len(got), got)
			}
		}
	}
}

// The node's conditions contain what the runtime says about itself, which may be a megabyte.
func TestWordsOfConditionsAreBounded(t *testing.T) {
	long := "begin " + strings.Repeat("x", 1<<20) + " end"
	runtime, network := conditionsOf(&runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
		{Type: "RuntimeReady", Message: long}, {Type: "NetworkReady", Message: long}}})
	for _, got := range []string{runtime, network} {
		if len(got) > budget.MaxText || !strings.Contains(got, "begin x") || !strings.HasSuffix(got, "x end") {
			t.Errorf("%d bytes, %.100q", len(got), got)
		}
	}
}

// The log of decisions has the outcomes of all containers, and keeps less of each.
func TestOutcomesOfDecisionsAreBounded(t *testing.T) {
	op := plan.Operation{Kind: plan.OpStart, Container: "app"}
	w := &worker{}
	w.pub.report.Decisions = []pod.WhyDecision{{Actions: []pod.WhyAction{{What: what(op)}}}}
	w.record(finished{Outcome: plan.Outcome{Operation: op, Err: "begin " + strings.Repeat("x", budget.MaxText-10) + " end"}})
	got := w.pub.report.Decisions[0].Actions[0].Outcome
	if len(got) > 512 || !strings.HasPrefix(got, "begin") || !strings.HasSuffix(got, "end") {
		t.Errorf("%d bytes, %.60q", len(got), got)
	}
}

// A container whose postStart hook has failed is reported as running neither in the status nor to
// the prober, although it runs until it is stopped.
func TestFailedPostStartIsNotReportedAsRunning(t *testing.T) {
	p := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "app", Lifecycle: &v1.Lifecycle{PostStart: &v1.LifecycleHandler{}}}}}}
	o := pod.Observed{Containers: []pod.Container{{Name: "app", ID: "1", State: pod.StateRunning}}}
	for why, want := range map[plan.Stop]pod.ContainerState{
		{Cause: plan.StopPostStart, Words: "reworded"}: pod.StateCreated, {}: pod.StateRunning,
		{Cause: plan.StopLivenessProbe, Words: "PostStartHookError"}: pod.StateRunning,
	} {
		ledger := plan.Ledger{Containers: map[string]plan.ContainerRecord{"1": {Hook: plan.HookDone, Why: why}}}
		if got := unhooked(p, o, ledger, nil, &v1.PodStatus{}).Containers[0].State; got != want {
			t.Errorf("stopped for %v: it is %v, not %v", why, got, want)
		}
	}
	if o.Containers[0].State != pod.StateRunning {
		t.Error("what was observed has changed")
	}
}
