package syncloop

import (
	"context"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

// TestTracesOffCostNothing: without a tracer, a decision and an operation allocate nothing for traces.
func TestTracesOffCostNothing(t *testing.T) {
	l := &Loop{}
	w := &worker{loop: l}
	j := &job{loop: l, op: plan.Operation{Kind: plan.OpPull, Container: "app"}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	now, out := time.Now(), plan.Outcome{Err: "failed"}
	o := pod.Observed{Seq: 1}
	if n := testing.AllocsPerRun(100, func() {
		ctx := w.trace.follow(ctx, w, o)
		ctx, span := j.span(ctx)
		endSpan(ctx, span, out)
		w.trace.reported(now, startDone)
		w.trace.end(now, "the worker ended")
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if w.trace.follow(ctx, w, o) != ctx {
		t.Error("the context of a worker is another one")
	}
}
