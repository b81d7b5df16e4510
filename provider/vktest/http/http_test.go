package http_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	vkapi "github.com/virtual-kubelet/virtual-kubelet/node/api"
	"github.com/virtual-kubelet/virtual-kubelet/node/nodeutil"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	//lint:ignore SA1019 client-go's executor still takes this type and not the new module's
	httpspdy "k8s.io/apimachinery/pkg/util/httpstream/spdy"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/cri/stream"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/provider/api"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func serve(t *testing.T, h http.Handler) *url.URL {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL)
	check(t, err)
	return u
}

// open admits everyone: these tests are about what comes after.
type open struct{}

func (open) AuthenticateRequest(*http.Request) (*authenticator.Response, bool, error) {
	return &authenticator.Response{User: &user.DefaultInfo{Name: "tester"}}, true, nil
}
func (open) Authorize(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	return authorizer.DecisionAllow, "", nil
}

// machine is one pod with one container on the fake runtime.
type machine struct {
	*cri.Client
	sandbox, container string
	tty                bool
	ports              atomic.Value // []int32 of the last PortForward
	logged             atomic.Value // *v1.PodLogOptions of the last log
}

func (m *machine) pod() *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p", UID: "u"}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", TTY: m.tty}}}}
}
func (m *machine) Resolve(uid types.UID) types.UID { return uid }

func (m *machine) PodByName(ns, name string) (*v1.Pod, bool) {
	return m.pod(), ns == "n" && name == "p"
}
func (m *machine) Pods() []*v1.Pod          { return []*v1.Pod{m.pod()} }
func (m *machine) AllocatedPods() []*v1.Pod { return m.Pods() }
func (m *machine) RunningPods(context.Context) ([]*v1.Pod, error) {
	return m.Pods(), nil
}
func (m *machine) Container(context.Context, string, string, types.UID, string, bool) (api.Container, error) {
	return api.Container{ID: m.container, Running: true, LogPath: "/log"}, nil
}
func (m *machine) Sandbox(context.Context, string, string, types.UID) (string, error) {
	return m.sandbox, nil
}
func (m *machine) Why(context.Context, string, string) (*pod.WhyReport, error) {
	return &pod.WhyReport{}, nil
}
func (m *machine) PortForward(ctx context.Context, r *runtimeapi.PortForwardRequest) (string, error) {
	m.ports.Store(append([]int32{}, r.Port...))
	return m.Client.PortForward(ctx, r)
}
func (m *machine) Proxy(w http.ResponseWriter, r *http.Request, u string, o api.StreamOptions) {
	var d net.Dialer
	stream.Proxy(w, r, u, d.DialContext, stream.Options{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, TTY: o.TTY})
}
func (m *machine) Run(ctx context.Context, id string, cmd []string) ([]byte, error) {
	r, err := m.ExecSync(ctx, id, cmd, time.Minute)
	return append(r.Stdout, r.Stderr...), err
}

// newMachine makes a container that does something, and listens on ports.
func newMachine(t *testing.T, does string, ports ...int) *machine {
	t.Helper()
	r := fake.Run(t, fake.Config{})
	c, err := cri.Connect(t.Context(), cri.Config{Dial: r.Dial})
	check(t, err)
	t.Cleanup(func() { _ = c.Close() })
	m := &machine{Client: c}
	sandbox := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "p", Namespace: "n", Uid: "u"}}
	m.sandbox, err = c.RunPodSandbox(t.Context(), sandbox, "")
	check(t, err)
	r.AddImage(fake.TestImage, fake.RegistryImage{})
	m.container, err = c.CreateContainer(t.Context(), m.sandbox, &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Image: &runtimeapi.ImageSpec{Image: fake.TestImage}, Command: []string{"/" + fake.TestImage, does},
	}, sandbox)
	check(t, err)
	check(t, c.StartContainer(t.Context(), m.container))
	for _, port := range ports {
		check(t, r.Listening(t.Context(), m.sandbox, port))
	}
	return m
}

// ours is Bowline's kubelet API over the fake runtime.
func ours(t *testing.T, m *machine) *api.Server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	t.Cleanup(func() { _ = l.Close() })
	cert, err := api.SelfSigned("n1", []net.IP{net.IPv4(127, 0, 0, 1)})
	check(t, err)
	s, err := api.New(api.Config{NodeName: "n1", Listener: l, Strangers: api.NewStrangers(), Certificate: cert, Authenticator: open{}, Authorizer: open{}, Pods: m, Streams: m,
		SyncLoop: func() error { return nil }, Configz: func() (map[string]any, error) { return nil, nil }, Metrics: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), Stats: noStats{}, Checked: func(string, error) {}, Request: func(string, string, bool) func() { return func() {} }, Streamed: func(string) {}, Version: func() string { return "" },
		Checkpoint:   func(context.Context, *v1.Pod, string, string, int64) (string, error) { return "", nil },
		ProbeMetrics: noMetrics, SLIMetrics: noMetrics,
		Logs: func(_ context.Context, _ string, o *v1.PodLogOptions, _ func(context.Context) (bool, error), _, _ io.Writer) error {
			m.logged.Store(o)
			return nil
		}})
	check(t, err)
	return s
}

func get(t *testing.T, u *url.URL, path string) (int, string) {
	t.Helper()
	resp, err := http.Get(u.String() + path)
	check(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	check(t, err)
	return resp.StatusCode, string(body)
}

// TestLogs: virtual-kubelet treats tailLines=0 as none, cannot select one stream, and answers every
// error with 500.
func TestLogs(t *testing.T) {
	var saw vkapi.ContainerLogOpts
	var fail error
	vk := serve(t, vkapi.PodHandler(vkapi.PodHandlerConfig{GetContainerLogs: func(_ context.Context, _, _, _ string, o vkapi.ContainerLogOpts) (io.ReadCloser, error) {
		saw = o
		return io.NopCloser(strings.NewReader("")), fail
	}}, false))
	get(t, vk, "/containerLogs/n/p/c")
	none := saw
	get(t, vk, "/containerLogs/n/p/c?tailLines=0&stream=Stderr")
	if saw != none {
		t.Errorf("alone: tailLines=0&stream=Stderr is %+v, no options %+v; virtual-kubelet has fixed this", saw, none)
	}
	fail = errors.New("container is waiting to start")
	if code, _ := get(t, vk, "/containerLogs/n/p/c"); code != 500 {
		t.Errorf("alone: an error is a %d; virtual-kubelet has fixed this", code)
	}

	m := newMachine(t, "wait")
	us := serve(t, ours(t, m).Handler())
	get(t, us, "/containerLogs/n/p/c?tailLines=0")
	if o := m.logged.Load().(*v1.PodLogOptions); o.TailLines == nil || *o.TailLines != 0 {
		t.Errorf("ours: tailLines=0 is %v", o.TailLines)
	}
	get(t, us, "/containerLogs/n/p/c?stream=Stderr")
	if o := m.logged.Load().(*v1.PodLogOptions); *o.Stream != "Stderr" || o.TailLines != nil {
		t.Errorf("ours: stream=Stderr is %q", *o.Stream)
	}
	if code, text := get(t, us, "/containerLogs/n/p/c?tailLines=x"); code != 400 {
		t.Errorf("ours: a bad option is a %d %s", code, text)
	}
}

var noMetrics = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})

type noStats struct{}

func (noStats) Summary(context.Context, bool) (*statsapi.Summary, error) {
	return &statsapi.Summary{}, nil
}
func (noStats) Resource(http.ResponseWriter, *http.Request) {}
func (noStats) Cadvisor(http.ResponseWriter, *http.Request) {}

// TestMissingPaths: a large part of a kubelet's API is missing.
func TestMissingPaths(t *testing.T) {
	vk := serve(t, vkapi.PodHandler(vkapi.PodHandlerConfig{}, true))
	us := serve(t, ours(t, newMachine(t, "wait")).Handler())
	for _, path := range []string{"/healthz", "/metrics", "/metrics/cadvisor", "/metrics/probes", "/configz", "/logs/", "/debug/pprof/",
		"/exec/n/p/u/c", "/attach/n/p/u/c", "/portForward/n/p/u"} {
		if code, _ := get(t, vk, path); code != 404 {
			t.Errorf("alone: %s is a %d; virtual-kubelet has fixed this", path, code)
		}
		if code, _ := get(t, us, path); code == 404 {
			t.Errorf("ours: %s is not there", path)
		}
	}
	for _, path := range []string{"/run/n/p/c", "/run/n/p/u/c", "/checkpoint/n/p/c"} {
		post := func(u *url.URL) int {
			resp, err := http.Post(u.String()+path, "", nil)
			check(t, err)
			resp.Body.Close()
			return resp.StatusCode
		}
		if code := post(vk); code != 404 {
			t.Errorf("alone: %s is a %d; virtual-kubelet has fixed this", path, code)
		}
		if code := post(us); code == 404 {
			t.Errorf("ours: %s is not there", path)
		}
	}
}

// quiet is a client that sends no pings; client-go's would hide an idle timeout.
func quiet(t *testing.T) *httpspdy.SpdyRoundTripper {
	t.Helper()
	r, err := httpspdy.NewRoundTripperWithConfig(httpspdy.RoundTripperConfig{})
	check(t, err)
	return r
}

func exec(t *testing.T, u *url.URL, query string, o remotecommand.StreamOptions) error {
	t.Helper()
	to := *u
	to.Path, to.RawQuery = "/exec/n/p/c", query
	transport := quiet(t)
	e, err := remotecommand.NewSPDYExecutorForTransports(transport, transport, "POST", &to)
	check(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	return e.StreamWithContext(ctx, o)
}

func command(words ...string) string {
	q := url.Values{"command": append([]string{"/" + fake.TestImage}, words...)}
	return q.Encode()
}

// TestTerminalWithStderr: a terminal together with stderr, which clients do request, gets a 400.
func TestTerminalWithStderr(t *testing.T) {
	vk := serve(t, vkapi.PodHandler(vkapi.PodHandlerConfig{RunInContainer: func(context.Context, string, string, string, []string, vkapi.AttachIO) error { return nil }}, false))
	// The query need not match the streams that the caller opens: some request all.
	ask := func(u *url.URL, query string) (int, string) {
		req, err := http.NewRequest("POST", u.String()+"/exec/n/p/c?"+query, nil)
		check(t, err)
		resp, err := http.DefaultClient.Do(req)
		check(t, err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		check(t, err)
		return resp.StatusCode, string(body)
	}
	query := command("out hello") + "&tty=1&output=1&error=1"
	if code, text := ask(vk, query); code != 400 || !strings.Contains(text, "tty and stderr") {
		t.Errorf("alone: %d %s; virtual-kubelet has fixed this", code, text)
	}
	m := newMachine(t, "wait")
	us := serve(t, ours(t, m).Handler())
	var out bytes.Buffer
	if err := exec(t, us, query, remotecommand.StreamOptions{Stdout: &out, Tty: true}); err != nil || !strings.Contains(out.String(), "hello") {
		t.Errorf("ours: %v, %q", err, out.String())
	}
}

// TestWebSocketV5: a client of protocol v5, such as a current kubectl, is rejected.
func TestWebSocketV5(t *testing.T) {
	run := func(u *url.URL) (string, error) {
		to := *u
		to.Path, to.RawQuery = "/exec/n/p/c", command("out hello")+"&output=1"
		e, err := remotecommand.NewWebSocketExecutor(&rest.Config{Host: u.String()}, "GET", to.String())
		check(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var out bytes.Buffer
		err = e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &out})
		return out.String(), err
	}
	vk := serve(t, vkapi.PodHandler(vkapi.PodHandlerConfig{RunInContainer: func(_ context.Context, _, _, _ string, _ []string, a vkapi.AttachIO) error {
		_, err := io.WriteString(a.Stdout(), "hello")
		return err
	}}, false))
	if out, err := run(vk); err == nil {
		t.Errorf("alone: v5 works (%q); virtual-kubelet has fixed this", out)
	}
	if out, err := run(serve(t, ours(t, newMachine(t, "wait")).Handler())); err != nil || !strings.Contains(out, "hello") {
		t.Errorf("ours: %q %v", out, err)
	}
}

// TestClosedResizeDoesNotSpin: a closed resize stream becomes endless sizes of zero.
func TestClosedResizeDoesNotSpin(t *testing.T) {
	// closing opens an exec by hand, closes its resize stream, and reads the output.
	closing := func(u *url.URL, query string) string {
		transport := quiet(t)
		req, err := http.NewRequest("POST", u.String()+"/exec/n/p/c?"+query, nil)
		check(t, err)
		conn, _, err := spdy.Negotiate(transport, &http.Client{Transport: transport}, req, "v4.channel.k8s.io")
		check(t, err)
		defer conn.Close()
		streams := map[string]io.ReadWriteCloser{}
		for _, kind := range []string{"error", "stdout", "resize"} {
			s, err := conn.CreateStream(http.Header{"Streamtype": {kind}})
			check(t, err)
			streams[kind] = s
		}
		// A command that has already ended accepts neither; then only output follows.
		_, _ = io.WriteString(streams["resize"], `{"Width":80,"Height":24}`)
		_ = streams["resize"].Close()
		out, err := io.ReadAll(streams["stdout"])
		check(t, err)
		return string(out)
	}
	var zeros atomic.Int64
	vk := serve(t, vkapi.PodHandler(vkapi.PodHandlerConfig{RunInContainer: func(ctx context.Context, _, _, _ string, _ []string, a vkapi.AttachIO) error {
		for timeout := time.After(10 * time.Second); ; {
			select {
			case s := <-a.Resize():
				if s.Width == 0 && zeros.Add(1) > 1000 {
					return nil
				}
			case <-timeout:
				return nil
			}
		}
	}}, false))
	closing(vk, command("wait")+"&tty=1&output=1")
	if zeros.Load() <= 1000 {
		t.Errorf("alone: %d sizes of zero; virtual-kubelet has fixed this", zeros.Load())
	}
	// Ours passes the stream to the runtime unparsed, and the command works.
	if out := closing(serve(t, ours(t, newMachine(t, "wait")).Handler()), command("out hello")+"&tty=1&output=1"); !strings.Contains(out, "hello") {
		t.Errorf("ours: %q", out)
	}
}

// TestSilentExecLives: an exec without traffic for 30 s is cut off.
func TestSilentExecLives(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for 35 s of real silence")
	}
	t.Parallel()
	const silence = 35 * time.Second
	m := newMachine(t, "wait")
	for name, c := range map[string]struct {
		server *url.URL
		cut    bool
	}{
		"alone": {serve(t, vkapi.PodHandler(vkapi.PodHandlerConfig{RunInContainer: func(ctx context.Context, _, _, _ string, _ []string, a vkapi.AttachIO) error {
			select {
			case <-ctx.Done():
			case <-time.After(silence):
			}
			_, err := io.WriteString(a.Stdout(), "still here")
			return err
		}}, false)), true},
		"ours": {serve(t, ours(t, m).Handler()), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in, feed := io.Pipe()
			go func() {
				select {
				case <-time.After(silence):
				case <-t.Context().Done():
				}
				_, _ = io.WriteString(feed, "still here\n")
				_ = feed.Close()
			}()
			began := time.Now()
			var out bytes.Buffer
			err := exec(t, c.server, command("cat")+"&input=1&output=1", remotecommand.StreamOptions{Stdin: in, Stdout: &out})
			cut := !strings.Contains(out.String(), "still here")
			if cut != c.cut {
				t.Errorf("cut off: %v after %s (%v, %q), want %v", cut, time.Since(began), err, out.String(), c.cut)
			}
		})
	}
}

// TestIdlePortForwardLives: the two timeouts of port-forward are swapped: the short one for
// creating streams cuts off connections that are only idle.
func TestIdlePortForwardLives(t *testing.T) {
	t.Parallel()
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	t.Cleanup(func() { _ = echo.Close() })
	go func() {
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); _, _ = io.Copy(c, c) }()
		}
	}()
	port := echo.Addr().(*net.TCPAddr).Port
	// lives forwards a port, sends something, is silent, and sends it again.
	lives := func(t *testing.T, u *url.URL, port int) bool {
		to := *u
		to.Path = "/portForward/n/p"
		transport := quiet(t)
		stop, ready := make(chan struct{}), make(chan struct{})
		defer close(stop)
		f, err := portforward.New(spdy.NewDialer(transport, &http.Client{Transport: transport}, "POST", &to), []string{fmt.Sprintf("0:%d", port)}, stop, ready, io.Discard, io.Discard)
		check(t, err)
		ended := make(chan error, 1)
		go func() { ended <- f.ForwardPorts() }()
		select {
		case <-ready:
		case err := <-ended:
			t.Fatalf("port-forward: %v", err)
		}
		ports, err := f.GetPorts()
		check(t, err)
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", ports[0].Local))
		check(t, err)
		defer c.Close()
		say := func() bool {
			_ = c.SetDeadline(time.Now().Add(5 * time.Second))
			if _, err := io.WriteString(c, "hello"); err != nil {
				return false
			}
			got := make([]byte, 5)
			_, err := io.ReadFull(c, got)
			return err == nil && string(got) == "hello"
		}
		if !say() {
			t.Fatal("the forwarded port does not work at all")
		}
		select {
		case <-ended:
		case <-time.After(3 * time.Second):
		}
		return say()
	}
	t.Run("alone", func(t *testing.T) {
		vk := serve(t, vkapi.PodHandler(vkapi.PodHandlerConfig{StreamIdleTimeout: time.Hour, StreamCreationTimeout: time.Second,
			PortForward: func(_ context.Context, _, _ string, p int32, s io.ReadWriteCloser) error {
				c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", p))
				if err != nil {
					return err
				}
				go func() { _, _ = io.Copy(c, s) }()
				_, err = io.Copy(s, c)
				return err
			}}, false))
		if lives(t, vk, port) {
			t.Error("it lives on; virtual-kubelet has fixed this")
		}
	})
	t.Run("ours", func(t *testing.T) {
		if !lives(t, serve(t, ours(t, newMachine(t, "echo 8080", 8080)).Handler()), 8080) {
			t.Error("cut off after 3 s of silence")
		}
	})
}

// TestWebSocketPortForwardHasPorts: a WebSocket port-forward names its ports in the query, which is
// not read.
func TestWebSocketPortForwardHasPorts(t *testing.T) {
	dial := func(u *url.URL) {
		d := websocket.Dialer{Subprotocols: []string{"v4.channel.k8s.io"}, HandshakeTimeout: 10 * time.Second}
		c, _, err := d.Dial("ws://"+u.Host+"/portForward/n/p?port=80&port=443", nil)
		if err != nil {
			return
		}
		defer c.Close()
		_ = c.SetReadDeadline(time.Now().Add(2 * time.Second))
		for {
			if _, _, err := c.ReadMessage(); err != nil {
				return
			}
		}
	}
	var called atomic.Int64
	dial(serve(t, vkapi.PodHandler(vkapi.PodHandlerConfig{PortForward: func(context.Context, string, string, int32, io.ReadWriteCloser) error {
		called.Add(1)
		return nil
	}}, false)))
	if called.Load() != 0 {
		t.Error("alone: a port was forwarded; virtual-kubelet has fixed this")
	}
	m := newMachine(t, "wait")
	dial(serve(t, ours(t, m).Handler()))
	if got := fmt.Sprint(m.ports.Load()); got != "[80 443]" {
		t.Errorf("ours: ports %s", got)
	}
}

// TestTokenClientsBesideACA: with a CA, every client must have a certificate: clients with a token
// fail in the handshake.
func TestTokenClientsBesideACA(t *testing.T) {
	knock := func(c *tls.Config) error {
		l, err := tls.Listen("tcp", "127.0.0.1:0", c)
		check(t, err)
		s := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
		go s.Serve(l)
		t.Cleanup(func() { _ = s.Close() })
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
		resp, err := client.Get("https://" + l.Addr().String())
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	cert, err := api.SelfSigned("n1", nil)
	check(t, err)
	c, err := cert(nil)
	check(t, err)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	check(t, os.WriteFile(ca, pemOf(c.Certificate[0]), 0o600))

	cfg := &nodeutil.NodeConfig{}
	check(t, nodeutil.WithTLSConfig(nodeutil.WithCAFromPath(ca))(cfg))
	cfg.TLSConfig.Certificates = []tls.Certificate{*c}
	if err := knock(cfg.TLSConfig); err == nil {
		t.Error("alone: a client without a certificate is let in; virtual-kubelet has fixed this")
	}

	s := ours(t, newMachine(t, "wait"))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	resp, err := client.Get(fmt.Sprintf("https://127.0.0.1:%d/healthz", s.Port()))
	check(t, err)
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Errorf("ours: %s", resp.Status)
	}
	cancel()
	check(t, <-done)
}
