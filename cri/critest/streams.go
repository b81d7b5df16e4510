package critest

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

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	utilexec "k8s.io/client-go/util/exec"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri/stream"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// node serves the URL that prepare gets from the runtime.
func (s *suite) node(t *testing.T, opts stream.Options, prepare func(context.Context) (string, error)) *url.URL {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		u, err := prepare(req.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		stream.Proxy(w, req, u, s.Dial, opts)
	}))
	t.Cleanup(server.Close)
	u, err := url.Parse(server.URL)
	testutil.Must(t, err)
	u.RawQuery = "output=1"
	return u
}

func testStreamExec(s *suite, t *testing.T) {
	id, _, _ := s.start(t, s.script("c", "wait"))
	for name, executor := range map[string]func(u *url.URL) (remotecommand.Executor, error){
		"SPDY": func(u *url.URL) (remotecommand.Executor, error) {
			return remotecommand.NewSPDYExecutor(&rest.Config{Host: u.String()}, "POST", u)
		},
		"WebSocket": func(u *url.URL) (remotecommand.Executor, error) {
			return remotecommand.NewWebSocketExecutor(&rest.Config{Host: u.String()}, "GET", u.String())
		},
	} {
		t.Run(name, func(t *testing.T) {
			u := s.node(t, stream.Options{Stdin: true, Stdout: true, Stderr: true}, func(ctx context.Context) (string, error) {
				return s.Client.Exec(ctx, &runtimeapi.ExecRequest{ContainerId: id, Stdin: true, Stdout: true, Stderr: true,
					Cmd: []string{"/bowline-test", "cat", "err oops", "exit 9"}})
			})
			e, err := executor(u)
			testutil.Must(t, err)
			typed := strings.Repeat("typed ", 50_000)
			var out, errs bytes.Buffer
			err = e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: strings.NewReader(typed), Stdout: &out, Stderr: &errs})
			var exit utilexec.CodeExitError
			if !errors.As(err, &exit) || exit.Code != 9 {
				t.Errorf("error %v, want exit code 9", err)
			}
			if out.String() != typed || errs.String() != "oops\n" {
				t.Errorf("%d bytes of stdout, want %d; stderr %q", out.Len(), len(typed), errs.String())
			}
		})
	}
}

func testStreamPortForward(s *suite, t *testing.T) {
	_, sandboxID, sandbox := s.start(t, s.script("c", "echo 8080"))
	u := s.node(t, stream.Options{}, func(ctx context.Context) (string, error) {
		return s.Client.PortForward(ctx, &runtimeapi.PortForwardRequest{PodSandboxId: sandboxID, Port: []int32{8080}})
	})
	s.logHas(t, sandbox.LogDirectory+"/c.log", "listening")
	d, err := portforward.NewSPDYOverWebsocketDialerForStreaming(u, &rest.Config{Host: u.String()})
	testutil.Must(t, err)
	stop, ready, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	f, err := portforward.NewOnAddressesForStreaming(d, []string{"127.0.0.1"}, []string{"0:8080"}, stop, ready, io.Discard, io.Discard)
	testutil.Must(t, err)
	go func() { done <- f.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	ports, err := f.GetPorts()
	testutil.Must(t, err)
	conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(ports[0].Local))))
	testutil.Must(t, err)
	defer conn.Close()
	if _, err := io.WriteString(conn, "there and back"); err != nil {
		t.Fatal(err)
	}
	back := make([]byte, len("there and back"))
	if _, err := io.ReadFull(conn, back); err != nil || string(back) != "there and back" {
		t.Errorf("%q, %v", back, err)
	}
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
}
