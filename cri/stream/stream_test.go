package stream_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	constants "k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	utilexec "k8s.io/client-go/util/exec"
	streamhttp "k8s.io/streaming/pkg/httpstream"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/cri/stream"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// newNode serves the URL that prepare returns through stream.Proxy.
func newNode(t *testing.T, opts stream.Options, prepare func(ctx context.Context) (string, error)) *url.URL {
	t.Helper()
	var d net.Dialer
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		u, err := prepare(req.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		stream.Proxy(w, req, u, d.DialContext, opts)
	}))
	t.Cleanup(server.Close)
	u, err := url.Parse(server.URL)
	testutil.Must(t, err)
	return u
}

// start runs a container of the test program, waits until it listens on ports, and returns its
// client, sandbox and ID.
func start(t *testing.T, config *runtimeapi.ContainerConfig, ports ...int) (c *cri.Client, sandboxID, id string) {
	t.Helper()
	r := fake.Run(t, fake.Config{})
	c, err := cri.Connect(t.Context(), cri.Config{Dial: r.Dial})
	testutil.Must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	sandbox := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "p", Namespace: "n", Uid: "u"}}
	if sandboxID, err = c.RunPodSandbox(t.Context(), sandbox, ""); err != nil {
		t.Fatal(err)
	}
	r.AddImage(fake.TestImage, fake.RegistryImage{})
	config.Metadata = &runtimeapi.ContainerMetadata{Name: "c"}
	config.Image = &runtimeapi.ImageSpec{Image: fake.TestImage}
	if id, err = c.CreateContainer(t.Context(), sandboxID, config, sandbox); err != nil {
		t.Fatal(err)
	}
	if err = c.StartContainer(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	for _, port := range ports {
		testutil.Must(t, r.Listening(t.Context(), sandboxID, port))
	}
	return c, sandboxID, id
}

// executors are the protocols that clients use.
var executors = map[string]func(t *testing.T, u *url.URL) remotecommand.Executor{
	"spdy": func(t *testing.T, u *url.URL) remotecommand.Executor {
		e, err := remotecommand.NewSPDYExecutor(&rest.Config{Host: u.String()}, "POST", u)
		return must(t, e, err)
	},
	"websocket v5": func(t *testing.T, u *url.URL) remotecommand.Executor {
		e, err := remotecommand.NewWebSocketExecutor(&rest.Config{Host: u.String()}, "GET", u.String())
		return must(t, e, err)
	},
	"websocket v4": func(t *testing.T, u *url.URL) remotecommand.Executor {
		e, err := remotecommand.NewWebSocketExecutorForProtocols(&rest.Config{Host: u.String()}, "GET", u.String(), constants.StreamProtocolV4Name)
		return must(t, e, err)
	},
}

func must(t *testing.T, e remotecommand.Executor, err error) remotecommand.Executor {
	t.Helper()
	testutil.Must(t, err)
	return e
}

func TestExec(t *testing.T) {
	c, _, id := start(t, &runtimeapi.ContainerConfig{Command: []string{"/" + fake.TestImage, "wait"}})
	for name, executor := range executors {
		t.Run(name, func(t *testing.T) {
			t.Run("output and exit code", func(t *testing.T) {
				u := newNode(t, stream.Options{Stdout: true, Stderr: true}, func(ctx context.Context) (string, error) {
					return c.Exec(ctx, &runtimeapi.ExecRequest{ContainerId: id, Cmd: []string{"/" + fake.TestImage, "out hello", "err oops", "exit 7"}, Stdout: true, Stderr: true})
				})
				u.RawQuery = "output=1&error=1"
				var out, errs bytes.Buffer
				err := executor(t, u).StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: &out, Stderr: &errs})
				var exit utilexec.CodeExitError
				if !errors.As(err, &exit) || exit.Code != 7 {
					t.Errorf("error %v, want exit code 7", err)
				}
				if out.String() != "hello\n" || errs.String() != "oops\n" {
					t.Errorf("stdout %q, stderr %q", out.String(), errs.String())
				}
			})
			if name == "websocket v4" {
				return // v4 cannot signal the end of stdin, unlike v5
			}
			t.Run("stdin to its end", func(t *testing.T) {
				u := newNode(t, stream.Options{Stdin: true, Stdout: true}, func(ctx context.Context) (string, error) {
					return c.Exec(ctx, &runtimeapi.ExecRequest{ContainerId: id, Cmd: []string{"/" + fake.TestImage, "cat", "out done"}, Stdin: true, Stdout: true})
				})
				typed := strings.Repeat("0123456789", 100_000)
				var out bytes.Buffer
				err := executor(t, u).StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: strings.NewReader(typed), Stdout: &out})
				testutil.Must(t, err)
				if out.String() != typed+"done\n" {
					t.Errorf("%d bytes came back of %d", out.Len(), len(typed))
				}
			})
		})
	}
}

// The terminal's size is passed on, and stderr is merged into stdout.
func TestExecTTY(t *testing.T) {
	c, _, id := start(t, &runtimeapi.ContainerConfig{Command: []string{"/" + fake.TestImage, "wait"}})
	for _, name := range []string{"spdy", "websocket v5"} {
		t.Run(name, func(t *testing.T) {
			u := newNode(t, stream.Options{Stdin: true, Stdout: true, TTY: true}, func(ctx context.Context) (string, error) {
				return c.Exec(ctx, &runtimeapi.ExecRequest{ContainerId: id, Cmd: []string{"/" + fake.TestImage, "cat"}, Stdin: true, Stdout: true, Tty: true})
			})
			sizes := make(sizeQueue, 1)
			sizes <- remotecommand.TerminalSize{Width: 80, Height: 24}
			defer close(sizes)
			var out bytes.Buffer
			err := executors[name](t, u).StreamWithContext(t.Context(), remotecommand.StreamOptions{
				Stdin: strings.NewReader("ls\n"), Stdout: &out, Tty: true, TerminalSizeQueue: sizes})
			if err != nil || out.String() != "ls\n" {
				t.Errorf("%q, %v", out.String(), err)
			}
		})
	}
}

type sizeQueue chan remotecommand.TerminalSize

func (q sizeQueue) Next() *remotecommand.TerminalSize {
	if s, ok := <-q; ok {
		return &s
	}
	return nil
}

func TestAttach(t *testing.T) {
	for _, name := range []string{"spdy", "websocket v5"} {
		t.Run(name, func(t *testing.T) {
			c, _, id := start(t, &runtimeapi.ContainerConfig{Command: []string{"/" + fake.TestImage, "cat", "out over"}, Stdin: true, StdinOnce: true})
			u := newNode(t, stream.Options{Stdin: true, Stdout: true}, func(ctx context.Context) (string, error) {
				return c.Attach(ctx, &runtimeapi.AttachRequest{ContainerId: id, Stdin: true, Stdout: true})
			})
			var out bytes.Buffer
			err := executors[name](t, u).StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: strings.NewReader("typed\n"), Stdout: &out})
			if err != nil || out.String() != "typed\nover\n" {
				t.Errorf("%q, %v", out.String(), err)
			}
		})
	}
}

func TestPortForward(t *testing.T) {
	c, sandboxID, _ := start(t, &runtimeapi.ContainerConfig{Command: []string{"/" + fake.TestImage, "echo 8080"}}, 8080)
	for name, dialer := range map[string]func(u *url.URL) (streamhttp.Dialer, error){
		"spdy": func(u *url.URL) (streamhttp.Dialer, error) {
			transport, upgrader, err := spdy.RoundTripperFor(&rest.Config{Host: u.String()})
			return spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, "POST", u), err
		},
		"websocket tunnel": func(u *url.URL) (streamhttp.Dialer, error) {
			return portforward.NewSPDYOverWebsocketDialerForStreaming(u, &rest.Config{Host: u.String()})
		},
	} {
		t.Run(name, func(t *testing.T) {
			u := newNode(t, stream.Options{}, func(ctx context.Context) (string, error) {
				return c.PortForward(ctx, &runtimeapi.PortForwardRequest{PodSandboxId: sandboxID, Port: []int32{8080}})
			})
			d, err := dialer(u)
			testutil.Must(t, err)
			stop, ready := make(chan struct{}), make(chan struct{})
			f, err := portforward.NewOnAddressesForStreaming(d, []string{"127.0.0.1"}, []string{"0:8080"}, stop, ready, io.Discard, io.Discard)
			testutil.Must(t, err)
			done := make(chan error, 1)
			go func() { done <- f.ForwardPorts() }()
			select {
			case <-ready:
			case err := <-done:
				t.Fatal(err)
			}
			ports, err := f.GetPorts()
			testutil.Must(t, err)
			for range 2 {
				conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(ports[0].Local))))
				testutil.Must(t, err)
				if _, err := io.WriteString(conn, "ping"); err != nil {
					t.Fatal(err)
				}
				_ = conn.(*net.TCPConn).CloseWrite()
				back, err := io.ReadAll(conn)
				if err != nil || string(back) != "ping" {
					t.Errorf("%q, %v", back, err)
				}
				_ = conn.Close()
			}
			close(stop)
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

// No credential of the caller reaches the host.
func TestCredentialsStay(t *testing.T) {
	seen := make(chan http.Header, 1)
	runtime := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		seen <- req.Header.Clone()
		http.Error(w, "no", http.StatusForbidden)
	}))
	defer runtime.Close()
	u := newNode(t, stream.Options{}, func(context.Context) (string, error) { return runtime.URL + "/exec/token", nil })
	req, err := http.NewRequestWithContext(t.Context(), "GET", u.String(), nil)
	testutil.Must(t, err)
	for k, v := range map[string]string{
		"Connection": "Upgrade", "Upgrade": "websocket", "Authorization": "Bearer secret", "Cookie": "secret",
		"X-Remote-User": "secret", "Impersonate-User": "secret", "X-Kept": "kept",
		"Sec-Websocket-Protocol": "base64url.bearer.authorization.k8s.io.secret, v4.channel.k8s.io",
	} {
		req.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(req)
	testutil.Must(t, err)
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusForbidden {
		t.Errorf("status %d, want the runtime's 403", resp.StatusCode)
	}
	h := <-seen
	for k, vs := range h {
		if strings.Contains(strings.Join(vs, " "), "secret") {
			t.Errorf("header %s reached the runtime: %q", k, vs)
		}
	}
	if h.Get("X-Kept") != "kept" || h.Get("Sec-Websocket-Protocol") != "v4.channel.k8s.io" {
		t.Errorf("too much was taken away: %v", h)
	}
}

// TestUntranslated: the runtime gets SPDY for the newer WebSocket protocols, unless the feature is off.
func TestUntranslated(t *testing.T) {
	for _, protocol := range []string{"v5.channel.k8s.io", "SPDY/3.1+portforward.k8s.io"} {
		for untranslated, want := range map[bool]string{false: "SPDY/3.1", true: "websocket"} {
			seen := make(chan http.Header, 1)
			runtime := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				seen <- req.Header.Clone()
				http.Error(w, "no", http.StatusForbidden)
			}))
			u := newNode(t, stream.Options{Stdout: true, Untranslated: untranslated}, func(context.Context) (string, error) { return runtime.URL + "/x/token", nil })
			conn, err := net.Dial("tcp", u.Host)
			testutil.Must(t, err)
			_, err = io.WriteString(conn, "GET "+u.RequestURI()+" HTTP/1.1\r\nHost: "+u.Host+"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
				"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: "+protocol+"\r\n\r\n")
			testutil.Must(t, err)
			if h := <-seen; !strings.EqualFold(h.Get("Upgrade"), want) {
				t.Errorf("%s, untranslated %v: the runtime was asked to upgrade to %q", protocol, untranslated, h.Get("Upgrade"))
			}
			_ = conn.Close()
			runtime.Close()
		}
	}
}

func TestBadRequests(t *testing.T) {
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.Must(t, err)
	_ = dead.Close()
	for name, c := range map[string]struct {
		url     string
		upgrade bool
		want    int
	}{
		"no upgrade":   {"http://127.0.0.1:1/exec/x", false, http.StatusBadRequest},
		"no one there": {"http://" + dead.Addr().String() + "/exec/x", true, http.StatusBadGateway},
		"no URL":       {"::", true, http.StatusBadGateway},
		"no scheme":    {"ftp://127.0.0.1/x", true, http.StatusBadGateway},
	} {
		t.Run(name, func(t *testing.T) {
			req := httptest.NewRequest("GET", "/", nil)
			if c.upgrade {
				req.Header.Set("Connection", "Upgrade")
				req.Header.Set("Upgrade", "SPDY/3.1")
			}
			w := httptest.NewRecorder()
			var d net.Dialer
			stream.Proxy(w, req, c.url, d.DialContext, stream.Options{})
			if w.Code != c.want {
				t.Errorf("status %d (%s), want %d", w.Code, w.Body, c.want)
			}
		})
	}
}

// An idle connection is closed in time; one that is in use is not.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		go func() { _, _ = io.Copy(far, far) }()
		c := stream.NewIdleConn(near, time.Hour)
		start := time.Now()
		for range 3 {
			time.Sleep(50 * time.Minute)
			if _, err := c.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("read something")
		}
		if got, want := time.Since(start), 3*50*time.Minute+time.Hour; got != want {
			t.Errorf("closed after %v, want %v", got, want)
		}
	})
}
