package api

import (
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

	"github.com/bowline-k8s/bowline/pod"
)

// Pods is what the sync loop tells. A namespace/name that is not on this node
// gives an error that wraps ErrNotFound.
type Pods interface {
	// Resolve turns the UID of a mirror pod into that of the static pod it stands for.
	Resolve(uid types.UID) types.UID
	// PodByName returns the pod with its newest status.
	PodByName(namespace, name string) (*v1.Pod, bool)
	Pods() []*v1.Pod
	// RunningPods are made from what the runtime shows, for /runningpods.
	RunningPods(ctx context.Context) ([]*v1.Pod, error)
	// Container finds the newest instance of a container, or with previous the
	// one before it. An empty uid means whichever pod has the name. ErrNotFound if
	// there is none.
	Container(ctx context.Context, namespace, name string, uid types.UID, container string, previous bool) (Container, error)
	// Sandbox returns the ID of the pod's ready sandbox.
	Sandbox(ctx context.Context, namespace, name string, uid types.UID) (string, error)
	Why(ctx context.Context, namespace, name string) (*pod.WhyReport, error)
}

// Container is one container instance.
type Container struct {
	ID      string
	Running bool
	LogPath string // absolute, on the machine
}

// Streams are the runtime's verbs for commands and streams.
type Streams interface {
	// Exec, Attach and PortForward return the streaming URL that the runtime made.
	Exec(ctx context.Context, req *runtimeapi.ExecRequest) (url string, err error)
	Attach(ctx context.Context, req *runtimeapi.AttachRequest) (url string, err error)
	PortForward(ctx context.Context, req *runtimeapi.PortForwardRequest) (url string, err error)
	// Proxy carries the caller's upgraded connection to that URL until either side
	// closes it.
	Proxy(w http.ResponseWriter, r *http.Request, url string, o StreamOptions)
	// Run runs a command to its end and returns stdout then stderr.
	Run(ctx context.Context, containerID string, cmd []string) (output []byte, err error)
}

// StreamOptions are what the caller asked for.
type StreamOptions struct {
	Stdin, Stdout, Stderr, TTY bool
	PortForward                bool
}

// LogReader copies a container's log at path to stdout and stderr (nil: not
// wanted) as opts say; with opts.Follow until running answers false.
type LogReader func(ctx context.Context, path string, opts *v1.PodLogOptions,
	running func(context.Context) (bool, error), stdout, stderr io.Writer) error

// Config of a Server.
type Config struct {
	NodeName string
	// Listener is bound already, so that the node object can name its port.
	Listener net.Listener
	// Certificate answers TLS handshakes: CertFiles or SelfSigned.
	Certificate   func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	Authenticator authenticator.Request
	Authorizer    authorizer.UnconditionalAuthorizer
	Pods          Pods
	Streams       Streams
	Logs          LogReader
	// SyncLoop says why the sync loop is not well, or nil.
	SyncLoop func() error
	// Metrics answers /metrics with the series of this node.
	Metrics http.Handler
	// Configz returns what /configz shows as "kubeletconfig"; no secrets in it.
	Configz func() any
}

func (c *Config) validate() error {
	var missing []string
	for name, ok := range map[string]bool{
		"NodeName": c.NodeName != "", "Listener": c.Listener != nil, "Certificate": c.Certificate != nil,
		"Authenticator": c.Authenticator != nil, "Authorizer": c.Authorizer != nil, "Pods": c.Pods != nil,
		"Streams": c.Streams != nil, "Logs": c.Logs != nil, "SyncLoop": c.SyncLoop != nil, "Configz": c.Configz != nil,
		"Metrics": c.Metrics != nil,
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

// maxHeader bounds a request's header, in bytes, the line with the command of an exec in it
// included. A kubelet takes 1 MiB, and 1 MiB of short headers takes 16 MiB of memory, of a
// caller that has shown nothing yet. A token has 1 to 2 KiB.
const maxHeader = 64 << 10

// Server is the kubelet API of one node.
type Server struct {
	cfg     Config
	handler http.Handler
	bounds  bounds
}

// New builds a server; Run serves.
func New(c Config) (*Server, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	s := &Server{cfg: c, bounds: defaultBounds}
	mux := http.NewServeMux()
	for _, r := range s.routes() {
		for _, pattern := range r.patterns {
			mux.Handle(pattern, s.guard(r))
		}
	}
	s.handler = recovered(mux)
	return s, nil
}

// Port that the listener is bound to.
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
			MinVersion:     tls.VersionTLS12,
			GetCertificate: s.cfg.Certificate,
			// A client may come with a certificate or with a token: ask, never insist.
			ClientAuth: tls.RequestClientCert,
		},
		// Streams and followed logs last for hours, so only what must be quick is timed:
		// here, and by the bounds.
		ReadHeaderTimeout: 30 * time.Second,
		IdleTimeout:       90 * time.Second,
		MaxHeaderBytes:    maxHeader,
		HTTP2: &http.HTTP2Config{
			// A caller with more at once opens another connection.
			MaxConcurrentStreams: 16,
			// What is buffered of a connection before anything is known of its caller. The
			// bodies of requests here are empty.
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
	err := srv.ServeTLS(newConns(s.cfg.Listener, s.bounds), "", "")
	if ctx.Err() == nil {
		return fmt.Errorf("kubelet API on %s: %w", s.cfg.Listener.Addr(), err)
	}
	<-closed
	return nil
}

// debugWriter takes net/http's own lines: port scans and broken handshakes.
type debugWriter struct{ logger klog.Logger }

func (w debugWriter) Write(p []byte) (int, error) {
	w.logger.V(4).Info("Kubelet API", "message", strings.TrimSpace(string(p)))
	return len(p), nil
}

// recovered turns a panic into a plain 500; the stack goes to the log only.
func recovered(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
				panic(p) // net/http's own way to cut a connection
			}
			klog.FromContext(r.Context()).Error(fmt.Errorf("panic: %v", p), "Kubelet API handler failed", "path", r.URL.Path, "stack", string(debug.Stack()))
			http.Error(w, "internal error", http.StatusInternalServerError)
		}()
		next.ServeHTTP(w, r)
	})
}
