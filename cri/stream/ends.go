package stream

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"

	"k8s.io/klog/v2"
)

// withEnds returns a context whose logger does not treat the end of a stream as an error: the proxy
// cannot tell whether the peer that went away was finished.
func withEnds(ctx context.Context) context.Context {
	sink := klog.FromContext(ctx).GetSink()
	if sink == nil {
		return ctx
	}
	if deep, ok := sink.(callDepthSink); ok {
		sink = deep.WithCallDepth(1) // log the caller's line, not ours
	}
	return klog.NewContext(ctx, klog.New(endsSink{sink}))
}

// callDepthSink is logr.CallDepthLogSink.
type callDepthSink interface {
	WithCallDepth(depth int) klog.LogSink
}

// endsLevel is the verbosity at which ends are logged.
const endsLevel = 4

type endsSink struct{ klog.LogSink }

// Init does nothing: the wrapped sink is already set up and in use.
func (s endsSink) Init(klog.RuntimeInfo) {}

func (s endsSink) Error(err error, msg string, values ...any) {
	if !isEnd(err) {
		s.LogSink.Error(err, msg, values...)
		return
	}
	if s.Enabled(endsLevel) {
		s.Info(endsLevel, msg, append(values, "err", err)...)
	}
}

func (s endsSink) WithValues(values ...any) klog.LogSink {
	return endsSink{s.LogSink.WithValues(values...)}
}

func (s endsSink) WithCallDepth(depth int) klog.LogSink {
	if deep, ok := s.LogSink.(callDepthSink); ok {
		return endsSink{deep.WithCallDepth(depth)}
	}
	return s
}

func (s endsSink) WithName(name string) klog.LogSink { return endsSink{s.LogSink.WithName(name)} }

// isEnd reports whether the peer went away, or our own connection was closed.
func isEnd(err error) bool {
	for _, end := range []error{net.ErrClosed, io.ErrClosedPipe, syscall.EPIPE, syscall.ECONNRESET} {
		if errors.Is(err, end) {
			return true
		}
	}
	return false
}
