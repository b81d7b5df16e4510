package cluster

import (
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/bowline-k8s/bowline/cluster/clustertest"
	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/provider/clusterwide"
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
		c, err := Connect(t.Context(), h, "n1", nil)
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
