package prober

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/syncloop/probehttp"
)

// run is the input of one run of a probe. It does not change during the run.
type run struct {
	kind      Kind
	spec      *v1.Probe
	container *v1.Container
	id, ip    string
}

// outcome is the outcome of one run.
type outcome struct {
	result  Result
	message string
	warning bool   // success, but with an event
	errored error  // the probe could not be made: no result, but an event
	state   string // how the kubelet's event names that result: "unknown" or "failure"
}

// maxTries is how often one run tries a probe that returns an error instead of a result, as in the
// kubelet.
const maxTries = 3

// probe runs a probe once.
func (m *Manager) probe(ctx context.Context, r run) outcome {
	var o outcome
	for range maxTries {
		if o = m.try(ctx, r); o.errored == nil || ctx.Err() != nil {
			break
		}
	}
	return o
}

func (m *Manager) try(ctx context.Context, r run) outcome {
	switch h := &r.spec.ProbeHandler; {
	case h.Exec != nil:
		return m.exec(ctx, r, h.Exec)
	case r.ip == "" && (h.GRPC != nil || h.HTTPGet != nil && h.HTTPGet.Host == "" || h.TCPSocket != nil && h.TCPSocket.Host == ""):
		return outcome{} // the pod has no address yet
	case h.HTTPGet != nil:
		return m.http(ctx, r, h.HTTPGet)
	case h.TCPSocket != nil:
		return m.tcp(ctx, r, h.TCPSocket)
	case h.GRPC != nil:
		return m.grpc(ctx, r, h.GRPC)
	}
	return broken(errors.New("missing probe handler"))
}

func broken(err error) outcome { return outcome{errored: err, state: "unknown"} }

// failed returns a failure with a message, or no result if the error is the link's.
func (m *Manager) failed(err error, message string) outcome {
	var ne net.Error
	late := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &ne) && ne.Timeout()
	switch {
	case errors.Is(err, host.ErrUnreachable), errors.Is(err, context.Canceled):
		return outcome{}
	case late && m.cfg.Late():
		return outcome{}
	}
	return outcome{result: Failure, message: message}
}

// exec runs a command; the runtime enforces the timeout.
func (m *Manager) exec(ctx context.Context, r run, a *v1.ExecAction) outcome {
	command := make([]string, len(a.Command))
	for i, s := range a.Command {
		command[i] = spec.Expand(s, func(name string) (string, bool) {
			// The kubelet's probes expand only values that the spec contains literally.
			for j := range r.container.Env {
				if r.container.Env[j].Name == name {
					return r.container.Env[j].Value, true
				}
			}
			return "", false
		})
	}
	limit := timeout(r.spec)
	res, err := m.cfg.Exec.ExecSync(ctx, r.id, command, limit)
	switch {
	case err == nil:
	case cri.IsTimeout(err):
		return outcome{result: Failure, message: fmt.Sprintf("command timed out: %q timed out after %s", strings.Join(command, " "), limit)}
	case cri.IsTransport(err), cri.IsNotFound(err):
		return outcome{} // no result; if the container is gone, the next observation shows it
	default:
		return broken(err)
	}
	out := append(res.Stdout[:len(res.Stdout):len(res.Stdout)], res.Stderr...)
	o := outcome{result: Success, message: string(out[:min(len(out), probehttp.MaxBody)])}
	if res.ExitCode != 0 {
		o.result = Failure
	}
	return o
}

// open opens the probe's connection. The probe's own timeout starts after that.
func (m *Manager) open(ctx context.Context, r run, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout(r.spec)+m.cfg.DialSlack)
	defer cancel()
	return probehttp.Dial(ctx, m.cfg.Dialer, address)
}

func (m *Manager) http(ctx context.Context, r run, a *v1.HTTPGetAction) outcome {
	req, err := probehttp.Request(ctx, a, r.container, r.ip, "probe")
	if err != nil {
		return broken(err)
	}
	address := probehttp.Address(req.URL)
	conn, err := m.open(ctx, r, address)
	if err != nil {
		return m.failed(err, fmt.Sprintf("Get %q: %v", req.URL, err))
	}
	ctx, opened := probehttp.WithOpened(ctx, address, conn)
	defer opened.Close()
	client := *m.client
	if a.Protocol != nil && *a.Protocol == v1.HTTPProtocolHTTP2 {
		client = *m.h2c
	}
	client.Timeout = timeout(r.spec)
	resp, err := client.Do(req.WithContext(ctx))
	if err != nil {
		return m.failed(err, err.Error())
	}
	defer resp.Body.Close()
	body, err := probehttp.Body(resp.Body)
	switch {
	case errors.Is(err, host.ErrUnreachable):
		return outcome{}
	case err != nil:
		return outcome{errored: err, state: "failure"}
	case resp.StatusCode < http.StatusOK || resp.StatusCode >= http.StatusBadRequest:
		return outcome{result: Failure, message: fmt.Sprintf("HTTP probe failed with statuscode: %d", resp.StatusCode)}
	case resp.StatusCode >= http.StatusMultipleChoices:
		return outcome{result: Success, warning: true, message: "Probe terminated redirects, Response body: " + body}
	}
	return outcome{result: Success, message: body}
}

func (m *Manager) tcp(ctx context.Context, r run, a *v1.TCPSocketAction) outcome {
	port, err := probehttp.Port(a.Port, r.container)
	if err != nil {
		return broken(err)
	}
	to := a.Host
	if to == "" {
		to = r.ip
	}
	conn, err := m.open(ctx, r, net.JoinHostPort(to, strconv.Itoa(port)))
	if err != nil {
		return m.failed(err, err.Error())
	}
	if l, ok := conn.(interface{ SetLinger(sec int) error }); ok {
		_ = l.SetLinger(1)
	}
	_ = conn.Close()
	return outcome{result: Success}
}
