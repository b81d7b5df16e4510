package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/owner"
)

// apiServer answers as an API server does; code refuses every request with it.
func apiServer(t *testing.T, user string, code int, version string) *httptest.Server {
	t.Helper()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if code != 0 {
			w.WriteHeader(code)
			fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":%d,"reason":%q}`, code, strings.ReplaceAll(http.StatusText(code), " ", ""))
			return
		}
		switch {
		case r.URL.Path == "/version":
			fmt.Fprint(w, version)
		case strings.HasSuffix(r.URL.Path, "/selfsubjectreviews"):
			fmt.Fprintf(w, `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1","status":{"userInfo":{"username":%q}}}`, user)
		case r.URL.Path == "/api/v1/namespaces/default/services/kubernetes":
			fmt.Fprint(w, `{"kind":"Service","apiVersion":"v1","metadata":{"name":"kubernetes","uid":"u1"}}`)
		case r.URL.Path == "/api/v1/nodes/n1":
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":404,"reason":"NotFound"}`)
		default:
			t.Errorf("asked for %s", r.URL.Path)
		}
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // a client that does not trust it is one of the cases
	t.Cleanup(s.Close)
	return s
}

// kubeconfig writes one for the server; trusted leaves its CA in.
func kubeconfig(t *testing.T, server string, ca *x509.Certificate, clientCert, clientKey []byte) string {
	t.Helper()
	cluster, user := map[string]any{"server": server}, map[string]any{"token": "t"}
	if ca != nil {
		cluster["certificate-authority-data"] = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw})
	}
	if clientCert != nil {
		user = map[string]any{"client-certificate-data": clientCert, "client-key-data": clientKey}
	}
	data, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "x",
		"clusters": []any{map[string]any{"name": "x", "cluster": cluster}},
		"users":    []any{map[string]any{"name": "x", "user": user}},
		"contexts": []any{map[string]any{"name": "x", "context": map[string]any{"cluster": "x", "user": "x"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// clientCertificate is one of system:node:n1, good between two times.
func clientCertificate(t *testing.T, from, to time.Time) (cert, key []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "system:node:n1"}, NotBefore: from, NotAfter: to}
	der, err := x509.CreateCertificate(rand.Reader, template, template, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
}

// hostWith is a host whose credential is in the file.
func hostWith(file string) *config.Host {
	return &config.Host{Kubeconfig: file, NodeSettings: config.NodeSettings{Identity: config.Identity{Mode: config.IdentityKubeconfig}}}
}

const goodVersion = `{"major":"1","minor":"37","gitVersion":"v1.37.1"}`

func TestConnectCluster(t *testing.T) {
	s := apiServer(t, "system:node:n1", 0, goodVersion)
	c, err := connectCluster(t.Context(), hostWith(kubeconfig(t, s.URL, s.Certificate(), nil, nil)), "n1", nil)
	if err != nil || c.uid != "u1" || c.gitVersion != "v1.37.1" {
		t.Errorf("%+v %v", c, err)
	}
}

// An API server that does not answer is waited for where the machine says of which cluster
// it is; what it answers then is believed, and another cluster's is refused.
func TestAPIServerIsMetLater(t *testing.T) {
	for name, c := range map[string]struct {
		known, user string
		witnesses   owner.Witnesses
		noService   bool   // the Service default/kubernetes is missing; the Node is node-1
		runs        string // UID of a pod of this machine
		code        int    // of the first answer; the later ones are good
		want        string // of meeting; empty: it is met
		refused     bool   // at once
	}{
		"same cluster":          {known: "u1", user: "system:node:n1"},
		"a Service made later":  {known: "u0", witnesses: owner.Witnesses{Service: "u1"}, user: "system:node:n1"},
		"its pod runs here":     {known: "u0", runs: "p1", user: "system:node:n1"},
		"its static pod does":   {known: "u0", runs: "static", user: "system:node:n1"},
		"other pods run here":   {known: "u0", runs: "p9", user: "system:node:n1", want: "is of cluster u1, and the machine is a node of cluster u0"},
		"no Service, the Node":  {known: "u0", witnesses: owner.Witnesses{Node: "node-1"}, noService: true, user: "system:node:n1"},
		"no Service, another":   {known: "u0", witnesses: owner.Witnesses{Node: "node-2"}, noService: true, user: "system:node:n1", want: "the machine is a node of cluster u0"},
		"another cluster":       {known: "u2", user: "system:node:n1", want: "is of cluster u1, and the machine is a node of cluster u2"},
		"another's":             {known: "u1", user: "system:node:n2", want: `the credential is of "system:node:n2"`},
		"not accepted at first": {known: "u1", user: "system:node:n1", code: http.StatusUnauthorized},
		"forbidden at first":    {known: "u1", user: "system:node:n1", code: http.StatusForbidden},
		"no paths at first":     {known: "u1", user: "system:node:n1", code: http.StatusNotFound},
		"no owner file":         {known: "", refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := apiServer(t, c.user, 0, goodVersion)
			answers := s.Config.Handler
			refuses := apiServer(t, c.user, c.code, goodVersion).Config.Handler
			var away, refused atomic.Bool
			s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case away.Load():
					panic(http.ErrAbortHandler) // as a connection that is cut
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
			cl, err := connectCluster(t.Context(), hostWith(kubeconfig(t, s.URL, s.Certificate(), nil, nil)), "n1", func(context.Context) *owner.Record {
				if c.known == "" {
					return nil
				}
				return &owner.Record{Identity: owner.Identity{ClusterUID: c.known, NodeName: "n1"}, Witnesses: c.witnesses}
			})
			if c.refused {
				if err == nil || !strings.Contains(err.Error(), "does not answer") {
					t.Errorf("connected: %v", err)
				}
				return
			}
			if err != nil || cl.isMet() || cl.uid != c.known {
				t.Fatalf("%+v, %v", cl, err)
			}
			away.Store(false)
			rt := &sandboxList{{Labels: map[string]string{pod.LabelPodUID: c.runs, pod.LabelOwner: c.known + "/n1"},
				Annotations: map[string]string{pod.AnnotationSeen: "then"}}}
			err = cl.meet(t.Context(), "n1", rt)
			switch {
			case c.want == "" && (err != nil || !cl.isMet()):
				t.Errorf("met %v: %v", cl.isMet(), err)
			case c.want == "" && (cl.witnesses.Node == "" == c.noService || cl.claim("n1").Pods == nil):
				t.Errorf("what the next claim knows: %+v", cl.witnesses)
			case c.want != "" && (err == nil || cl.isMet() || !strings.Contains(err.Error(), c.want)):
				t.Errorf("met %v: %v, want %q", cl.isMet(), err, c.want)
			}
		})
	}
}

// sandboxList is a runtime that has them.
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

// A missing Service stops no node that is there; a machine that is none yet needs it.
func TestConnectClusterWithoutTheService(t *testing.T) {
	s := apiServer(t, "system:node:n1", 0, goodVersion)
	answers := s.Config.Handler
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !answerWithoutService(w, r) {
			answers.ServeHTTP(w, r)
		}
	})
	c, err := connectCluster(t.Context(), hostWith(kubeconfig(t, s.URL, s.Certificate(), nil, nil)), "n1", nil)
	if err != nil || c.uid != "" || c.claim("n1").Witnesses.Node != "node-1" || !strings.Contains(c.shared.UID, "node-1") {
		t.Errorf("%+v %v", c, err)
	}
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/nodes/n1" && answerWithoutService(w, r) {
			return
		}
		answers.ServeHTTP(w, r)
	})
	if _, err = connectCluster(t.Context(), hostWith(kubeconfig(t, s.URL, s.Certificate(), nil, nil)), "n1", nil); err == nil || !strings.Contains(err.Error(), "which tells clusters apart") {
		t.Errorf("no Service and no Node: %v", err)
	}
}

// What was answered is no absence.
func TestIsAway(t *testing.T) {
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
		if got := isAway(fmt.Errorf("wrapped: %w", c.err)); got != c.away {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Each way a first answer can fail is one sentence that names the file and says
// what is wrong.
func TestConnectClusterSentences(t *testing.T) {
	good := apiServer(t, "system:node:n1", 0, goodVersion)
	dead := httptest.NewTLSServer(http.NotFoundHandler())
	deadURL, deadCA := dead.URL, dead.Certificate()
	dead.Close()
	now := time.Now()
	expiredCert, expiredKey := clientCertificate(t, now.Add(-2*time.Hour), now.Add(-time.Hour))
	futureCert, futureKey := clientCertificate(t, now.Add(time.Hour), now.Add(2*time.Hour))
	other := apiServer(t, "system:node:n2", 0, goodVersion)
	refuses := apiServer(t, "", http.StatusUnauthorized, "")
	noServer := apiServer(t, "", 0, `{"hello": "world"}`)
	for name, c := range map[string]struct{ file, want string }{
		"no file":       {"/nowhere/kubeconfig", "no such file"},
		"dead server":   {kubeconfig(t, deadURL, deadCA, nil, nil), "does not answer"},
		"refused":       {kubeconfig(t, refuses.URL, refuses.Certificate(), nil, nil), "does not accept this credential; issue a new one for system:node:n1"},
		"other's":       {kubeconfig(t, other.URL, other.Certificate(), nil, nil), `the credential is of "system:node:n2"`},
		"expired":       {kubeconfig(t, good.URL, good.Certificate(), expiredCert, expiredKey), "expired on"},
		"not yet valid": {kubeconfig(t, good.URL, good.Certificate(), futureCert, futureKey), "is this machine's clock right?"},
		"untrusted":     {kubeconfig(t, good.URL, nil, nil, nil), "is not to be trusted"},
		"no API server": {kubeconfig(t, noServer.URL, noServer.Certificate(), nil, nil), "is no API server"},
	} {
		_, err := connectCluster(t.Context(), hostWith(c.file), "n1", nil)
		if err == nil {
			t.Errorf("%s: connected", name)
			continue
		}
		got := err.Error()
		if !strings.Contains(got, c.want) || !strings.HasPrefix(got, "kubeconfig "+c.file+": ") || strings.Contains(got, "\n") {
			t.Errorf("%s: %q, want one line with %q", name, got, c.want)
		}
	}
}

// A server that takes the connection and says nothing is not waited for for ever,
// and a process that is told to stop does not wait at all.
func TestConnectClusterStops(t *testing.T) {
	released := make(chan struct{})
	s := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-released }))
	defer s.Close()
	defer close(released)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	file := kubeconfig(t, s.URL, s.Certificate(), nil, nil)
	go func() {
		_, err := connectCluster(ctx, hostWith(file), "n1", nil)
		done <- err
	}()
	cancel()
	select {
	case err := <-done:
		if err == nil {
			t.Error("connected")
		}
	case <-time.After(firstAnswer / 2):
		t.Error("it goes on waiting")
	}
}
