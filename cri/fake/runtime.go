package fake

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"

	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	eventsapi "github.com/containerd/containerd/api/services/events/v1"
	sandboxapi "github.com/containerd/containerd/api/services/sandbox/v1"
	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	versionapi "github.com/containerd/containerd/api/services/version/v1"
)

// Config configures a Runtime.
type Config struct {
	// Dir is the directory of the socket, "cri.sock".
	Dir string
	// Programs returns the program of a container. If Programs is nil or returns nil, the container runs
	// DefaultProgram.
	Programs func(*runtimeapi.ContainerConfig) Program
	// Registry has the images that can be pulled, by normalised reference
	// ("docker.io/library/nginx:latest"). If nil, every image can be pulled.
	Registry map[string]RegistryImage
	// Root, if not empty, is the directory that stands for the root of the runtime's host: paths of
	// logs and mounts are below it.
	Root string
	// Clock is how far the host's clock is ahead of ours. All times that the runtime reports follow
	// the host's clock; the task log follows ours.
	Clock time.Duration
	// NoEvents disables containerd's own services, as in CRI-O.
	NoEvents bool
	// CRIEvents serves GetContainerEvents, as CRI-O does with enable_pod_events. Without it the
	// stream ends at once.
	CRIEvents bool
}

// Runtime is a running fake. Its methods are safe for concurrent use.
type Runtime struct {
	config Config
	Socket string // path of the unix socket
	faults faults

	// life ends at Close, which kills every container.
	life context.Context
	end  context.CancelFunc
	wg   sync.WaitGroup // container programs and streaming

	streams    streaming.Server
	streamHTTP *http.Server

	serving sync.Mutex // Serve and Stop
	server  *grpc.Server
	served  chan struct{}

	mu         sync.Mutex
	sandboxes  map[string]*sandbox
	containers map[string]*container
	forgotten  map[string]*forgotten
	names      map[string]string // reserved name to ID
	listened   chan struct{}     // closed and recreated when a program listens
	images     map[string]*image // by ID
	lastIP     int
	conditions map[string]*runtimeapi.RuntimeCondition
	podCIDR    string

	memoryUsage uint64 // of each container, in bytes
	log         []Entry
	subs        map[*subscriber]bool
}

// T is what Run needs of a test.
type T interface {
	Helper()
	Fatalf(format string, args ...any)
	Cleanup(func())
}

// Run starts a fake for a test and closes it at the end of the test. Its new directory has a path
// that is short enough for a socket.
func Run(t T, c Config) *Runtime {
	t.Helper()
	if c.Dir == "" {
		dir, err := os.MkdirTemp("", "cri")
		if err != nil {
			t.Fatalf("directory for the fake runtime: %v", err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		c.Dir = dir
	}
	r, err := Start(c)
	if err != nil {
		t.Fatalf("start the fake runtime: %v", err)
	}
	t.Cleanup(r.Close)
	return r
}

// Start creates a fake and serves it.
func Start(c Config) (*Runtime, error) {
	if c.Dir == "" {
		return nil, errors.New("fake: Config.Dir is required")
	}
	r := &Runtime{
		config:     c,
		Socket:     filepath.Join(c.Dir, "cri.sock"),
		sandboxes:  map[string]*sandbox{},
		containers: map[string]*container{},
		forgotten:  map[string]*forgotten{},
		names:      map[string]string{},
		listened:   make(chan struct{}),
		images:     map[string]*image{},
		subs:       map[*subscriber]bool{},
		conditions: map[string]*runtimeapi.RuntimeCondition{},
	}
	r.life, r.end = context.WithCancel(context.Background())
	for _, name := range []string{runtimeapi.RuntimeReady, runtimeapi.NetworkReady} {
		r.conditions[name] = &runtimeapi.RuntimeCondition{Type: name, Status: true}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	config := streaming.DefaultConfig
	config.Addr = listener.Addr().String()
	if r.streams, err = streaming.NewServer(config, (*streamRuntime)(r)); err != nil {
		_ = listener.Close()
		return nil, err
	}
	r.streamHTTP = &http.Server{Handler: r.streams, ReadHeaderTimeout: 10 * time.Second}
	r.wg.Add(1)
	go func() { defer r.wg.Done(); _ = r.streamHTTP.Serve(listener) }()
	if err := r.Serve(); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// Serve listens again after Stop. Containers are still running.
func (r *Runtime) Serve() error {
	r.serving.Lock()
	defer r.serving.Unlock()
	if r.server != nil {
		return errors.New("fake: already serving")
	}
	_ = os.Remove(r.Socket)
	l, err := net.Listen("unix", r.Socket)
	if err != nil {
		return fmt.Errorf("fake runtime: %w", err)
	}
	s := grpc.NewServer(grpc.UnaryInterceptor(r.faults.unary), grpc.StreamInterceptor(r.faults.stream),
		grpc.InTapHandle(plainType), grpc.MaxRecvMsgSize(16<<20), grpc.MaxSendMsgSize(16<<20))
	runtimeapi.RegisterRuntimeServiceServer(s, &runtimeServer{r: r})
	runtimeapi.RegisterImageServiceServer(s, &imageServer{r: r})
	if !r.config.NoEvents {
		eventsapi.RegisterEventsServer(s, &eventServer{r: r})
		versionapi.RegisterVersionServer(s, &versionServer{})
		containersapi.RegisterContainersServer(s, &containerServer{r: r})
		tasksapi.RegisterTasksServer(s, &taskServer{r: r})
		sandboxapi.RegisterStoreServer(s, &sandboxServer{r: r})
	}
	r.server, r.served = s, make(chan struct{})
	go func(served chan struct{}) { defer close(served); _ = s.Serve(l) }(r.served)
	return nil
}

// plainType refuses a call whose content type names a codec, as CRI-O does: CRI-O distinguishes
// gRPC from HTTP only by the content type.
func plainType(ctx context.Context, call *tap.Info) (context.Context, error) {
	if got := call.Header.Get("content-type"); len(got) != 1 || got[0] != "application/grpc" {
		return nil, status.Errorf(codes.Unimplemented, "fake: the content type of %s is %q, not application/grpc: CRI-O would close the connection", call.FullMethodName, got)
	}
	return ctx, nil
}

// Stop closes every connection and the socket, like a stopped daemon. Containers continue to run.
// Serve starts it again.
func (r *Runtime) Stop() {
	r.serving.Lock()
	defer r.serving.Unlock()
	if r.server == nil {
		return
	}
	r.server.Stop()
	<-r.served
	r.server = nil
	_ = os.Remove(r.Socket)
}

// Close ends everything, including containers, and waits for that.
func (r *Runtime) Close() {
	r.end()
	r.faults.release()
	r.Stop()
	_ = r.streamHTTP.Close()
	r.wg.Wait()
}

// now returns the time by the host's clock.
func (r *Runtime) now() time.Time { return time.Now().Add(r.config.Clock) }

// Dial connects to the socket: cri.Config.Dial.
func (r *Runtime) Dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", r.Socket)
}

// SetCondition sets RuntimeReady or NetworkReady.
func (r *Runtime) SetCondition(name string, status bool, reason, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conditions[name] = &runtimeapi.RuntimeCondition{Type: name, Status: status, Reason: reason, Message: message}
}

// PodCIDR returns what UpdateRuntimeConfig last set.
func (r *Runtime) PodCIDR() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.podCIDR
}

// runtimeServer is the RuntimeService.
type runtimeServer struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	r *Runtime
}

func (s *runtimeServer) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: "containerd", RuntimeVersion: "v2.0.0-fake", RuntimeApiVersion: "v1"}, nil
}

func (s *runtimeServer) Status(_ context.Context, req *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	resp := &runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
		s.r.conditions[runtimeapi.RuntimeReady], s.r.conditions[runtimeapi.NetworkReady],
	}}}
	if req.Verbose {
		resp.Info = map[string]string{"config": "{}"}
	}
	return resp, nil
}

func (s *runtimeServer) RuntimeConfig(context.Context, *runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error) {
	return &runtimeapi.RuntimeConfigResponse{Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: runtimeapi.CgroupDriver_CGROUPFS}}, nil
}

func (s *runtimeServer) UpdateRuntimeConfig(_ context.Context, req *runtimeapi.UpdateRuntimeConfigRequest) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	s.r.podCIDR = req.GetRuntimeConfig().GetNetworkConfig().GetPodCidr()
	return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
}
