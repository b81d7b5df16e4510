package syncloop

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

// spanOfStart is the name of the span of a pod's start. The spans of its operations have the names of their
// kinds.
const spanOfStart = "pod start"

// tracing follows the start of one pod in a trace. It does nothing if the loop has no tracer, if the trace is
// not sampled, or if the pod already ran or ended when its worker saw it first.
type tracing struct {
	decided bool       // the worker has decided at least once
	span    trace.Span // of the start; nil: it is not followed, or has ended
}

// follow begins the span at the worker's first decision, and returns a context for the operations of the
// decision: what they do belongs to the span as long as the pod starts.
func (t *tracing) follow(ctx context.Context, w *worker, o pod.Observed) context.Context {
	tracer := w.loop.cfg.Tracer
	if tracer == nil {
		return ctx
	}
	if !t.decided && w.term == nil && o.Fresh() && !o.Exists() && stateOfStart(w.pod, &w.pod.Status) == startPending {
		// The context is new: the pod's start is the root.
		_, span := tracer.Start(context.Background(), spanOfStart, trace.WithTimestamp(w.created), trace.WithAttributes(
			attribute.String("k8s.namespace.name", w.ref.Namespace), attribute.String("k8s.pod.name", w.ref.Name),
			attribute.String("k8s.pod.uid", string(w.ref.UID)), attribute.String("k8s.node.name", w.loop.cfg.NodeName)))
		if span.IsRecording() {
			t.span = span
		}
	}
	t.decided = true
	if t.span == nil {
		return ctx
	}
	return trace.ContextWithSpan(ctx, t.span)
}

// reported ends the span when the pod is reported as started, or as over.
func (t *tracing) reported(now time.Time, s startState) {
	switch s {
	case startDone:
		t.end(now, "")
	case startOver:
		t.end(now, "the pod ended before it ran")
	}
}

// end ends the span, as failed if fault is not empty.
func (t *tracing) end(now time.Time, fault string) {
	if t.span == nil {
		return
	}
	if fault != "" {
		t.span.SetStatus(codes.Error, fault)
	}
	t.span.End(trace.WithTimestamp(now))
	t.span = nil
}

// span begins the span of the operation, if the start of its pod is recorded; otherwise it returns ctx and nil.
func (j *job) span(ctx context.Context) (context.Context, trace.Span) {
	tracer := j.loop.cfg.Tracer
	if tracer == nil || !trace.SpanFromContext(ctx).IsRecording() {
		return ctx, nil
	}
	ctx, span := tracer.Start(ctx, j.op.Kind.String())
	if j.op.Container != "" {
		span.SetAttributes(attribute.String("k8s.container.name", j.op.Container))
	}
	if c := pod.Find(pod.AllContainers(&j.pod.Spec), j.op.Container); c != nil && j.op.Kind == plan.OpPull {
		span.SetAttributes(attribute.String("container.image.name", c.Image))
	}
	return ctx, span
}

// endSpan ends the span of an operation with this outcome. The span has the reason of a failure, and not its
// message, which may quote what a host, a registry or a hook says.
func endSpan(ctx context.Context, span trace.Span, out plan.Outcome) {
	if span == nil {
		return
	}
	switch {
	case out.Err == "":
	case ctx.Err() != nil:
		span.SetStatus(codes.Error, "cancelled")
	case out.Transport:
		span.SetStatus(codes.Error, "unreachable")
	default:
		span.SetStatus(codes.Error, out.Reason)
	}
	span.End()
}

// startState is how far the start of a pod is, by its status.
type startState int

const (
	startPending startState = iota
	startDone               // every container runs, or has run
	startOver               // the pod ends
)

// stateOfStart returns the state of the start of a pod that has this status.
func stateOfStart(p *v1.Pod, status *v1.PodStatus) startState {
	if pod.Terminal(status.Phase) || p.DeletionTimestamp != nil {
		return startOver
	}
	if status.Phase != v1.PodRunning || len(status.ContainerStatuses) != len(p.Spec.Containers) {
		return startPending
	}
	for i := range status.ContainerStatuses {
		if c := &status.ContainerStatuses[i]; c.State.Running == nil && c.State.Terminated == nil {
			return startPending
		}
	}
	return startDone
}
