package cri

import (
	"context"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	// execMargin is what an ExecSync may take beyond its time-out: entering the
	// container, killing the command, draining its output.
	execMargin = 30 * time.Second
	// execLongest bounds an ExecSync without a time-out.
	execLongest = 24 * time.Hour
)

// ExecResult is how a command ended. One that prints more than 256 KiB has failed.
type ExecResult struct {
	Stdout, Stderr []byte
	ExitCode       int32
}

// ExecSync runs a command in a container to its end. A non-zero exit is not an
// error. When timeout is over the runtime kills the command: IsTimeout; 0 is no
// time-out. The CRI counts whole seconds; a fraction is rounded up.
func (c *Client) ExecSync(ctx context.Context, id string, cmd []string, timeout time.Duration) (ExecResult, error) {
	timeout = max(timeout, 0)
	var cancel context.CancelFunc
	if timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, timeout+execMargin)
	} else {
		ctx, cancel = bounded(ctx, execLongest)
	}
	defer cancel()
	r, err := c.runtime.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: cmd, Timeout: seconds(timeout)})
	if err != nil {
		return ExecResult{}, about(err, id)
	}
	return ExecResult{Stdout: r.Stdout, Stderr: r.Stderr, ExitCode: r.ExitCode}, nil
}

// Exec prepares a streaming command and returns the URL where the runtime
// serves it, once, for about a minute.
func (c *Client) Exec(ctx context.Context, req *runtimeapi.ExecRequest) (string, error) {
	r, err := c.runtime.Exec(ctx, req)
	return streamURL(r.GetUrl(), "Exec", req.GetContainerId(), err)
}

// Attach prepares a stream to the container's first process: as Exec.
func (c *Client) Attach(ctx context.Context, req *runtimeapi.AttachRequest) (string, error) {
	r, err := c.runtime.Attach(ctx, req)
	return streamURL(r.GetUrl(), "Attach", req.GetContainerId(), err)
}

// PortForward prepares a stream into the sandbox's network: as Exec.
func (c *Client) PortForward(ctx context.Context, req *runtimeapi.PortForwardRequest) (string, error) {
	r, err := c.runtime.PortForward(ctx, req)
	return streamURL(r.GetUrl(), "PortForward", req.GetPodSandboxId(), err)
}

func streamURL(url, method, id string, err error) (string, error) {
	if err != nil {
		return "", about(err, id)
	}
	if url == "" {
		return "", &Error{Method: method, Object: id, Err: errEmptyAnswer}
	}
	return url, nil
}
