package prober

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

func (f dialFunc) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return f(ctx, network, address)
}

var direct = dialFunc((&net.Dialer{}).DialContext)

func manager(t testing.TB, d Dialer, late bool) *Manager {
	t.Helper()
	m, err := New(Config{Exec: &commands{}, Dialer: d, Late: func() bool { return late }, DialSlack: 5 * time.Second})
	testutil.Must(t, err)
	return m
}

// at returns a run against the server at address, with the handler that h makes.
func at(t testing.TB, address string, h func(port intstr.IntOrString) v1.ProbeHandler) run {
	t.Helper()
	address = strings.TrimPrefix(strings.TrimPrefix(address, "http://"), "https://")
	ip, port, err := net.SplitHostPort(address)
	testutil.Must(t, err)
	n := intstr.Parse(port)
	c := &v1.Container{Name: "c", Ports: []v1.ContainerPort{{Name: "web", ContainerPort: n.IntVal}}}
	return run{kind: Readiness, spec: &v1.Probe{ProbeHandler: h(n), TimeoutSeconds: 1}, container: c, id: "1", ip: ip}
}

func get(path string, tune func(*v1.HTTPGetAction)) func(intstr.IntOrString) v1.ProbeHandler {
	return func(port intstr.IntOrString) v1.ProbeHandler {
		a := &v1.HTTPGetAction{Path: path, Port: port}
		if tune != nil {
			tune(a)
		}
		return v1.ProbeHandler{HTTPGet: a}
	}
}

func routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/ok", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "fine") })
	mux.HandleFunc("/bad", func(w http.ResponseWriter, r *http.Request) { http.Error(w, "secret", http.StatusServiceUnavailable) })
	mux.HandleFunc("/here", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/ok", http.StatusFound) })
	mux.HandleFunc("/there", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://elsewhere.invalid/", http.StatusFound)
	})
	mux.HandleFunc("/large", func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(make([]byte, 1<<20)) })
	mux.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	mux.HandleFunc("/headers", func(w http.ResponseWriter, r *http.Request) {
		_, enc := r.Header["Accept-Encoding"]
		fmt.Fprint(w, r.Proto, " ", r.Host, " ", r.UserAgent(), " ", r.Header.Get("Accept"), " ", r.Header.Values("X"), enc, r.Close)
	})
	return mux
}

func TestHTTP(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(routes())
	defer srv.Close()
	tls := httptest.NewUnstartedServer(routes())
	tls.EnableHTTP2 = true
	tls.StartTLS()
	defer tls.Close()
	refused := closedPort(t)
	m := manager(t, direct, false)
	named := func(name string) func(*v1.HTTPGetAction) {
		return func(a *v1.HTTPGetAction) { a.Port = intstr.FromString(name) }
	}
	address := strings.TrimPrefix(srv.URL, "http://")
	for name, c := range map[string]struct {
		r    run
		want outcome
	}{
		"ok":                 {at(t, srv.URL, get("/ok", nil)), outcome{result: Success, message: "fine"}},
		"named port":         {at(t, srv.URL, get("/ok", named("web"))), outcome{result: Success, message: "fine"}},
		"status":             {at(t, srv.URL, get("/bad", nil)), outcome{result: Failure, message: "HTTP probe failed with statuscode: 503"}},
		"redirect":           {at(t, srv.URL, get("/here", nil)), outcome{result: Success, message: "fine"}},
		"redirect elsewhere": {at(t, srv.URL, get("/there", nil)), outcome{result: Success, warning: true, message: "Probe terminated redirects, Response body: <a href=\"http://elsewhere.invalid/\">Found</a>.\n\n"}},
		"large":              {at(t, srv.URL, get("/large", nil)), outcome{result: Success, message: string(make([]byte, 10<<10))}},
		"slow": {at(t, srv.URL, get("/slow", nil)), outcome{result: Failure,
			message: fmt.Sprintf("Get %q: context deadline exceeded (Client.Timeout exceeded while awaiting headers)", srv.URL+"/slow")}},
		"refused": {at(t, refused, get("/ok", nil)), outcome{result: Failure,
			message: fmt.Sprintf("Get %q: dial tcp %s: connect: connection refused", "http://"+refused+"/ok", refused)}},
		"headers": {at(t, srv.URL, get("/headers", nil)), outcome{result: Success, message: "HTTP/1.1 " + address + " kube-probe/1.37 */* [] false true"}},
		"own headers": {at(t, srv.URL, get("/headers", func(a *v1.HTTPGetAction) {
			a.HTTPHeaders = []v1.HTTPHeader{{Name: "Host", Value: "example.com"}, {Name: "User-Agent", Value: "mine"}, {Name: "Accept", Value: ""}, {Name: "X", Value: "1"}, {Name: "X", Value: "2"}}
		})), outcome{result: Success, message: "HTTP/1.1 example.com mine  [1 2] false true"}},
		"https": {at(t, tls.URL, get("/ok", func(a *v1.HTTPGetAction) { a.Scheme = v1.URISchemeHTTPS })), outcome{result: Success, message: "fine"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := m.probe(t.Context(), c.r); got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
	o := m.probe(t.Context(), at(t, srv.URL, get("/ok", named("none"))))
	if o.errored == nil || o.result != Unknown || !strings.Contains(o.errored.Error(), `port "none" not found`) {
		t.Errorf("%+v", o)
	}
}

func closedPort(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.Must(t, err)
	defer l.Close()
	return l.Addr().String()
}

// The probe's timeout is one second here; opening the connection takes longer.
func TestTheClockStartsWhenTheConnectionIsOpen(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(routes())
	defer srv.Close()
	far := dialFunc(func(ctx context.Context, network, address string) (net.Conn, error) {
		select {
		case <-time.After(1500 * time.Millisecond): // real time: the server is real
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		return direct(ctx, network, address)
	})
	if got := manager(t, far, false).probe(t.Context(), at(t, srv.URL, get("/ok", nil))); got.result != Success {
		t.Errorf("a far container's answer in time is %+v", got)
	}
	tcp := func(port intstr.IntOrString) v1.ProbeHandler {
		return v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: port}}
	}
	if got := manager(t, far, false).probe(t.Context(), at(t, srv.URL, tcp)); got.result != Success {
		t.Errorf("tcp: %+v", got)
	}
}

func TestTheLinksFaultsAreUnknown(t *testing.T) {
	t.Parallel()
	unreachable := dialFunc(func(context.Context, string, string) (net.Conn, error) {
		return nil, fmt.Errorf("dial over the link: %w", host.ErrUnreachable)
	})
	never := dialFunc(func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	srv := httptest.NewServer(routes())
	defer srv.Close()
	tcp := func(port intstr.IntOrString) v1.ProbeHandler {
		return v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: port}}
	}
	rpc := func(port intstr.IntOrString) v1.ProbeHandler {
		return v1.ProbeHandler{GRPC: &v1.GRPCAction{Port: port.IntVal}}
	}
	for name, h := range map[string]func(intstr.IntOrString) v1.ProbeHandler{"http": get("/ok", nil), "tcp": tcp, "grpc": rpc} {
		if got := manager(t, unreachable, false).probe(t.Context(), at(t, srv.URL, h)); got != (outcome{}) {
			t.Errorf("%s to an unreachable machine: %+v", name, got)
		}
		m := manager(t, never, true)
		m.cfg.DialSlack = 0
		if got := m.probe(t.Context(), at(t, srv.URL, h)); got != (outcome{}) {
			t.Errorf("%s over a late link: %+v", name, got)
		}
		m = manager(t, never, false)
		m.cfg.DialSlack = 0
		if got := m.probe(t.Context(), at(t, srv.URL, h)); got.result != Failure {
			t.Errorf("%s to a silent container: %+v", name, got)
		}
	}
	if got := manager(t, direct, true).probe(t.Context(), at(t, srv.URL, get("/slow", nil))); got != (outcome{}) {
		t.Errorf("a slow answer over a late link: %+v", got)
	}
	r := at(t, srv.URL, tcp)
	r.ip = ""
	if got := manager(t, direct, false).probe(t.Context(), r); got != (outcome{}) {
		t.Errorf("a pod without an address: %+v", got)
	}
}

func TestTCP(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.Must(t, err)
	defer l.Close()
	tcp := func(port intstr.IntOrString) v1.ProbeHandler {
		return v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: port}}
	}
	m := manager(t, direct, false)
	if got := m.probe(t.Context(), at(t, l.Addr().String(), tcp)); got != (outcome{result: Success}) {
		t.Errorf("%+v", got)
	}
	refused := closedPort(t)
	want := outcome{result: Failure, message: "dial tcp " + refused + ": connect: connection refused"}
	if got := m.probe(t.Context(), at(t, refused, tcp)); got != want {
		t.Errorf("%+v", got)
	}
}

func TestGRPC(t *testing.T) {
	t.Parallel()
	serve := func(register func(*grpc.Server)) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		testutil.Must(t, err)
		s := grpc.NewServer()
		register(s)
		go func() { _ = s.Serve(l) }()
		t.Cleanup(s.Stop)
		return l.Addr().String()
	}
	h := health.NewServer()
	h.SetServingStatus("sick", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	healthy := serve(func(s *grpc.Server) { grpc_health_v1.RegisterHealthServer(s, h) })
	without := serve(func(*grpc.Server) {})
	m := manager(t, direct, false)
	rpc := func(service string) func(intstr.IntOrString) v1.ProbeHandler {
		return func(port intstr.IntOrString) v1.ProbeHandler {
			return v1.ProbeHandler{GRPC: &v1.GRPCAction{Port: port.IntVal, Service: &service}}
		}
	}
	refused := closedPort(t)
	for name, c := range map[string]struct {
		r    run
		want Result
		part string
	}{
		"serving":     {at(t, healthy, rpc("")), Success, "service healthy"},
		"not serving": {at(t, healthy, rpc("sick")), Failure, `service unhealthy (responded with "NOT_SERVING")`},
		"unknown":     {at(t, healthy, rpc("none")), Failure, "error: health rpc probe failed"},
		"without":     {at(t, without, rpc("")), Failure, "error: this server does not implement the grpc health protocol (grpc.health.v1.Health)"},
		"refused":     {at(t, refused, rpc("")), Failure, fmt.Sprintf("error: failed to connect service at %q: dial tcp", refused)},
	} {
		if got := m.probe(t.Context(), c.r); got.result != c.want || !strings.Contains(got.message, c.part) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// endlessHealth answers with headers or messages that are larger than a health check needs.
type endlessHealth struct {
	grpc_health_v1.UnimplementedHealthServer
	header, message int
}

func (h endlessHealth) Check(ctx context.Context, _ *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	if h.header > 0 {
		_ = grpc.SendHeader(ctx, metadata.Pairs("a", strings.Repeat("x", h.header)))
	}
	r := &grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_SERVING}
	r.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 100, protowire.BytesType), make([]byte, h.message)))
	return r, nil
}

// Answers to a gRPC probe are as limited in size as those to an HTTP probe.
func TestGRPCAnswersAreBounded(t *testing.T) {
	t.Parallel()
	m := manager(t, direct, false)
	for name, c := range map[string]struct {
		h    endlessHealth
		want Result
	}{
		"usual":         {endlessHealth{header: 4 << 10, message: 1 << 10}, Success},
		"large header":  {endlessHealth{header: 128 << 10}, Failure},
		"large message": {endlessHealth{message: 128 << 10}, Failure},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			testutil.Must(t, err)
			s := grpc.NewServer()
			grpc_health_v1.RegisterHealthServer(s, c.h)
			go func() { _ = s.Serve(l) }()
			defer s.Stop()
			r := at(t, l.Addr().String(), func(p intstr.IntOrString) v1.ProbeHandler {
				return v1.ProbeHandler{GRPC: &v1.GRPCAction{Port: p.IntVal}}
			})
			if o := m.probe(t.Context(), r); o.result != c.want {
				t.Errorf("%+v, want %v", o, c.want)
			}
		})
	}
}

type execFunc func(cmd []string, timeout time.Duration) (cri.ExecResult, error)

func (f execFunc) ExecSync(_ context.Context, _ string, cmd []string, timeout time.Duration) (cri.ExecResult, error) {
	return f(cmd, timeout)
}

func TestExec(t *testing.T) {
	timedOut := &cri.Error{Method: "ExecSync", Kind: cri.KindTimeout, Err: errors.New("late")}
	gone := &cri.Error{Method: "ExecSync", Kind: cri.KindNotFound, Err: errors.New("gone")}
	for name, c := range map[string]struct {
		res  cri.ExecResult
		err  error
		want outcome
	}{
		"success":  {cri.ExecResult{Stdout: []byte("a"), Stderr: []byte("b")}, nil, outcome{result: Success, message: "ab"}},
		"exit":     {cri.ExecResult{ExitCode: 2, Stderr: []byte(strings.Repeat("x", 1<<20))}, nil, outcome{result: Failure, message: strings.Repeat("x", 10<<10)}},
		"time-out": {cri.ExecResult{}, timedOut, outcome{result: Failure, message: `command timed out: "cat v $(NONE)" timed out after 3s`}},
		"gone":     {cri.ExecResult{}, gone, outcome{}},
	} {
		m := manager(t, direct, false)
		m.cfg.Exec = execFunc(func(cmd []string, timeout time.Duration) (cri.ExecResult, error) {
			if strings.Join(cmd, " ") != "cat v $(NONE)" || timeout != 3*time.Second {
				t.Errorf("ran %q for %v", cmd, timeout)
			}
			return c.res, c.err
		})
		r := run{kind: Liveness, id: "1", container: &v1.Container{Env: []v1.EnvVar{{Name: "V", Value: "v"}}},
			spec: &v1.Probe{TimeoutSeconds: 3, ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"cat", "$(V)", "$(NONE)"}}}}}
		if got := m.probe(t.Context(), r); got != c.want {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// BenchmarkHTTP measures one run: fifty pods with a probe every ten seconds make five runs a
// second. The server takes half of the cost.
func BenchmarkHTTP(b *testing.B) {
	srv := httptest.NewServer(routes())
	defer srv.Close()
	m := manager(b, direct, false)
	r := at(b, srv.URL, get("/ok", nil))
	b.ReportAllocs()
	for b.Loop() {
		if o := m.probe(b.Context(), r); o.result != Success {
			b.Fatal(o.message)
		}
	}
}
