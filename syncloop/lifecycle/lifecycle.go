// Package lifecycle runs one handler of a container's lifecycle: exec, httpGet
// or sleep. What becomes of the container when it fails is the planner's.
package lifecycle

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/syncloop/handler"
)

// Exec runs commands in containers (cri.Client).
type Exec interface {
	ExecSync(ctx context.Context, id string, cmd []string, timeout time.Duration) (cri.ExecResult, error)
}

// Dialer opens connections from the machine (host.Host).
type Dialer interface {
	Dial(ctx context.Context, network, address string) (net.Conn, error)
}

// Event reasons, the kubelet's.
const (
	FailedPostStartHook = "FailedPostStartHook"
	FailedPreStopHook   = "FailedPreStopHook"
)

// Error is why a handler failed.
type Error struct {
	// Reason for the event: FailedPostStartHook or FailedPreStopHook.
	Reason string
	// Message is the event's text. It has none of the handler's output, which
	// may hold secrets; that is in Error.
	Message string
	// Transport: nobody knows whether the handler ran or how it ended.
	Transport bool
	detail    string
	Err       error
}

func (e *Error) Error() string { return e.detail }
func (e *Error) Unwrap() error { return e.Err }

// Runner runs handlers. Both fields are required.
type Runner struct {
	Exec Exec
	Dial Dialer
}

// maxOutput is how much of a failed command's output an error quotes, in bytes.
const maxOutput = 10 << 10

// Run runs handler, which is c.Lifecycle's PostStart or PreStop, in container
// containerID; podIP is asked by an httpGet without a host. It has no time-out
// of its own: ctx has. It returns the text for the event and an *Error if the
// handler failed, or both zero. A tcpSocket handler fails, as it does in a
// kubelet: the API keeps the field but nothing supports it.
func (r *Runner) Run(ctx context.Context, p *v1.Pod, containerID string, c *v1.Container, h *v1.LifecycleHandler, podIP string) (string, error) {
	var err error
	var detail string
	switch {
	case h.Exec != nil:
		detail, err = r.exec(ctx, containerID, h.Exec)
		detail = fmt.Sprintf("Exec lifecycle hook (%v) for Container %q in Pod %q failed - %s", h.Exec.Command, c.Name, where(p), detail)
	case h.HTTPGet != nil:
		err = r.httpGet(ctx, p, c, h.HTTPGet, podIP)
		detail = fmt.Sprintf("HTTP lifecycle hook (%s) for Container %q in Pod %q failed - error: %v", h.HTTPGet.Path, c.Name, where(p), err)
	case h.Sleep != nil:
		err = sleep(ctx, time.Duration(h.Sleep.Seconds)*time.Second)
		detail = fmt.Sprintf("Sleep lifecycle hook (%d) for Container %q in Pod %q failed - error: %v", h.Sleep.Seconds, c.Name, where(p), err)
	default:
		err = errors.New("invalid handler: a lifecycle hook must be exec, httpGet or sleep")
		detail = fmt.Sprintf("Cannot run handler: %v", err)
	}
	if err == nil {
		return "", nil
	}
	e := &Error{Reason: FailedPostStartHook, Message: "PostStartHook failed", detail: detail, Err: err}
	if c.Lifecycle != nil && h == c.Lifecycle.PreStop {
		e.Reason, e.Message = FailedPreStopHook, "PreStopHook failed"
	}
	e.Transport = cri.IsTransport(err) || errors.Is(err, host.ErrUnreachable)
	return e.Message, e
}

// exec runs the command and returns what to say of its failure.
func (r *Runner) exec(ctx context.Context, id string, a *v1.ExecAction) (string, error) {
	res, err := r.Exec.ExecSync(ctx, id, a.Command, 0)
	if err == nil && res.ExitCode != 0 {
		err = fmt.Errorf("command '%s' exited with %d: %s", strings.Join(a.Command, " "), res.ExitCode, cut(res.Stderr))
	}
	if err == nil {
		return "", nil
	}
	return fmt.Sprintf("error: %v, message: %q", err, cut(append(res.Stdout[:len(res.Stdout):len(res.Stdout)], res.Stderr...))), err
}

func cut(b []byte) string { return string(b[:min(len(b), maxOutput)]) }

// httpGet sends the request; any response is a success, whatever its status.
func (r *Runner) httpGet(ctx context.Context, p *v1.Pod, c *v1.Container, a *v1.HTTPGetAction, podIP string) error {
	if a.Host == "" && podIP == "" {
		return errors.New("failed to find networking container: the pod has no address")
	}
	req, err := handler.Request(ctx, a, c, podIP, "lifecycle")
	if err != nil {
		return err
	}
	client := handler.Client(r.Dial, false)
	resp, err := client.Do(req)
	// A server without TLS answers an HTTPS hook in plain text: asked again so,
	// and without the credentials that were meant for TLS.
	if plain := (tls.RecordHeaderError{}); errors.As(err, &plain) || err != nil && strings.Contains(err.Error(), "server gave HTTP response to HTTPS client") {
		req = req.Clone(ctx)
		req.URL.Scheme = "http"
		req.Header.Del("Authorization")
		if again, httpErr := client.Do(req); httpErr == nil {
			klog.FromContext(ctx).Info("HTTPS lifecycle hook answered in HTTP", "pod", klog.KObj(p), "container", c.Name, "address", req.URL.Host)
			resp, err = again, nil
		}
	}
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = handler.Body(resp.Body) // the server may wait for it to be read
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return errors.New("container terminated before sleep hook finished")
	case <-t.C:
		return nil
	}
}

// where names the pod as the kubelet's messages do.
func where(p *v1.Pod) string { return fmt.Sprintf("%s_%s(%s)", p.Name, p.Namespace, p.UID) }
