package cluster

import (
	"context"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/bowline-k8s/bowline/cluster/clustertest"
	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/provider/clusterwide"
	"github.com/bowline-k8s/bowline/syncloop/owner"
)

// Nodes of one cluster share what is the same for all, however each authenticates.
func TestNodesOfOneClusterShare(t *testing.T) {
	s := impersonating(t, nil, "system:node:n1", "system:nodes")
	as := clustertest.APIServer(t, "system:node:n1", 0, clustertest.GoodVersion).Config.Handler
	impersonated := s.Config.Handler
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Impersonate-User") != "" {
			impersonated.ServeHTTP(w, r)
			return
		}
		as.ServeHTTP(w, r)
	})
	file := clustertest.Kubeconfig(t, s.URL, s.Certificate(), nil, nil)
	byKubeconfig, byImpersonation := clustertest.HostWith(file), impersonate(t, s)
	var found []clusterwide.Cluster
	for _, h := range []*config.Host{byKubeconfig, byImpersonation} {
		c, err := Connect(t.Context(), h, "n1", nil, Counts{})
		testutil.Must(t, err)
		found = append(found, c.Shared)
		c.Close()
	}
	if found[0] != found[1] || found[0].UID != "u1" || found[0].Server == "" || found[0].Trust == "" {
		t.Errorf("two nodes of one cluster: %+v", found)
	}
}

// Everything that distinguishes API servers separates their nodes.
func TestClustersDoNotShare(t *testing.T) {
	now := time.Now()
	ca, _ := clustertest.ClientCertificate(t, now, now.Add(time.Hour)) // only its bytes matter
	otherCA, _ := clustertest.ClientCertificate(t, now, now.Add(time.Hour))
	base := func() *rest.Config {
		return &rest.Config{Host: "https://a.example:6443", TLSClientConfig: rest.TLSClientConfig{CAData: slices.Clone(ca)}}
	}
	file := filepath.Join(t.TempDir(), "ca.crt")
	testutil.Must(t, os.WriteFile(file, ca, 0o600))
	first, err := sharedBy(base(), "u1")
	testutil.Must(t, err)
	for name, c := range map[string]struct {
		uid    string
		change func(*rest.Config)
		same   bool
	}{
		"nothing else":     {"u1", func(*rest.Config) {}, true},
		"a slash":          {"u1", func(r *rest.Config) { r.Host += "/" }, true},
		"its CA in a file": {"u1", func(r *rest.Config) { r.CAData, r.CAFile = nil, file }, true},
		"a credential":     {"u1", func(r *rest.Config) { r.BearerToken = "t" }, true},
		"a UID":            {"u2", func(*rest.Config) {}, false},
		"an address":       {"u1", func(r *rest.Config) { r.Host = "https://b.example:6443" }, false},
		"a port":           {"u1", func(r *rest.Config) { r.Host = "https://a.example:6444" }, false},
		"another CA":       {"u1", func(r *rest.Config) { r.CAData = otherCA }, false},
		"one CA more":      {"u1", func(r *rest.Config) { r.CAData = append(r.CAData, otherCA...) }, false},
		"the system's CAs": {"u1", func(r *rest.Config) { r.CAData = nil }, false},
		"no verification":  {"u1", func(r *rest.Config) { r.CAData, r.Insecure = nil, true }, false},
		"a server's name":  {"u1", func(r *rest.Config) { r.ServerName = "b.example" }, false},
		"a proxy": {"u1", func(r *rest.Config) {
			r.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: "proxy.example:3128"})
		}, false},
	} {
		r := base()
		c.change(r)
		got, err := sharedBy(r, c.uid)
		if err != nil || (got == first) != c.same {
			t.Errorf("%s: %+v beside %+v: %v", name, got, first, err)
		}
	}
}

// TestOneClusterOfManyWitnesses: nodes that connected before and after the Service was recreated,
// and while it was missing, share one cluster, and another cluster behind the same address does not.
func TestOneClusterOfManyWitnesses(t *testing.T) {
	var i identities
	at := clusterwide.Cluster{Server: "https://a.example:6443", Trust: "ca"}
	for _, c := range []struct {
		what      string
		witnesses []string
		want      string
	}{
		{"a node without a Node", []string{"u1", ""}, "u1"},
		{"its Node is registered", []string{"u1", "node-1"}, "u1"},
		{"the Service is missing", []string{"", "node-1"}, "u1"},
		{"recreated, and it connects again", []string{"u2", "node-1"}, "u1"},
		{"recreated, a new node", []string{"u2", "node-2"}, "u1"},
		{"a recorded identity", []string{"u3", "node-3", "u1"}, "u1"},
		{"missing, a node that is recorded", []string{"", "node-4", "u2"}, "u1"},
		{"another cluster", []string{"u9", "node-9"}, "u9"},
		{"nothing", []string{"", ""}, ""},
	} {
		if got := i.of(at, c.witnesses...); got != (clusterwide.Cluster{UID: c.want, Server: at.Server, Trust: at.Trust}) {
			t.Errorf("%s: %+v, want %s", c.what, got, c.want)
		}
	}
	if other := i.of(clusterwide.Cluster{Server: "https://b.example:6443", Trust: "ca"}, "u2"); other.UID != "u2" {
		t.Errorf("by another address: %+v", other)
	}
}

// TestNodesShareAcrossServices: a node whose owner file records the cluster shares what others read,
// though the Service default/kubernetes was recreated or is missing.
func TestNodesShareAcrossServices(t *testing.T) {
	s := clustertest.APIServer(t, "system:node:n1", 0, clustertest.GoodVersion)
	answers := s.Config.Handler
	var missing atomic.Bool
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !missing.Load() || !answerWithoutService(w, r) {
			answers.ServeHTTP(w, r)
		}
	})
	h := clustertest.HostWith(clustertest.Kubeconfig(t, s.URL, s.Certificate(), nil, nil))
	connect := func(known *owner.Record) clusterwide.Cluster {
		t.Helper()
		c, err := Connect(t.Context(), h, "n1", func(context.Context) *owner.Record { return known }, Counts{})
		testutil.Must(t, err)
		defer c.Close()
		return c.Shared
	}
	first := owner.Record{Identity: owner.Identity{ClusterUID: "u0", NodeName: "n1"}, Witnesses: owner.Witnesses{Service: "u1", Node: "node-1"}}
	before := connect(&first) // u0 is the identity, and the Service is u1 by now
	missing.Store(true)
	if got := connect(&first); got != before {
		t.Errorf("while the Service is missing: %+v, not %+v", got, before)
	}
	missing.Store(false)
	if got := connect(nil); got != before {
		t.Errorf("a new host: %+v, not %+v", got, before)
	}
	// The owner file of another cluster joins nothing.
	if got := connect(&owner.Record{Identity: owner.Identity{ClusterUID: "u7", NodeName: "n1"}}); got != before {
		t.Errorf("a host of another cluster: %+v, not %+v", got, before)
	}
	if got := clusters.of(before, "u7"); got.UID != "u7" {
		t.Errorf("the other cluster is taken for this one: %+v", got)
	}
}
