package cri_test

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

func connect(t *testing.T, r *fake.Runtime, hook host.Hook) *cri.Client {
	t.Helper()
	c, err := cri.Connect(t.Context(), cri.Config{Dial: r.Dial, Hook: hook})
	testutil.Must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func sandboxConfig(name string) *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "ns", Uid: "uid-" + name}}
}

func dialUnix(path string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}
}

// serveVersion runs a server that answers Version under the given service name, if any.
func serveVersion(t *testing.T, service string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	testutil.Must(t, err)
	s := grpc.NewServer()
	if service != "" {
		desc := runtimeapi.RuntimeService_ServiceDesc
		desc.ServiceName = service
		s.RegisterService(&desc, versionOnly{})
	}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return path
}

type versionOnly struct {
	runtimeapi.UnimplementedRuntimeServiceServer
}

func (versionOnly) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{RuntimeName: "old"}, nil
}

func TestConnectSentences(t *testing.T) {
	mute := filepath.Join(t.TempDir(), "mute")
	l, err := net.Listen("unix", mute)
	testutil.Must(t, err)
	defer l.Close()
	for name, c := range map[string]struct {
		path, want string
		noCRI      bool
	}{
		"no socket":       {filepath.Join(t.TempDir(), "none"), "does not answer: ", false},
		"mute socket":     {mute, "accepts connections but does not answer as a container runtime", false},
		"only v1alpha2":   {serveVersion(t, "runtime.v1alpha2.RuntimeService"), "serves only CRI v1alpha2", true},
		"no CRI at all":   {serveVersion(t, ""), `remove "cri" from disabled_plugins`, true},
		"not a container": {serveVersion(t, "some.other.Service"), "does not serve CRI v1", true},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			_, err := cri.Connect(ctx, cri.Config{Dial: dialUnix(c.path), Endpoint: "unix://" + c.path})
			if err == nil || !strings.Contains(err.Error()+"\n"+hint.Of(err), c.want) || !strings.Contains(err.Error(), c.path) {
				t.Fatalf("error %v, want one with %q", err, c.want)
			}
			if name == "no socket" && !strings.Contains(hint.Of(err), "the container runtime runs") {
				t.Errorf("the hint is %q", hint.Of(err))
			}
			if errors.Is(err, cri.ErrNoCRI) != c.noCRI {
				t.Errorf("ErrNoCRI in %v: want %v", err, c.noCRI)
			}
		})
	}
}

func TestErrorKinds(t *testing.T) {
	for _, c := range []struct {
		injected error
		want     cri.Kind
	}{
		{status.Error(codes.NotFound, "x"), cri.KindNotFound},
		{status.Error(codes.Unavailable, "x"), cri.KindTransport},
		{status.Error(codes.DeadlineExceeded, "x"), cri.KindTransport},
		{status.Error(codes.Canceled, "x"), cri.KindTransport},
		{status.Error(codes.Unknown, "x"), cri.KindFailed},
		{status.Error(codes.Unknown, `name "a" is reserved for "b"`), cri.KindExists},
		{status.Error(codes.AlreadyExists, "x"), cri.KindExists},
		{status.Error(codes.Unimplemented, "x"), cri.KindUnimplemented},
		{host.ErrUnreachable, cri.KindTransport},
		{context.DeadlineExceeded, cri.KindTransport},
		{io.ErrUnexpectedEOF, cri.KindFailed},
	} {
		// Over the wire, and from a hook, which may return any error.
		r := fake.Run(t, fake.Config{})
		if _, ok := status.FromError(c.injected); ok {
			client := connect(t, r, nil)
			r.Inject("ContainerStatus", fake.Fault{Before: c.injected})
			_, err := client.ContainerStatus(t.Context(), "id")
			checkKind(t, err, c.want)
		}
		client := connect(t, r, func(ctx context.Context, label string, call func(context.Context) error) error {
			if label == "cri/ContainerStatus" {
				return c.injected
			}
			return call(ctx)
		})
		_, err := client.ContainerStatus(t.Context(), "id")
		checkKind(t, err, c.want)
	}
}

func checkKind(t *testing.T, err error, want cri.Kind) {
	t.Helper()
	var e *cri.Error
	if !errors.As(err, &e) {
		t.Fatalf("%v is no *cri.Error", err)
	}
	if e.Kind != want || e.Method != "ContainerStatus" || e.Object != "id" {
		t.Errorf("%v: kind %v of %s %q, want %v of ContainerStatus %q", err, e.Kind, e.Method, e.Object, want, "id")
	}
}

// Every call runs under the hook, labelled with its method, and has a deadline.
func TestEveryCallHasLabelAndDeadline(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]bool{}
	r := fake.Run(t, fake.Config{})
	c := connect(t, r, func(ctx context.Context, label string, call func(context.Context) error) error {
		mu.Lock()
		seen[label] = true
		mu.Unlock()
		if _, ok := ctx.Deadline(); !ok && label != "cri/Subscribe" {
			t.Errorf("%s has no deadline", label)
		}
		return call(ctx)
	})
	ctx := t.Context()
	id := "none"
	image := &runtimeapi.ImageSpec{Image: "x"}
	_, _ = c.Status(ctx, true)
	_, _ = c.RuntimeConfig(ctx)
	_ = c.UpdateRuntimeConfig(ctx, "10.0.0.0/24")
	_, _ = c.RunPodSandbox(ctx, sandboxConfig("a"), "")
	_ = c.StopPodSandbox(ctx, id)
	_ = c.RemovePodSandbox(ctx, id)
	_, _ = c.PodSandboxStatus(ctx, id)
	_, _ = c.ListPodSandbox(ctx, nil)
	_, _ = c.CreateContainer(ctx, id, &runtimeapi.ContainerConfig{}, nil)
	_ = c.StartContainer(ctx, id)
	_ = c.StopContainer(ctx, id, time.Second)
	_ = c.RemoveContainer(ctx, id)
	_, _ = c.ListContainers(ctx, nil)
	_, _ = c.ContainerStatus(ctx, id)
	_ = c.UpdateContainerResources(ctx, id, &runtimeapi.ContainerResources{})
	_, _ = c.ListContainerStats(ctx, id)
	_, _ = c.ExecSync(ctx, id, []string{"x"}, 0)
	_, _ = c.Exec(ctx, &runtimeapi.ExecRequest{})
	_, _ = c.Attach(ctx, &runtimeapi.AttachRequest{})
	_, _ = c.PortForward(ctx, &runtimeapi.PortForwardRequest{})
	_ = c.ReopenContainerLog(ctx, id)
	_, _ = c.PullImage(ctx, image, nil, nil)
	_, _ = c.ImageStatus(ctx, image)
	_, _ = c.ListImages(ctx)
	_ = c.RemoveImage(ctx, image)
	_, _ = c.ImageFsInfo(ctx)
	if _, err := c.Events(ctx); err != nil {
		t.Error(err)
	}
	want := []string{"Version", "Status", "RuntimeConfig", "UpdateRuntimeConfig", "RunPodSandbox", "StopPodSandbox",
		"RemovePodSandbox", "PodSandboxStatus", "ListPodSandbox", "CreateContainer", "StartContainer", "StopContainer",
		"RemoveContainer", "ListContainers", "ContainerStatus", "UpdateContainerResources", "ListContainerStats", "ExecSync", "Exec", "Attach",
		"PortForward", "ReopenContainerLog", "PullImage", "ImageStatus", "ListImages", "RemoveImage", "ImageFsInfo",
		"ContainerdVersion", "Subscribe"}
	var got []string
	for l := range seen {
		got = append(got, strings.TrimPrefix(l, "cri/"))
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("labels %v, want %v", got, want)
	}
	if r.PodCIDR() != "10.0.0.0/24" {
		t.Errorf("pod CIDR %q", r.PodCIDR())
	}
}

// If an answer is lost, the call has happened and its error is a transport error.
func TestWithheldAnswer(t *testing.T) {
	r := fake.Run(t, fake.Config{})
	c := connect(t, r, nil)
	r.Inject("RunPodSandbox", fake.Fault{Withhold: true})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := c.RunPodSandbox(ctx, sandboxConfig("a"), ""); !cri.IsTransport(err) {
		t.Fatalf("error %v, want a transport error", err)
	}
	if n := r.Count(fake.OpRunSandbox, ""); n != 1 {
		t.Fatalf("%d sandboxes were run, want 1", n)
	}
	if _, err := c.RunPodSandbox(t.Context(), sandboxConfig("a"), ""); !cri.IsExists(err) {
		t.Fatalf("error %v, want the name to be taken", err)
	}
}

// A timeout is the command's only if the runtime reports it in time: after our own deadline, or the
// hook's, the outcome is unknown. The server has the same deadline and often answers first, so the
// test tries many times.
func TestExecTimeoutOrCut(t *testing.T) {
	r := fake.Run(t, fake.Config{})
	for _, hook := range []host.Hook{nil, func(ctx context.Context, label string, call func(context.Context) error) error {
		if label == "cri/ExecSync" {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
		}
		return call(ctx)
	}} {
		c := connect(t, r, hook)
		r.Inject("ExecSync", fake.Fault{Withhold: true, Times: -1})
		for range 200 {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Millisecond)
			_, err := c.ExecSync(ctx, "none", []string{"x"}, time.Minute)
			cancel()
			if !cri.IsTransport(err) {
				t.Fatalf("cut: %v, want a transport error", err)
			}
		}
		r.ClearFaults()
	}
	// Use another runtime: one of the requests above may still be on its way to the first.
	r = fake.Run(t, fake.Config{})
	r.Inject("ExecSync", fake.Fault{Before: status.Error(codes.DeadlineExceeded, "timeout 1s exceeded")})
	if _, err := connect(t, r, nil).ExecSync(t.Context(), "none", []string{"x"}, time.Second); !cri.IsTimeout(err) {
		t.Fatalf("timed out: %v, want a time-out", err)
	}
}

// When a runtime goes away and returns, calls fail with transport errors and then work again
// without a new Connect. Its containers never stopped.
func TestReconnect(t *testing.T) {
	r := fake.Run(t, fake.Config{})
	c := connect(t, r, nil)
	if _, err := c.RunPodSandbox(t.Context(), sandboxConfig("a"), ""); err != nil {
		t.Fatal(err)
	}
	events, err := c.Events(t.Context())
	testutil.Must(t, err)
	r.Stop()
	if _, err := c.ListPodSandbox(t.Context(), nil); !cri.IsTransport(err) {
		t.Fatalf("error %v, want a transport error", err)
	}
	for range events { // ends when the connection is lost
	}
	testutil.Must(t, r.Serve())
	deadline := time.Now().Add(10 * time.Second)
	for {
		list, err := c.ListPodSandbox(t.Context(), nil)
		if err == nil {
			if len(list) != 1 {
				t.Fatalf("%d sandboxes, want 1", len(list))
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still %v", err)
		}
		<-time.After(10 * time.Millisecond)
	}
}

func TestNoEvents(t *testing.T) {
	r := fake.Run(t, fake.Config{NoEvents: true})
	if _, err := connect(t, r, nil).Events(t.Context()); !errors.Is(err, cri.ErrNoEvents) {
		t.Fatalf("error %v, want ErrNoEvents", err)
	}
}

// A slow reader's channel is closed: otherwise it would miss events without knowing.
func TestSlowReaderLosesItsStream(t *testing.T) {
	r := fake.Run(t, fake.Config{})
	c := connect(t, r, nil)
	events, err := c.Events(t.Context())
	testutil.Must(t, err)
	testutil.Within(t, 10*time.Second, "the client subscribes", func() bool { return r.Subscribers() == 1 })
	for i := range 700 { // three events each
		id, err := c.RunPodSandbox(t.Context(), sandboxConfig(string(rune('a'+i%26))+time.Duration(i).String()), "")
		testutil.Must(t, err)
		testutil.Must(t, c.RemovePodSandbox(t.Context(), id))
	}
	testutil.Within(t, 10*time.Second, "the client loses its subscription", func() bool { return r.Subscribers() == 0 })
	n := 0
	for range events {
		n++
	}
	if n != 1024 {
		t.Errorf("%d events before the end, want the buffer's 1024", n)
	}
}

func BenchmarkStatus(b *testing.B) {
	dir := b.TempDir()
	r, err := fake.Start(fake.Config{Dir: dir})
	testutil.Must(b, err)
	defer r.Close()
	c, err := cri.Connect(b.Context(), cri.Config{Dial: r.Dial})
	testutil.Must(b, err)
	defer c.Close()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.ListContainers(b.Context(), nil); err != nil {
			b.Fatal(err)
		}
	}
}

// A call that the hook did not start has not happened; the outcome of every other call without an
// answer is unknown.
func TestUnsent(t *testing.T) {
	r := fake.Run(t, fake.Config{})
	lost := status.Error(codes.Unavailable, "connection lost for the test")
	refuse := connect(t, r, func(ctx context.Context, label string, call func(context.Context) error) error {
		if label == "cri/StartContainer" {
			return lost
		}
		return call(ctx)
	})
	if err := refuse.StartContainer(t.Context(), "c"); !cri.IsTransport(err) || !cri.IsUnsent(err) {
		t.Errorf("refused by the hook: %v, transport %v, unsent %v", err, cri.IsTransport(err), cri.IsUnsent(err))
	}
	r.Inject("StartContainer", fake.Fault{After: lost})
	if err := connect(t, r, nil).StartContainer(t.Context(), "c"); cri.IsUnsent(err) {
		t.Errorf("sent, and called unsent: %v", err)
	}
	after := connect(t, r, func(ctx context.Context, label string, call func(context.Context) error) error {
		err := call(ctx)
		if label == "cri/StartContainer" {
			return lost
		}
		return err
	})
	if err := after.StartContainer(t.Context(), "c"); !cri.IsTransport(err) || cri.IsUnsent(err) {
		t.Errorf("withheld by the hook: %v, transport %v, unsent %v", err, cri.IsTransport(err), cri.IsUnsent(err))
	}
}

// TestImageServiceOfItsOwn: calls about images go to the image service's socket, and all others to
// the runtime's.
func TestImageServiceOfItsOwn(t *testing.T) {
	runtime, images := fake.Run(t, fake.Config{}), fake.Run(t, fake.Config{})
	c, err := cri.Connect(t.Context(), cri.Config{Dial: runtime.Dial, DialImages: images.Dial})
	testutil.Must(t, err)
	_, err = c.ListImages(t.Context())
	testutil.Must(t, err)
	_, err = c.ImageFsInfo(t.Context())
	testutil.Must(t, err)
	_, err = c.ListPodSandbox(t.Context(), nil)
	testutil.Must(t, err)
	for method, want := range map[string][2]int{"Version": {1, 0}, "ListImages": {0, 1}, "ImageFsInfo": {0, 1}, "ListPodSandbox": {1, 0}} {
		if got := [2]int{runtime.Calls(method), images.Calls(method)}; got != want {
			t.Errorf("%s was called %v times by runtime and image service, want %v", method, got, want)
		}
	}
	testutil.Must(t, c.Close())
}
