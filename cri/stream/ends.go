package stream

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"

	"k8s.io/klog/v2"
)

// withEnds gives the context a logger to which the end of a stream is no error:
// the proxy cannot tell whether the side that went had said all that it had to.
func withEnds(ctx context.Context) context.Context {
	logger := klog.FromContext(ctx)
	if logger.GetSink() == nil {
		return ctx
	}
	return klog.NewContext(ctx, klog.New(endsSink{logger.GetSink()}))
}

// endsLevel is the verbosity at which ends are told.
const endsLevel = 4

type endsSink struct{ klog.LogSink }

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

func (s endsSink) WithName(name string) klog.LogSink { return endsSink{s.LogSink.WithName(name)} }

// isEnd: the other side has gone, or our own was closed.
func isEnd(err error) bool {
	for _, end := range []error{net.ErrClosed, io.ErrClosedPipe, syscall.EPIPE, syscall.ECONNRESET} {
		if errors.Is(err, end) {
			return true
		}
	}
	return false
}
