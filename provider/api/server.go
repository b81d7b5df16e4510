package api

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/bowline-k8s/bowline/pod"
)

// Pods is the sync loop's view of pods. For a namespace/name that is not on this node, its methods
// return an error that wraps ErrNotFound.
type Pods interface {
	// Resolve maps the UID of a mirror pod to that of its static pod.
	Resolve(uid types.UID) types.UID
	// PodByName returns the pod with its newest status.
	PodByName(namespace, name string) (*v1.Pod, bool)
	Pods() []*v1.Pod
	// AllocatedPods returns the pods that have an allocation and have not ended, each with its
	// allocated resources, for /allocatedPods.
	AllocatedPods() []*v1.Pod
	// RunningPods lists the pods that the runtime shows, for /runningpods.
	RunningPods(ctx context.Context) ([]*v1.Pod, error)
	// Container returns the newest instance of a container, or the one before it with previous. An
	// empty uid matches any pod of that name. It returns ErrNotFound if there is none.
	Container(ctx context.Context, namespace, name string, uid types.UID, container string, previous bool) (Container, error)
	// Sandbox returns the ID of the pod's ready sandbox.
	Sandbox(ctx context.Context, namespace, name string, uid types.UID) (string, error)
	Why(ctx context.Context, namespace, name string) (*pod.WhyReport, error)
}

// Container is one container instance.
type Container struct {
	ID      string
	Running bool
	LogPath string // absolute, on the host
}

// Streams are the runtime's calls for commands and streams.
type Streams interface {
	// Exec, Attach and PortForward return the runtime's streaming URL.
	Exec(ctx context.Context, req *runtimeapi.ExecRequest) (url string, err error)
	Attach(ctx context.Context, req *runtimeapi.AttachRequest) (url string, err error)
	PortForward(ctx context.Context, req *runtimeapi.PortForwardRequest) (url string, err error)
	// Proxy copies between the caller's upgraded connection and that URL until either side closes.
	Proxy(w http.ResponseWriter, r *http.Request, url string, o StreamOptions)
	// Run runs a command to its end, and returns its stdout followed by its stderr.
	Run(ctx context.Context, containerID string, cmd []string) (output []byte, err error)
}

// StreamOptions are the streams that the caller requested.
type StreamOptions struct {
	Stdin, Stdout, Stderr, TTY bool
	PortForward                bool
}

// LogReader copies a container's log at path to stdout and stderr (nil: not wanted), filtered by
// opts. With opts.Follow it continues until running returns false.
type LogReader func(ctx context.Context, path string, opts *v1.PodLogOptions,
	running func(context.Context) (bool, error), stdout, stderr io.Writer) error

// Stats answers what the host and its pods use.
type Stats interface {
	Summary(ctx context.Context, onlyCPUAndMemory bool) (*statsapi.Summary, error)
	// Resource and Cadvisor answer /metrics/resource and /metrics/cadvisor.
	Resource(w http.ResponseWriter, r *http.Request)
	Cadvisor(w http.ResponseWriter, r *http.Request)
}

// Config of a Server.
type Config struct {
	NodeName string
	// Listener is already bound, so that the node object can name its port.
	Listener net.Listener
	// Strangers bounds unauthenticated callers, at all nodes of the process together.
	Strangers *Strangers
	// Certificate is CertFiles or SelfSigned.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// MinTLS is the lowest version of TLS; 1.2 by default. CipherSuites are those of TLS 1.2; Go's
	// defaults by default. HTTP/2 needs one of those with AES_128_GCM_SHA256. Curves are the key
	// exchanges; Go's defaults by default.
	MinTLS        uint16
	CipherSuites  []uint16
	Curves        []tls.CurveID
	Authenticator authenticator.Request
	Authorizer    authorizer.UnconditionalAuthorizer
	Pods          Pods
	Streams       Streams
	Logs          LogReader
	Stats         Stats
	// SyncLoop returns why the sync loop is unhealthy, or nil.
	SyncLoop func() error
	// Metrics serves /metrics with the series of this node.
	Metrics http.Handler
	// ProbeMetrics serves /metrics/probes, SLIMetrics /metrics/slis.
	ProbeMetrics, SLIMetrics http.Handler
	// Version is shown at /statusz, Flags at /flagz. NoStatusz and NoFlagz: the API has no such path.
	Version            func() string
	Flags              map[string]string
	NoStatusz, NoFlagz bool
	// AllocatedPods: the API has /allocatedPods.
	AllocatedPods bool
	// Checkpoint writes a checkpoint of a running container to the host, and returns its path there. A
	// timeout of 0 seconds is the runtime's own. Nil: the API has no such path.
	Checkpoint func(ctx context.Context, p *v1.Pod, container, id string, timeout int64) (path string, err error)
	// SystemLogs serves /logs/; nil: it is disabled.
	SystemLogs http.Handler
	// Request counts a request; it is called before the caller is authenticated, and done when the
	// request has been answered. method and path have few values: path is the first part of the
	// request's, or two of /metrics/..., or "other".
	Request func(method, path string, longRunning bool) (done func())
	// Streamed counts a stream over WebSocket, by its kind: exec, attach, portforward.
	Streamed func(kind string)
	// NoTunnels: a port-forward cannot be tunnelled through a WebSocket.
	NoTunnels bool
	// NoLogStreams: a container's log shows both of its streams, even if the caller asks for one.
	NoLogStreams bool
	// Checked gets the result of each check of /healthz.
	Checked func(check string, err error)
	// Configz returns what /configz shows, a KubeletConfiguration as "kubeletconfig" among it; it must not
	// contain secrets.
	Configz func() (map[string]any, error)
}

func (c *Config) validate() error {
	var missing []string
	for name, ok := range map[string]bool{
		"NodeName": c.NodeName != "", "Listener": c.Listener != nil, "Strangers": c.Strangers != nil, "Certificate": c.Certificate != nil,
		"Authenticator": c.Authenticator != nil, "Authorizer": c.Authorizer != nil, "Pods": c.Pods != nil,
		"Streams": c.Streams != nil, "Logs": c.Logs != nil, "SyncLoop": c.SyncLoop != nil, "Configz": c.Configz != nil,
		"Metrics": c.Metrics != nil, "ProbeMetrics": c.ProbeMetrics != nil, "SLIMetrics": c.SLIMetrics != nil, "Checked": c.Checked != nil, "Version": c.Version != nil, "Stats": c.Stats != nil, "Request": c.Request != nil, "Streamed": c.Streamed != nil,
	} {
		if !ok {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("kubelet API: %s required", strings.Join(missing, ", "))
	}
	return nil
}

// maxHeader bounds a request's header in bytes, including the request line with the command of an
// exec. A kubelet accepts 1 MiB, but 1 MiB of short headers takes 16 MiB of memory, from a caller
// that has not authenticated yet. A token has 1 to 2 KiB.
const maxHeader = 64 << 10

// Server is the kubelet API of one node.
type Server struct {
	cfg     Config
	handler http.Handler
	bounds  bounds
	started time.Time
}

// New builds a server; Run serves.
func New(c Config) (*Server, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	s := &Server{cfg: c, bounds: defaultBounds, started: time.Now()}
	mux := http.NewServeMux()
	for _, r := range s.routes() {
		for _, pattern := range r.patterns {
			mux.Handle(pattern, s.guard(r))
		}
	}
	s.handler = recovered(mux)
	return s, nil
}

// Port is the bound port.
func (s *Server) Port() int32 {
	if a, ok := s.cfg.Listener.Addr().(*net.TCPAddr); ok {
		return int32(a.Port)
	}
	return 0
}

// Handler serves the API without TLS, for tests.
func (s *Server) Handler() http.Handler { return s.handler }

// Run serves until ctx ends, then closes every connection.
func (s *Server) Run(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	srv := &http.Server{
		Handler: s.handler,
		TLSConfig: &tls.Config{
			MinVersion:         cmp.Or(s.cfg.MinTLS, tls.VersionTLS12),
			CipherSuites:       s.cfg.CipherSuites,
			CurvePreferences:   s.cfg.Curves,
			GetCertificate:     s.cfg.Certificate,
			GetConfigForClient: greeted,
			// A client may use a certificate or a token, so request a certificate, but do not
			// require it.
			ClientAuth: tls.RequestClientCert,
		},
		// Streams and followed logs last for hours, so only fast steps have timeouts: here, and by
		// the bounds.
		ReadHeaderTimeout: 30 * time.Second,
		IdleTimeout:       90 * time.Second,
		MaxHeaderBytes:    maxHeader,
		HTTP2: &http.HTTP2Config{
			// A caller that needs more opens another connection.
			MaxConcurrentStreams: 16,
			// What is buffered before the caller has authenticated. Requests here have empty
			// bodies.
			MaxReadFrameSize: 16 << 10, MaxReceiveBufferPerConnection: 64 << 10, MaxReceiveBufferPerStream: 64 << 10,
		},
		BaseContext: func(net.Listener) context.Context { return ctx },
		ConnContext: withCaller,
		ErrorLog:    log.New(debugWriter{logger}, "", 0),
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		<-ctx.Done()
		srv.Close()
	}()
	err := srv.ServeTLS(newConns(s.cfg.Listener, s.bounds, s.cfg.Strangers), "", "")
	if ctx.Err() == nil {
		return fmt.Errorf("kubelet API on %s: %w", s.cfg.Listener.Addr(), err)
	}
	<-closed
	return nil
}

// debugWriter logs net/http's own messages: port scans and failed handshakes.
type debugWriter struct{ logger klog.Logger }

func (w debugWriter) Write(p []byte) (int, error) {
	w.logger.V(4).Info("Received a message of the kubelet API's HTTP server", "message", strings.TrimSpace(string(p)))
	return len(p), nil
}

// recovered turns a panic into a plain 500; only the log gets the stack.
func recovered(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
				panic(p) // how net/http aborts a connection
			}
			klog.FromContext(r.Context()).Error(fmt.Errorf("panic: %v", p), "Recovered from a panic of a kubelet API handler", "path", r.URL.Path, "stack", string(debug.Stack()))
			http.Error(w, "internal error", http.StatusInternalServerError)
		}()
		next.ServeHTTP(w, r)
	})
}
