package cluster

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cluster/clustertest"
	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/owner"
)

func TestConnectCluster(t *testing.T) {
	s := clustertest.APIServer(t, "system:node:n1", 0, clustertest.GoodVersion)
	c, err := Connect(t.Context(), clustertest.HostWith(clustertest.Kubeconfig(t, s.URL, s.Certificate(), nil, nil)), "n1", nil, Counts{})
	if err != nil || c.UID != "u1" || c.GitVersion != "v1.37.1" {
		t.Errorf("%+v %v", c, err)
	}
}

// If the owner file names a cluster, Connect does not fail when the API server does not
// answer. WaitForAPIServer accepts that cluster's API server later, and refuses another one's.
func TestAPIServerIsReadyLater(t *testing.T) {
	for name, c := range map[string]struct {
		known, user string
		Witnesses   owner.Witnesses
		noService   bool   // the Service default/kubernetes is missing; the Node is node-1
		runs        string // UID of a pod that runs on the host
		code        int    // status of the first answer; later ones are good
		want        string // error of WaitForAPIServer; empty: it succeeds
		refused     bool   // Connect fails
	}{
		"same cluster":          {known: "u1", user: "system:node:n1"},
		"a Service made later":  {known: "u0", Witnesses: owner.Witnesses{Service: "u1"}, user: "system:node:n1"},
		"its pod runs here":     {known: "u0", runs: "p1", user: "system:node:n1"},
		"its static pod does":   {known: "u0", runs: "static", user: "system:node:n1"},
		"other pods run here":   {known: "u0", runs: "p9", user: "system:node:n1", want: "is not cluster u0, but cluster u1"},
		"no Service, the Node":  {known: "u0", Witnesses: owner.Witnesses{Node: "node-1"}, noService: true, user: "system:node:n1"},
		"no Service, another":   {known: "u0", Witnesses: owner.Witnesses{Node: "node-2"}, noService: true, user: "system:node:n1", want: "is not cluster u0, but cluster without a UID (the Service default/kubernetes is missing)"},
		"another cluster":       {known: "u2", user: "system:node:n1", want: "is not cluster u2, but cluster u1"},
		"another's":             {known: "u1", user: "system:node:n2", want: `the credential belongs to "system:node:n2"`},
		"not accepted at first": {known: "u1", user: "system:node:n1", code: http.StatusUnauthorized},
		"forbidden at first":    {known: "u1", user: "system:node:n1", code: http.StatusForbidden},
		"no paths at first":     {known: "u1", user: "system:node:n1", code: http.StatusNotFound},
		"no owner file":         {known: "", refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := clustertest.APIServer(t, c.user, 0, clustertest.GoodVersion)
			answers := s.Config.Handler
			refuses := clustertest.APIServer(t, c.user, c.code, clustertest.GoodVersion).Config.Handler
			var away, refused atomic.Bool
			s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case away.Load():
					panic(http.ErrAbortHandler) // like a cut connection
				case c.code != 0 && r.URL.Path == "/version" && refused.CompareAndSwap(false, true):
					refuses.ServeHTTP(w, r)
				case c.noService && answerWithoutService(w, r):
				case r.URL.Path == "/api/v1/pods":
					w.Header().Set("Content-Type", "application/json")
					fmt.Fprintf(w, `{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[{"metadata":{"name":"a","uid":"p1"}},{"metadata":{"name":"b","uid":"m1","annotations":{%q:"static",%q:"then"}}}]}`,
						pod.AnnotationMirror, pod.AnnotationSeen)
				default:
					answers.ServeHTTP(w, r)
				}
			})
			away.Store(true)
			cl, err := Connect(t.Context(), clustertest.HostWith(clustertest.Kubeconfig(t, s.URL, s.Certificate(), nil, nil)), "n1", func(context.Context) *owner.Record {
				if c.known == "" {
					return nil
				}
				return &owner.Record{Identity: owner.Identity{ClusterUID: c.known, NodeName: "n1"}, Witnesses: c.Witnesses}
			}, Counts{})
			if c.refused {
				if err == nil || !strings.Contains(err.Error(), "does not answer") {
					t.Errorf("connected: %v", err)
				}
				return
			}
			if err != nil || cl.IsReady() || cl.UID != c.known {
				t.Fatalf("%+v, %v", cl, err)
			}
			for _, w := range []string{c.known, c.Witnesses.Service, c.Witnesses.Node} {
				if w != "" && !slices.Contains(cl.KnownBy(), w) {
					t.Errorf("known by %v, without %s", cl.KnownBy(), w)
				}
			}
			away.Store(false)
			rt := &sandboxList{{Labels: map[string]string{pod.LabelPodUID: c.runs, pod.LabelOwner: c.known + "/n1"},
				Annotations: map[string]string{pod.AnnotationSeen: "then"}}}
			err = cl.WaitForAPIServer(t.Context(), "n1", rt)
			switch {
			case c.want == "" && (err != nil || !cl.IsReady()):
				t.Errorf("ready %v: %v", cl.IsReady(), err)
			case c.want == "" && (cl.Witnesses.Node == "" == c.noService || cl.Claim("n1").Pods == nil):
				t.Errorf("what the next claim knows: %+v", cl.Witnesses)
			case c.want != "" && (err == nil || cl.IsReady() || !strings.Contains(err.Error(), c.want)):
				t.Errorf("ready %v: %v, want %q", cl.IsReady(), err, c.want)
			}
		})
	}
}

// sandboxList is a runtime with these sandboxes.
type sandboxList []*runtimeapi.PodSandbox

func (l *sandboxList) ListPodSandbox(context.Context, *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	return *l, nil
}

// answerWithoutService answers for a cluster whose Service default/kubernetes was deleted.
func answerWithoutService(w http.ResponseWriter, r *http.Request) bool {
	w.Header().Set("Content-Type", "application/json")
	switch r.URL.Path {
	case "/api/v1/namespaces/default/services/kubernetes":
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":404,"reason":"NotFound"}`)
	case "/api/v1/nodes/n1":
		fmt.Fprint(w, `{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1","uid":"node-1"}}`)
	default:
		return false
	}
	return true
}

// A missing Service does not matter if the Node exists. A host that is no node yet needs the
// Service.
func TestConnectClusterWithoutTheService(t *testing.T) {
	s := clustertest.APIServer(t, "system:node:n1", 0, clustertest.GoodVersion)
	answers := s.Config.Handler
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !answerWithoutService(w, r) {
			answers.ServeHTTP(w, r)
		}
	})
	c, err := Connect(t.Context(), clustertest.HostWith(clustertest.Kubeconfig(t, s.URL, s.Certificate(), nil, nil)), "n1", nil, Counts{})
	if err != nil || c.UID != "" || c.Claim("n1").Witnesses.Node != "node-1" || !strings.Contains(c.Shared.UID, "node-1") {
		t.Errorf("%+v %v", c, err)
	}
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/nodes/n1" && answerWithoutService(w, r) {
			return
		}
		answers.ServeHTTP(w, r)
	})
	if _, err = Connect(t.Context(), clustertest.HostWith(clustertest.Kubeconfig(t, s.URL, s.Certificate(), nil, nil)), "n1", nil, Counts{}); err == nil || !strings.Contains(err.Error(), "which identifies the cluster") {
		t.Errorf("no Service and no Node: %v", err)
	}
}

// An answer of the API server does not count as absence.
func TestIsUnavailable(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		away bool
	}{
		"refused connection": {&url.Error{Op: "Get", Err: syscall.ECONNREFUSED}, true},
		"too late":           {context.DeadlineExceeded, true},
		"it starts":          {apierrors.NewServiceUnavailable("no"), true},
		"forbidden":          {apierrors.NewForbidden(schema.GroupResource{}, "n", nil), false},
		"another kind":       {errors.New("what answers is no API server"), false},
		"untrusted":          {x509.UnknownAuthorityError{}, false},
	} {
		if got := isUnavailable(fmt.Errorf("wrapped: %w", c.err)); got != c.away {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Each failure of the first exchange gives one sentence that names the file and the problem.
func TestConnectClusterSentences(t *testing.T) {
	good := clustertest.APIServer(t, "system:node:n1", 0, clustertest.GoodVersion)
	dead := httptest.NewTLSServer(http.NotFoundHandler())
	deadURL, deadCA := dead.URL, dead.Certificate()
	dead.Close()
	now := time.Now()
	expiredCert, expiredKey := clustertest.ClientCertificate(t, now.Add(-2*time.Hour), now.Add(-time.Hour))
	futureCert, futureKey := clustertest.ClientCertificate(t, now.Add(time.Hour), now.Add(2*time.Hour))
	other := clustertest.APIServer(t, "system:node:n2", 0, clustertest.GoodVersion)
	refuses := clustertest.APIServer(t, "", http.StatusUnauthorized, "")
	noServer := clustertest.APIServer(t, "", 0, `{"hello": "world"}`)
	for name, c := range map[string]struct{ file, want string }{
		"no file":           {"/nowhere/kubeconfig", "no such file"},
		"dead server":       {clustertest.Kubeconfig(t, deadURL, deadCA, nil, nil), "does not answer"},
		"refused":           {clustertest.Kubeconfig(t, refuses.URL, refuses.Certificate(), nil, nil), "does not accept this credential: the server has asked for the client to provide credentials. Issue a new one for system:node:n1"},
		"other's":           {clustertest.Kubeconfig(t, other.URL, other.Certificate(), nil, nil), `the credential belongs to "system:node:n2"`},
		"expired":           {clustertest.Kubeconfig(t, good.URL, good.Certificate(), expiredCert, expiredKey), "expired on"},
		"not yet valid":     {clustertest.Kubeconfig(t, good.URL, good.Certificate(), futureCert, futureKey), "Check the clock of this machine"},
		"untrusted":         {clustertest.Kubeconfig(t, good.URL, nil, nil, nil), "is not trusted"},
		"not an API server": {clustertest.Kubeconfig(t, noServer.URL, noServer.Certificate(), nil, nil), "is not an API server"},
	} {
		_, err := Connect(t.Context(), clustertest.HostWith(c.file), "n1", nil, Counts{})
		if err == nil {
			t.Errorf("%s: connected", name)
			continue
		}
		got := hint.Text(err)
		if !strings.Contains(got, c.want) || !strings.HasPrefix(got, "kubeconfig "+c.file+": ") || strings.Contains(got, "\n") {
			t.Errorf("%s: %q, want one line with %q", name, got, c.want)
		}
	}
}

// The wait for a server that accepts the connection and says nothing is bounded. A process that is
// asked to stop does not wait at all.
func TestConnectClusterStops(t *testing.T) {
	released := make(chan struct{})
	s := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-released }))
	defer s.Close()
	defer close(released)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	file := clustertest.Kubeconfig(t, s.URL, s.Certificate(), nil, nil)
	go func() {
		_, err := Connect(ctx, clustertest.HostWith(file), "n1", nil, Counts{})
		done <- err
	}()
	cancel()
	select {
	case err := <-done:
		if err == nil {
			t.Error("connected")
		}
	case <-time.After(firstAnswer / 2):
		t.Error("it continues waiting")
	}
}
