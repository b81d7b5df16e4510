package stream

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
)

func TestEndsAreNoErrors(t *testing.T) {
	broken := &net.OpError{Op: "write", Err: os.NewSyscallError("write", syscall.EPIPE)}
	for _, c := range []struct {
		err  error
		want string
	}{{broken, ""}, {net.ErrClosed, ""}, {errors.New("no memory"), "ERROR"}, {nil, "ERROR"}} {
		sink := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(endsLevel-1)))
		logger := klog.FromContext(withEnds(klog.NewContext(context.Background(), sink)))
		logger.WithName("proxy").WithValues("pod", "p").Error(c.err, "proxying ended")
		lines := sink.GetSink().(ktesting.Underlier).GetBuffer().String()
		if c.want == "" && lines != "" || !strings.Contains(lines, c.want) {
			t.Errorf("%v: logged %q", c.err, lines)
		}
	}
}
