package api

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// streamOptions decodes the kubelet's query: input, output, error and tty are "1".
func streamOptions(r *http.Request) (StreamOptions, error) {
	q := r.URL.Query()
	o := StreamOptions{
		Stdin:  q.Get("input") == "1",
		Stdout: q.Get("output") == "1",
		Stderr: q.Get("error") == "1",
		TTY:    q.Get("tty") == "1",
	}
	if o.TTY {
		o.Stderr = false // a terminal has one output; callers request both
	}
	if !o.Stdin && !o.Stdout && !o.Stderr {
		return o, &textError{ErrBadRequest, "you must specify at least 1 of stdin, stdout, stderr"}
	}
	return o, nil
}

func (s *Server) exec(w http.ResponseWriter, r *http.Request) {
	s.stream(w, r, func(ctx context.Context, id string, o StreamOptions) (string, error) {
		cmd := r.URL.Query()["command"]
		if len(cmd) == 0 {
			return "", &textError{ErrBadRequest, "you must specify a command"}
		}
		return s.cfg.Streams.Exec(ctx, &runtimeapi.ExecRequest{
			ContainerId: id, Cmd: cmd, Tty: o.TTY, Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr,
		})
	})
}

// attach takes TTY from the container's spec, because a terminal cannot be added to or removed from
// a running process.
func (s *Server) attach(w http.ResponseWriter, r *http.Request) {
	s.stream(w, r, func(ctx context.Context, id string, o StreamOptions) (string, error) {
		if p, ok := s.cfg.Pods.PodByName(r.PathValue("namespace"), r.PathValue("pod")); ok {
			o.TTY = wantsTTY(p, r.PathValue("container"))
			o.Stderr = o.Stderr && !o.TTY
		}
		return s.cfg.Streams.Attach(ctx, &runtimeapi.AttachRequest{
			ContainerId: id, Tty: o.TTY, Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr,
		})
	})
}

func (s *Server) stream(w http.ResponseWriter, r *http.Request, open func(context.Context, string, StreamOptions) (string, error)) {
	o, err := streamOptions(r)
	if err != nil {
		fail(w, err)
		return
	}
	id, err := s.running(r)
	if err != nil {
		fail(w, err)
		return
	}
	url, err := open(r.Context(), id, o)
	if err != nil {
		fail(w, err)
		return
	}
	s.streamed(r)
	s.cfg.Streams.Proxy(w, r, url, o)
}

// streamed counts a stream over WebSocket, by the first part of its path.
func (s *Server) streamed(r *http.Request) {
	if isWebSocket(r) {
		what, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		s.cfg.Streamed(strings.ToLower(what))
	}
}

func isWebSocket(r *http.Request) bool {
	return strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
}

func (s *Server) portForward(w http.ResponseWriter, r *http.Request) {
	p, err := s.pod(r)
	if err != nil {
		fail(w, err)
		return
	}
	ports, err := forwardedPorts(r, !s.cfg.NoTunnels)
	if err != nil {
		fail(w, err)
		return
	}
	sandbox, err := s.cfg.Pods.Sandbox(r.Context(), p.Namespace, p.Name, p.UID)
	if err != nil {
		fail(w, err)
		return
	}
	url, err := s.cfg.Streams.PortForward(r.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: sandbox, Port: ports})
	if err != nil {
		fail(w, err)
		return
	}
	s.streamed(r)
	s.cfg.Streams.Proxy(w, r, url, StreamOptions{PortForward: true})
}

// forwardedPorts decodes the ports in the query of a WebSocket caller with the kubelet's own
// protocol. With SPDY, tunnelled or not, each stream names its port.
func forwardedPorts(r *http.Request, tunnels bool) ([]int32, error) {
	spoken := strings.Join(r.Header.Values("Sec-WebSocket-Protocol"), ",")
	if !isWebSocket(r) || tunnels && strings.Contains(spoken, "SPDY/3.1") {
		return nil, nil
	}
	var ports []int32
	for _, v := range r.URL.Query()["port"] {
		for one := range strings.SplitSeq(v, ",") {
			n, err := strconv.ParseUint(one, 10, 16)
			if err != nil || n == 0 {
				return nil, &textError{ErrBadRequest, fmt.Sprintf("port %q is not a port number", one)}
			}
			ports = append(ports, int32(n))
		}
	}
	if len(ports) == 0 {
		return nil, &textError{ErrBadRequest, `query parameter "port" is required`}
	}
	return ports, nil
}

// run runs a command and answers with its whole output. The query parameter is split at blanks, as
// a kubelet does.
func (s *Server) run(w http.ResponseWriter, r *http.Request) {
	id, err := s.running(r)
	if err != nil {
		fail(w, err)
		return
	}
	out, err := s.cfg.Streams.Run(r.Context(), id, strings.Split(r.FormValue("cmd"), " "))
	if err != nil {
		fail(w, err)
		return
	}
	w.Write(out) // ignore a caller that has gone away
}

// pod returns the pod in the path; a uid in the path must match.
func (s *Server) pod(r *http.Request) (*v1.Pod, error) {
	namespace, name, uid := r.PathValue("namespace"), r.PathValue("pod"), types.UID(r.PathValue("uid"))
	p, ok := s.cfg.Pods.PodByName(namespace, name)
	if !ok || (uid != "" && p.UID != s.cfg.Pods.Resolve(uid)) {
		return nil, &textError{ErrNotFound, fmt.Sprintf("pod %s/%s does not exist on this node", namespace, name)}
	}
	return p, nil
}

// running returns the container in the path, which must be running.
func (s *Server) running(r *http.Request) (string, error) {
	p, err := s.pod(r)
	if err != nil {
		return "", err
	}
	name := r.PathValue("container")
	if !hasContainer(p, name) {
		return "", &textError{ErrNotFound, fmt.Sprintf("container not found (%q)", name)}
	}
	c, err := s.cfg.Pods.Container(r.Context(), p.Namespace, p.Name, p.UID, name, false)
	if err != nil {
		return "", err
	}
	if !c.Running {
		return "", &textError{ErrNotFound, fmt.Sprintf("container %q of pod %s/%s is not running", name, p.Namespace, p.Name)}
	}
	return c.ID, nil
}

func hasContainer(p *v1.Pod, name string) bool {
	return pod.Find(pod.AllContainers(&p.Spec), name) != nil
}

func wantsTTY(p *v1.Pod, name string) bool {
	c := pod.Find(pod.AllContainers(&p.Spec), name)
	return c != nil && c.TTY
}
