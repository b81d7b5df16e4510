// Package lifecycle runs one lifecycle hook of a container: exec, httpGet or sleep. The planner
// decides what happens to the container if the hook fails.
package lifecycle

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/syncloop/probehttp"
)

// Exec runs commands in containers (cri.Client).
type Exec interface {
	ExecSync(ctx context.Context, id string, cmd []string, timeout time.Duration) (cri.ExecResult, error)
}

// Dialer opens connections from the host (host.Host).
type Dialer interface {
	Dial(ctx context.Context, network, address string) (net.Conn, error)
}

// Event reasons of the kubelet.
const (
	FailedPostStartHook = "FailedPostStartHook"
	FailedPreStopHook   = "FailedPreStopHook"
)

// Error is the error of a failed hook.
type Error struct {
	// Reason is the event's reason: FailedPostStartHook or FailedPreStopHook.
	Reason string
	// Message is the event's text. It has none of the hook's output, which may contain secrets;
	// Error has that.
	Message string
	// Transport: it is unknown whether the hook ran or how it ended.
	Transport bool
	detail    string
	Err       error
}

func (e *Error) Error() string { return e.detail }
func (e *Error) Unwrap() error { return e.Err }

// Runner runs hooks. Exec and Dial are required.
type Runner struct {
	Exec Exec
	Dial Dialer
	// Event records an event on the pod; nil: none is recorded.
	Event func(p *v1.Pod, kind, reason, message string)
	// Fallback is called for each HTTPS hook that was answered over HTTP, SleepCut for each sleep that
	// ctx ended. They may be nil.
	Fallback, SleepCut func()
}

func call(f func()) {
	if f != nil {
		f()
	}
}

// maxOutput is how much of a failed command's output an error quotes, in bytes.
const maxOutput = 10 << 10

// Run runs h, which is c.Lifecycle's PostStart or PreStop, in container containerID. An httpGet
// without a host goes to podIP. Run has no timeout of its own, only ctx's. If the hook fails, it
// returns the event's text and an *Error, else zero values. A tcpSocket hook fails, as in a
// kubelet: the API has the field but nothing supports it.
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
		if err = sleep(ctx, time.Duration(h.Sleep.Seconds)*time.Second); err != nil {
			call(r.SleepCut)
		}
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

// exec runs the command and returns a description of its failure.
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

// httpGet sends the request; any response is a success, whatever its status code.
func (r *Runner) httpGet(ctx context.Context, p *v1.Pod, c *v1.Container, a *v1.HTTPGetAction, podIP string) error {
	if a.Host == "" && podIP == "" {
		return errors.New("failed to find networking container: the pod has no address")
	}
	req, err := probehttp.Request(ctx, a, c, podIP, "lifecycle")
	if err != nil {
		return err
	}
	client := probehttp.Client(r.Dial, false)
	resp, err := client.Do(req)
	// A server without TLS answers an HTTPS hook in plain text. Ask again over HTTP, without the
	// credentials that were meant for TLS.
	if plain := (tls.RecordHeaderError{}); errors.As(err, &plain) || errors.Is(err, http.ErrSchemeMismatch) {
		req = req.Clone(ctx)
		req.URL.Scheme = "http"
		req.Header.Del("Authorization")
		if again, httpErr := client.Do(req); httpErr == nil {
			klog.FromContext(ctx).V(1).Info("Retrying an HTTPS lifecycle hook in HTTP", "pod", klog.KObj(p), "container", c.Name, "address", req.URL.Host)
			if r.Event != nil {
				r.Event(p, v1.EventTypeWarning, "LifecycleHTTPFallback",
					fmt.Sprintf("the HTTPS lifecycle hook %s answered in HTTP, and was called in HTTP", req.URL.Host))
			}
			call(r.Fallback)
			resp, err = again, nil
		}
	}
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = probehttp.Body(resp.Body) // the server may wait for it to be read
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
