package cri

import (
	"context"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	// execMargin is the time that an ExecSync may take beyond its timeout: entering the container, killing
	// the command, draining its output.
	execMargin = 30 * time.Second
	// execLongest limits an ExecSync without a timeout.
	execLongest = 24 * time.Hour
)

// ExecResult is the result of a command. A command that prints more than 256 KiB fails instead.
type ExecResult struct {
	Stdout, Stderr []byte
	ExitCode       int32
}

// ExecSync runs a command in a container until it exits. A non-zero exit code is not an error.
// After timeout the runtime kills the command (IsTimeout); 0 means no timeout. The CRI counts whole
// seconds; fractions are rounded up.
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

// Exec prepares a streaming command. It returns the URL at which the runtime serves the stream,
// once, for about a minute.
func (c *Client) Exec(ctx context.Context, req *runtimeapi.ExecRequest) (string, error) {
	r, err := c.runtime.Exec(ctx, req)
	return streamURL(r.GetUrl(), "Exec", req.GetContainerId(), err)
}

// Attach prepares a stream to the container's first process, like Exec.
func (c *Client) Attach(ctx context.Context, req *runtimeapi.AttachRequest) (string, error) {
	r, err := c.runtime.Attach(ctx, req)
	return streamURL(r.GetUrl(), "Attach", req.GetContainerId(), err)
}

// PortForward prepares a stream into the sandbox's network, like Exec.
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
