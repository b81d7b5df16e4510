package tracing

import (
	"context"
	"errors"
	"strings"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/bowline-k8s/bowline/host"
)

// runtimeLabel begins the labels of the calls to a runtime.
const runtimeLabel = "cri/"

// Hook makes a span of each call whose context belongs to a recorded span. The runtime gets the span as the
// parent of its own, as from a kubelet. If tracer is nil, Hook returns next.
func Hook(tracer trace.Tracer, next host.Hook) host.Hook {
	if tracer == nil {
		return next
	}
	return func(ctx context.Context, label string, call func(context.Context) error) error {
		if !trace.SpanFromContext(ctx).IsRecording() {
			return next.Do(ctx, label, call)
		}
		ctx, span := tracer.Start(ctx, label, trace.WithSpanKind(trace.SpanKindClient))
		defer span.End()
		if strings.HasPrefix(label, runtimeLabel) {
			ctx = metadata.AppendToOutgoingContext(ctx, "traceparent", traceparent(span.SpanContext()))
		}
		err := next.Do(ctx, label, call)
		if err != nil {
			span.SetStatus(codes.Error, kindOf(err))
		}
		return err
	}
}

// traceparent is the span in the format of W3C Trace Context.
func traceparent(s trace.SpanContext) string {
	return "00-" + s.TraceID().String() + "-" + s.SpanID().String() + "-" + s.TraceFlags().String()
}

// kindOf says in a word or two why a call failed. The text of an error is in the log and in events; it may
// quote what the host says, so no span has it.
func kindOf(err error) string {
	if s, ok := status.FromError(err); ok {
		return s.Code().String()
	}
	switch {
	case errors.Is(err, host.ErrUnreachable):
		return "unreachable"
	case errors.Is(err, context.DeadlineExceeded):
		return "deadline exceeded"
	case errors.Is(err, context.Canceled):
		return "cancelled"
	}
	return "failed"
}
