package api

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
)

// node is a fake of everything behind the server.
type node struct {
	pods      []*v1.Pod
	allocated []*v1.Pod
	container Container
	err       error
	loopErr   error
	sawLog    *v1.PodLogOptions
	logOut    string
	logErr    error
	sawExec   *runtimeapi.ExecRequest
	sawAttach *runtimeapi.AttachRequest
	sawPorts  *runtimeapi.PortForwardRequest
	sawURL    string
	sawStream StreamOptions
	sawCmd    []string
	sawOnly   bool // the summary of CPU and memory alone was asked for
	statsErr  error

	granted map[string]bool // subresources that "reader" may use; nil: all
	asked   []string

	mu      sync.Mutex
	counted []string
}

func (n *node) Summary(_ context.Context, only bool) (*statsapi.Summary, error) {
	n.sawOnly = only
	return &statsapi.Summary{Node: statsapi.NodeStats{NodeName: "n1"}}, n.statsErr
}
func (n *node) Resource(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "resource") }
func (n *node) Cadvisor(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "cadvisor") }

func (n *node) PodByName(ns, name string) (*v1.Pod, bool) {
	for _, p := range n.pods {
		if p.Namespace == ns && p.Name == name {
			return p, true
		}
	}
	return nil, false
}
func (n *node) Pods() []*v1.Pod          { return n.pods }
func (n *node) AllocatedPods() []*v1.Pod { return slices.Clone(n.allocated) }
func (n *node) Resolve(uid types.UID) types.UID {
	if uid == "mirror" {
		return "u1"
	}
	return uid
}
func (n *node) RunningPods(context.Context) ([]*v1.Pod, error) { return n.pods, n.err }
func (n *node) Container(_ context.Context, _, _ string, _ types.UID, _ string, _ bool) (Container, error) {
	return n.container, n.err
}
func (n *node) Sandbox(context.Context, string, string, types.UID) (string, error) {
	return "sandbox-1", n.err
}
func (n *node) Why(_ context.Context, ns, name string) (*pod.WhyReport, error) {
	if _, ok := n.PodByName(ns, name); !ok {
		return nil, fmt.Errorf("pod %s/%s: %w", ns, name, ErrNotFound)
	}
	return &pod.WhyReport{Namespace: ns, Name: name, Phase: "Syncing"}, nil
}
func (n *node) Exec(_ context.Context, r *runtimeapi.ExecRequest) (string, error) {
	n.sawExec = r
	return "http://cri/exec/1", nil
}
func (n *node) Attach(_ context.Context, r *runtimeapi.AttachRequest) (string, error) {
	n.sawAttach = r
	return "http://cri/attach/1", nil
}
func (n *node) PortForward(_ context.Context, r *runtimeapi.PortForwardRequest) (string, error) {
	n.sawPorts = r
	return "http://cri/portforward/1", nil
}
func (n *node) Proxy(w http.ResponseWriter, _ *http.Request, url string, o StreamOptions) {
	n.sawURL, n.sawStream = url, o
	fmt.Fprint(w, "proxied")
}
func (n *node) Run(_ context.Context, _ string, cmd []string) ([]byte, error) {
	n.sawCmd = cmd
	return []byte("output"), nil
}
func (n *node) logs(_ context.Context, path string, o *v1.PodLogOptions, _ func(context.Context) (bool, error), stdout, stderr io.Writer) error {
	n.sawLog = o
	if stdout != nil {
		io.WriteString(stdout, n.logOut)
	}
	if stderr != nil && n.logOut == "" && n.logErr == nil {
		io.WriteString(stderr, "err of "+path)
	}
	return n.logErr
}
func (n *node) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	switch r.Header.Get("Authorization") {
	case "Bearer reader":
		return &authenticator.Response{User: &user.DefaultInfo{Name: "reader"}}, true, nil
	case "Bearer broken":
		return nil, false, errors.New("webhook is away")
	}
	return nil, false, nil
}
func (n *node) request(method, path string, long bool) func() {
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.counted = append(n.counted, fmt.Sprint(method, " ", path, " ", long))
	}
}
func (n *node) streamed(kind string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.counted = append(n.counted, "WebSocket "+kind)
}
func (n *node) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	n.asked = append(n.asked, a.GetVerb()+" "+a.GetResource()+"/"+a.GetName()+"/"+a.GetSubresource())
	if n.granted == nil || n.granted[a.GetSubresource()] {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

func webPod() *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u1"},
		Spec: v1.PodSpec{Containers: []v1.Container{{Name: "app"}, {Name: "shell", TTY: true, Stdin: true}},
			EphemeralContainers: []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "debug"}}}},
	}
}

func testServer(t *testing.T, n *node) *Server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.Must(t, err)
	t.Cleanup(func() { l.Close() })
	cert, err := SelfSigned("n1", []net.IP{net.IPv4(127, 0, 0, 1)})
	testutil.Must(t, err)
	s, err := New(Config{NodeName: "n1", Listener: l, Strangers: NewStrangers(), Certificate: cert, Authenticator: n, Authorizer: n, Pods: n, Streams: n,
		Logs: n.logs, SyncLoop: func() error { return n.loopErr }, Configz: func() (map[string]any, error) {
			return map[string]any{"kubeletconfig": map[string]int{"maxPods": 110}}, nil
		}, Stats: n, Checked: func(string, error) {}, Request: n.request, Streamed: n.streamed, Checkpoint: n.checkpoint,
		AllocatedPods: true, Version: func() string { return "v1.37.1" }, Flags: map[string]string{"config": "/etc/bowline/config.yaml", "v": "2"},
		ProbeMetrics: http.NotFoundHandler(), SLIMetrics: http.NotFoundHandler(),
		Metrics: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})})
	testutil.Must(t, err)
	return s
}

func call(s *Server, method, path string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, nil)
	r.Header.Set("Authorization", "Bearer reader")
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	return w
}

// TestRequestsAreCounted: each request counts once, whatever becomes of it, and callers cannot invent
// label values.
func TestRequestsAreCounted(t *testing.T) {
	n := &node{pods: []*v1.Pod{webPod()}}
	s := testServer(t, n)
	for _, c := range []struct{ method, path, token, want string }{
		{"GET", "/pods", "reader", "GET pods false"},
		{"GET", "/pods/", "stranger", "GET pods false"},
		{"HEAD", "/healthz/syncloop", "reader", "HEAD healthz false"},
		{"GET", "/metrics", "reader", "GET metrics false"},
		{"GET", "/metrics/cadvisor", "reader", "GET metrics/cadvisor false"},
		{"POST", "/exec/shop/web/app", "reader", "POST exec true"},
		{"POST", "/portForward/shop/web/u1", "reader", "POST portForward true"},
		{"GET", "/stats/summary", "reader", "GET stats false"},
		{"GET", "/metrics/invented", "reader", "GET other false"},
		{"INVENTED", "/invented/path", "stranger", "other other false"},
	} {
		n.counted = nil
		call(s, c.method, c.path, "Authorization", "Bearer "+c.token)
		if len(n.counted) != 1 || n.counted[0] != c.want {
			t.Errorf("%s %s is counted as %q, want %q", c.method, c.path, n.counted, c.want)
		}
	}
}

func TestUnknownCallersGetNowhere(t *testing.T) {
	n := &node{pods: []*v1.Pod{webPod()}}
	s := testServer(t, n)
	for _, token := range []string{"", "Bearer stranger", "Bearer broken"} {
		for _, path := range []string{"/pods", "/healthz", "/exec/shop/web/app", "/nowhere"} {
			w := call(s, "GET", path, "Authorization", token)
			if w.Code != http.StatusUnauthorized || strings.TrimSpace(w.Body.String()) != "Unauthorized" {
				t.Errorf("%q on %s: %d %q, want 401", token, path, w.Code, w.Body)
			}
		}
	}
	if len(n.asked) != 0 || n.sawExec != nil {
		t.Error("an unauthenticated request went further")
	}
}

func TestMethodsAndMissingParts(t *testing.T) {
	s := testServer(t, &node{pods: []*v1.Pod{webPod()}})
	for _, c := range []struct {
		method, path string
		code         int
	}{
		{"POST", "/pods", 405}, {"DELETE", "/containerLogs/shop/web/app", 405}, {"GET", "/run/shop/web/app", 405},
		{"GET", "/stats/summary", 200}, {"POST", "/stats/summary", 200}, {"PUT", "/stats/summary", 405}, {"GET", "/stats/", 404}, {"GET", "/stats/container", 404},
		{"GET", "/metrics/cadvisor", 200}, {"GET", "/metrics/resource", 200}, {"GET", "/logs/", 405}, {"GET", "/flagz", 200}, {"GET", "/statusz", 200}, {"GET", "/logs/syslog", 405},
		{"GET", "/nowhere", 404}, {"GET", "/healthz/nothing", 404}, {"GET", "/bowline/v1/why/shop/none", 404},
		{"GET", "/metrics", 200}, {"GET", "/bowline/v1/why/shop/web", 200},
	} {
		if w := call(s, c.method, c.path); w.Code != c.code {
			t.Errorf("%s %s: %d %s, want %d", c.method, c.path, w.Code, w.Body, c.code)
		}
	}
}

func TestSummary(t *testing.T) {
	n := &node{}
	s := testServer(t, n)
	for _, c := range []struct {
		method, query string
		only          bool
	}{
		{"GET", "", false}, {"GET", "?only_cpu_and_memory=true", true}, {"POST", "?only_cpu_and_memory=true", true},
		{"GET", "?only_cpu_and_memory=false", false}, {"GET", "?only_cpu_and_memory=true&only_cpu_and_memory=true", false}, {"GET", "?only_cpu_and_memory", false},
	} {
		var got statsapi.Summary
		w := call(s, c.method, "/stats/summary"+c.query)
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != 200 || got.Node.NodeName != "n1" || n.sawOnly != c.only || w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%s %s: %d %s, only CPU and memory: %v", c.method, c.query, w.Code, w.Body, n.sawOnly)
		}
	}
	n.statsErr = errors.New("the host does not answer")
	if w := call(s, "GET", "/stats/summary"); w.Code != 500 || !strings.Contains(w.Body.String(), "the host does not answer") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func (n *node) checkpoint(_ context.Context, p *v1.Pod, container, id string, timeout int64) (string, error) {
	return fmt.Sprintf("/root/%s-%s-%s-%d.tar", p.Name, container, id, timeout), n.err
}

func TestCheckpoint(t *testing.T) {
	n := &node{pods: []*v1.Pod{webPod()}, container: Container{ID: "c1", Running: true}}
	s := testServer(t, n)
	for path, want := range map[string]struct {
		code int
		text string
	}{
		"/checkpoint/shop/web/app":            {200, `{"items":["/root/web-app-c1-0.tar"]}`},
		"/checkpoint/shop/web/app?timeout=30": {200, `{"items":["/root/web-app-c1-30.tar"]}`},
		"/checkpoint/shop/web/app?timeout=x":  {400, "timeout"},
		"/checkpoint/shop/web/app?timeout=-1": {400, "timeout"},
		"/checkpoint/shop/web/none":           {404, "container none does not exist"},
		"/checkpoint/shop/none/app":           {404, "pod does not exist"},
	} {
		if w := call(s, "POST", path); w.Code != want.code || !strings.Contains(w.Body.String(), want.text) {
			t.Errorf("%s: %d %s, want %d %s", path, w.Code, w.Body, want.code, want.text)
		}
	}
	if w := call(s, "GET", "/checkpoint/shop/web/app"); w.Code != 405 {
		t.Errorf("a GET is a %d", w.Code)
	}
	n.container.Running = false
	if w := call(s, "POST", "/checkpoint/shop/web/app"); w.Code != 404 {
		t.Errorf("a container that does not run: %d", w.Code)
	}
}

// TestPathsThatAreOff: a path whose feature gate is off is unknown, and /statusz does not list it.
func TestPathsThatAreOff(t *testing.T) {
	n := &node{pods: []*v1.Pod{webPod()}, allocated: []*v1.Pod{webPod()}, container: Container{ID: "c1", Running: true}}
	without := func(change func(*Config)) *Server {
		cfg := testServer(t, n).cfg
		change(&cfg)
		s, err := New(cfg)
		testutil.Must(t, err)
		return s
	}
	for _, c := range []struct {
		method, path string
		off          func(*Config)
	}{
		{"GET", "/flagz", func(c *Config) { c.NoFlagz = true }},
		{"GET", "/statusz", func(c *Config) { c.NoStatusz = true }},
		{"POST", "/checkpoint/shop/web/app", func(c *Config) { c.Checkpoint = nil }},
		{"GET", "/allocatedPods", func(c *Config) { c.AllocatedPods = false }},
		{"GET", "/allocatedPods/shop/web", func(c *Config) { c.AllocatedPods = false }},
	} {
		if w := call(testServer(t, n), c.method, c.path); w.Code != 200 {
			t.Errorf("%s: %d %s", c.path, w.Code, w.Body)
		}
		if w := call(without(c.off), c.method, c.path); w.Code != 404 {
			t.Errorf("%s while it is off: %d %s", c.path, w.Code, w.Body)
		}
	}
	if w := call(without(func(c *Config) { c.NoFlagz = true }), "GET", "/statusz"); strings.Contains(w.Body.String(), "/flagz") {
		t.Errorf("/statusz lists a path that is off: %s", w.Body)
	}
	tunnel := []string{"Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Protocol", "SPDY/3.1+portforward.k8s.io"}
	s := without(func(c *Config) { c.NoTunnels = true })
	if w := call(s, "GET", "/portForward/shop/web", tunnel...); w.Code != 400 || !strings.Contains(w.Body.String(), `"port" is required`) {
		t.Errorf("a tunnel while tunnels are off: %d %s", w.Code, w.Body)
	}
}

func TestZPages(t *testing.T) {
	s := testServer(t, &node{})
	for _, c := range []struct {
		path, accept string
		code         int
		want         []string
	}{
		{"/statusz", "", 200, []string{"kubelet statusz", "Binary version: v1.37.1", "Paths: ", "/metrics/resource"}},
		{"/statusz", "text/html,*/*;q=0.8", 200, []string{"kubelet statusz"}},
		{"/statusz", "application/json;as=Statusz;v=v1beta1;g=config.k8s.io", 200, []string{`"kind":"Statusz"`, `"apiVersion":"config.k8s.io/v1beta1"`, `"binaryVersion":"v1.37.1"`}},
		{"/statusz", "application/json", 406, nil},
		{"/flagz", "", 200, []string{"kubelet flagz", "config=/etc/bowline/config.yaml\nv=2\n"}},
		{"/flagz", "application/json;as=Flagz;v=v1beta1;g=config.k8s.io", 200, []string{`"kind":"Flagz"`, `"flags":{"config":"/etc/bowline/config.yaml","v":"2"}`}},
		{"/flagz", "application/json;as=Statusz;v=v1beta1;g=config.k8s.io", 406, nil},
	} {
		w := call(s, "GET", c.path, "Accept", c.accept)
		if w.Code != c.code {
			t.Errorf("%s for %q: %d %s", c.path, c.accept, w.Code, w.Body)
		}
		for _, want := range c.want {
			if !strings.Contains(w.Body.String(), want) {
				t.Errorf("%s for %q has no %q: %s", c.path, c.accept, want, w.Body)
			}
		}
	}
}

func TestHealthz(t *testing.T) {
	n := &node{}
	s := testServer(t, n)
	if w := call(s, "GET", "/healthz"); w.Code != 200 || w.Body.String() != "ok" {
		t.Errorf("healthy: %d %q", w.Code, w.Body)
	}
	n.loopErr = errors.New("the loop has not turned for 5 min")
	if w := call(s, "GET", "/healthz"); w.Code != 500 || !strings.Contains(w.Body.String(), "[-]syncloop failed: the loop has not turned") {
		t.Errorf("stuck: %d %q", w.Code, w.Body)
	}
	if w := call(s, "GET", "/healthz/ping"); w.Code != 200 {
		t.Errorf("ping of a stuck loop: %d", w.Code)
	}
	if w := call(s, "GET", "/healthz/syncloop"); w.Code != 500 {
		t.Errorf("syncloop of a stuck loop: %d", w.Code)
	}
}

func TestPodsAndConfigz(t *testing.T) {
	s := testServer(t, &node{pods: []*v1.Pod{webPod()}})
	var list v1.PodList
	testutil.Must(t, json.Unmarshal(call(s, "GET", "/pods").Body.Bytes(), &list))
	if list.Kind != "PodList" || list.APIVersion != "v1" || len(list.Items) != 1 || list.Items[0].Name != "web" {
		t.Errorf("/pods: %+v", list)
	}
	if b := call(s, "GET", "/configz").Body.String(); b != `{"kubeletconfig":{"maxPods":110}}` {
		t.Errorf("/configz: %s", b)
	}
}

// TestAllocatedPods: the pods have their allocated resources and no status, as a kubelet shows them.
func TestAllocatedPods(t *testing.T) {
	web := webPod()
	web.Status.Phase = v1.PodRunning
	web.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse("100m")}
	n := &node{pods: []*v1.Pod{webPod()}, allocated: []*v1.Pod{web}}
	s := testServer(t, n)
	var list v1.PodList
	testutil.Must(t, json.Unmarshal(call(s, "GET", "/allocatedPods").Body.Bytes(), &list))
	if list.Kind != "PodList" || len(list.Items) != 1 || list.Items[0].Spec.Containers[0].Resources.Requests.Cpu().MilliValue() != 100 || list.Items[0].Status.Phase != "" {
		t.Errorf("/allocatedPods: %+v", list)
	}
	for path, code := range map[string]int{
		"/allocatedPods/shop/web": 200, "/allocatedPods/shop/web/u1": 200, "/allocatedPods/shop/web/other": 404, "/allocatedPods/shop/web/mirror": 404,
		"/allocatedPods/shop/none": 404, "/allocatedPods/other/web": 404, "/allocatedPods/shop": 404,
	} {
		w := call(s, "GET", path)
		var got v1.Pod
		if w.Code != code || code == 200 && (json.Unmarshal(w.Body.Bytes(), &got) != nil || got.Kind != "Pod" || got.APIVersion != "v1" || got.Name != "web" || got.Status.Phase != "") {
			t.Errorf("%s: %d %s, want %d", path, w.Code, w.Body, code)
		}
	}
	if web.Status.Phase != v1.PodRunning || web.Kind != "" {
		t.Error("a shared pod was changed")
	}
	if w := call(s, "POST", "/allocatedPods"); w.Code != 405 {
		t.Errorf("a POST is a %d", w.Code)
	}
}

func TestExec(t *testing.T) {
	n := &node{pods: []*v1.Pod{webPod()}, container: Container{ID: "c1", Running: true}}
	s := testServer(t, n)
	w := call(s, "POST", "/exec/shop/web/app?command=sh&command=-c&command=ls+-l&output=1&error=1&input=1&tty=1")
	if w.Body.String() != "proxied" || n.sawURL != "http://cri/exec/1" {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if e := n.sawExec; e.ContainerId != "c1" || strings.Join(e.Cmd, "|") != "sh|-c|ls -l" || !e.Tty || !e.Stdin || !e.Stdout || e.Stderr {
		t.Errorf("exec with a terminal: %+v; stderr must give way to it", e)
	}
	for path, code := range map[string]int{
		"/exec/shop/web/app?command=ls":                     400, // no stream
		"/exec/shop/web/app?output=1":                       400, // no command
		"/exec/shop/web/other/app?command=ls&output=1":      404, // another uid
		"/exec/shop/web/none?command=ls&output=1":           404,
		"/exec/shop/none/app?command=ls&output=1":           404,
		"/exec/shop/web/u1/debug?command=ls&output=1":       200, // ephemeral, by uid
		"/exec/shop/web/mirror/app?command=ls&output=1":     200, // by its mirror pod's uid
		"/attach/shop/web/app?":                             400,
		"/attach/shop/web/u1/app?output=1&error=1":          200,
		"/exec/shop/web/app?command=ls&output=1&undefined=": 200,
	} {
		if w := call(s, "POST", path); w.Code != code {
			t.Errorf("%s: %d %s, want %d", path, w.Code, w.Body, code)
		}
	}
	if n.sawAttach.Tty {
		t.Error("attach gave a terminal to a container without one")
	}
	call(s, "POST", "/attach/shop/web/shell?output=1&error=1&input=1")
	if !n.sawAttach.Tty || n.sawAttach.Stderr {
		t.Errorf("attach to a container with a terminal: %+v", n.sawAttach)
	}
	n.container.Running = false
	if w := call(s, "POST", "/exec/shop/web/app?command=ls&output=1"); w.Code != 404 || !strings.Contains(w.Body.String(), "is not running") {
		t.Errorf("exec into a dead container: %d %s", w.Code, w.Body)
	}
	n.err = fmt.Errorf("runtime: %w", ErrUnavailable)
	if w := call(s, "POST", "/exec/shop/web/app?command=ls&output=1"); w.Code != 503 {
		t.Errorf("exec while the runtime is away: %d %s", w.Code, w.Body)
	}
}

func TestRunSplitsItsCommand(t *testing.T) {
	n := &node{pods: []*v1.Pod{webPod()}, container: Container{ID: "c1", Running: true}}
	w := call(testServer(t, n), "POST", "/run/shop/web/u1/app?cmd="+url.QueryEscape("ls -l /tmp"))
	if w.Body.String() != "output" || strings.Join(n.sawCmd, "|") != "ls|-l|/tmp" {
		t.Errorf("%d %s, ran %q", w.Code, w.Body, n.sawCmd)
	}
}

func TestPortForward(t *testing.T) {
	n := &node{pods: []*v1.Pod{webPod()}}
	s := testServer(t, n)
	if w := call(s, "POST", "/portForward/shop/web"); w.Code != 200 || n.sawPorts.PodSandboxId != "sandbox-1" || n.sawPorts.Port != nil || !n.sawStream.PortForward {
		t.Errorf("SPDY: %d, %+v", w.Code, n.sawPorts)
	}
	ws := []string{"Upgrade", "websocket", "Connection", "Upgrade", "Sec-WebSocket-Protocol"}
	if w := call(s, "GET", "/portForward/shop/web?port=80&port=443", append(ws, "v4.channel.k8s.io")...); w.Code != 200 || fmt.Sprint(n.sawPorts.Port) != "[80 443]" {
		t.Errorf("WebSocket: %d, %v, want ports 80 and 443", w.Code, n.sawPorts.Port)
	}
	if w := call(s, "GET", "/portForward/shop/web", append(ws, "v4.channel.k8s.io")...); w.Code != 400 {
		t.Errorf("WebSocket without ports: %d, want 400", w.Code)
	}
	if w := call(s, "GET", "/portForward/shop/web", append(ws, "SPDY/3.1+portforward.k8s.io")...); w.Code != 200 || n.sawPorts.Port != nil {
		t.Errorf("tunnelled SPDY: %d, %v", w.Code, n.sawPorts.Port)
	}
	n.container = Container{ID: "c1", Running: true}
	call(s, "GET", "/exec/shop/web/app?output=1&command=ls", append(ws, "v5.channel.k8s.io")...)
	call(s, "POST", "/attach/shop/web/app?output=1")
	streams := slices.DeleteFunc(n.counted, func(c string) bool { return !strings.HasPrefix(c, "WebSocket ") })
	if want := []string{"WebSocket portforward", "WebSocket portforward", "WebSocket exec"}; !slices.Equal(streams, want) {
		t.Errorf("counted are %q, want %q", streams, want)
	}
}

func TestLogOptions(t *testing.T) {
	n := &node{pods: []*v1.Pod{webPod()}, container: Container{ID: "c1", LogPath: "/l"}, logOut: "hello\n"}
	s := testServer(t, n)
	get := func(q string) *httptest.ResponseRecorder { return call(s, "GET", "/containerLogs/shop/web/app?"+q) }

	if w := get(""); w.Code != 200 || w.Body.String() != "hello\n" || n.sawLog.TailLines != nil || *n.sawLog.Stream != "All" {
		t.Errorf("plain: %d %q %+v", w.Code, w.Body, n.sawLog)
	}
	if get("tailLines=0"); n.sawLog.TailLines == nil || *n.sawLog.TailLines != 0 {
		t.Errorf("tailLines=0 was decoded as %v; it is not the same as none", n.sawLog.TailLines)
	}
	if get("tail=7"); n.sawLog.TailLines == nil || *n.sawLog.TailLines != 7 {
		t.Errorf("tail=7 was decoded as %v", n.sawLog.TailLines)
	}
	if get("tail=all&tailLines=3"); n.sawLog.TailLines != nil {
		t.Errorf("tail=all was decoded as %v", n.sawLog.TailLines)
	}
	get("follow=true&timestamps=1&previous=false&limitBytes=9&sinceSeconds=5")
	if o := n.sawLog; !o.Follow || !o.Timestamps || o.Previous || *o.LimitBytes != 9 || *o.SinceSeconds != 5 {
		t.Errorf("options: %+v", o)
	}
	if get("sinceTime=2026-03-01T12:00:00Z"); !n.sawLog.SinceTime.Time.Equal(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)) {
		t.Errorf("sinceTime: %v", n.sawLog.SinceTime)
	}
	n.logOut = ""
	if w := get("stream=Stderr"); w.Body.String() != "err of /l" {
		t.Errorf("stream=Stderr: %q", w.Body)
	}
	if w := get("stream=Stdout"); w.Body.String() != "" {
		t.Errorf("stream=Stdout shows stderr: %q", w.Body)
	}
	both := testServer(t, n)
	both.cfg.NoLogStreams = true
	if w := call(both, "GET", "/containerLogs/shop/web/app?stream=Stdout"); *n.sawLog.Stream != "All" || w.Body.String() != "err of /l" {
		t.Errorf("stream=Stdout without the gate: %+v, %q", n.sawLog, w.Body)
	}
	if w := call(both, "GET", "/containerLogs/shop/web/app?stream=stdout"); w.Code != 422 {
		t.Errorf("stream=stdout without the gate: %d", w.Code)
	}
	// Whatever is not false is true, as apimachinery parses parameters.
	for v, want := range map[string]bool{"true": true, "1": true, "yes": true, "": true, "0": false, "False": false} {
		if w := get("follow=" + v); w.Code != 200 || n.sawLog.Follow != want {
			t.Errorf("follow=%s: %d, %v", v, w.Code, n.sawLog.Follow)
		}
	}
	for q, code := range map[string]int{
		"tailLines=x": 400, "limitBytes=1.5": 400, "sinceSeconds=1m": 400, "sinceTime=yesterday": 400, "tail=some": 400,
		"tailLines=-1": 422, "limitBytes=0": 422, "limitBytes=-1": 422, "sinceSeconds=0": 422, "sinceSeconds=-5": 422, "tail=-1": 422,
		"sinceSeconds=5&sinceTime=2026-03-01T12:00:00Z": 422, "stream=Everything": 422, "stream=stdout": 422,
		"stream=Stdout&tailLines=3": 422, "stream=Stderr&tail=0": 422,
		"stream=All&tailLines=3": 200, "stream=Stdout&limitBytes=3&timestamps=true&sinceSeconds=9&follow=1": 200,
		"previous=true&follow=true&tailLines=0&limitBytes=1": 200, "container=other&insecureSkipTLSVerifyBackend=true&unknown=x": 200,
	} {
		if w := get(q); w.Code != code {
			t.Errorf("%s: %d %s, want %d", q, w.Code, w.Body, code)
		}
	}
}

func TestLogsThatAreNotThere(t *testing.T) {
	p := webPod()
	p.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "app", State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}}}
	n := &node{pods: []*v1.Pod{p}, err: fmt.Errorf("app: %w", ErrNotFound)}
	s := testServer(t, n)
	for path, want := range map[string]string{
		"/containerLogs/shop/web/app":                 `400 container "app" in pod "web" is waiting to start: trying and failing to pull image`,
		"/containerLogs/shop/web/app?previous=true":   `400 previous terminated container "app" in pod "web" not found`,
		"/containerLogs/shop/web/shell":               `400 container "shell" in pod "web" is not available`,
		"/containerLogs/shop/web/none":                `404 container "none" not found in pod "web"`,
		"/containerLogs/shop/none/app":                `404 pod shop/none does not exist on this node`,
		"/containerLogs/shop/web/app?tailLines=many":  `400 tailLines "many": a number of at least 0 wanted`,
		"/containerLogs/shop/web/app?stream=Nonsense": `422 stream "Nonsense": All, Stdout or Stderr wanted`,
	} {
		w := call(s, "GET", path)
		if got := fmt.Sprintf("%d %s", w.Code, strings.TrimSpace(w.Body.String())); got != want {
			t.Errorf("%s\n got %s\nwant %s", path, got, want)
		}
	}
	n.err = nil
	n.logErr = errors.New("the log was rotated away")
	if w := call(s, "GET", "/containerLogs/shop/web/app"); w.Code != 500 {
		t.Errorf("an error before the first byte: %d", w.Code)
	}
	n.logOut = "line\n"
	if w := call(s, "GET", "/containerLogs/shop/web/app"); w.Code != 200 || w.Body.String() != "line\nthe log was rotated away\n" {
		t.Errorf("an error after it: %d %q", w.Code, w.Body)
	}
}

type panics struct{ *node }

func (panics) Pods() []*v1.Pod { panic("secret detail") }

func TestPanicIsAPlainError(t *testing.T) {
	s := testServer(t, &node{})
	s.cfg.Pods = panics{&node{}}
	w := call(s, "GET", "/pods")
	if w.Code != 500 || strings.TrimSpace(w.Body.String()) != "internal error" {
		t.Errorf("%d %q, want a plain 500", w.Code, w.Body)
	}
}

func TestServesTLSAndStops(t *testing.T) {
	s := testServer(t, &node{})
	stop := testutil.Go(t.Context(), s.Run)
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	req, _ := http.NewRequest("GET", fmt.Sprintf("https://127.0.0.1:%d/healthz", s.Port()), nil)
	req.Header.Set("Authorization", "Bearer reader")
	resp, err := c.Do(req)
	testutil.Must(t, err)
	body, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if string(body) != "ok" {
		t.Errorf("%s %q", resp.Status, body)
	}
	if err := stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
}

func TestConfigNamesWhatIsMissing(t *testing.T) {
	_, err := New(Config{NodeName: "n"})
	if err == nil || !strings.Contains(err.Error(), "Listener") || !strings.Contains(err.Error(), "Authenticator") {
		t.Errorf("%v", err)
	}
}
