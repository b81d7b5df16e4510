package cluster

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/bowline-k8s/bowline/cluster/clustertest"
	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/provider"
)

// impersonating is an API server with an account that may impersonate the users and groups in
// allowed. It refuses others with the API server's message. node, if not nil, is its Node object.
func impersonating(t *testing.T, node *v1.Node, allowed ...string) *httptest.Server {
	t.Helper()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		status := func(code int, reason, message string) {
			w.WriteHeader(code)
			fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":%d,"reason":%q,"message":%q}`, code, reason, message)
		}
		user := r.Header.Get("Impersonate-User")
		for kind, names := range map[string][]string{"users": {user}, "groups": r.Header.Values("Impersonate-Group")} {
			for _, name := range names {
				if !strings.Contains(" "+strings.Join(allowed, " ")+" ", " "+name+" ") {
					status(http.StatusForbidden, "Forbidden", fmt.Sprintf(`%s %q is forbidden: User "sa" cannot impersonate resource %q`, kind, name, kind))
					return
				}
			}
		}
		switch {
		case r.URL.Path == "/version":
			fmt.Fprint(w, clustertest.GoodVersion)
		case strings.HasSuffix(r.URL.Path, "/selfsubjectreviews"):
			fmt.Fprintf(w, `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1","status":{"userInfo":{"username":%q}}}`, user)
		case r.URL.Path == "/api/v1/namespaces/default/services/kubernetes":
			fmt.Fprint(w, `{"kind":"Service","apiVersion":"v1","metadata":{"name":"kubernetes","uid":"u1"}}`)
		case r.URL.Path == "/api/v1/nodes/n1" && r.Method == http.MethodGet:
			if node == nil {
				status(http.StatusNotFound, "NotFound", "no such node")
				return
			}
			_ = json.NewEncoder(w).Encode(node)
		default:
			t.Errorf("%s %s", r.Method, r.URL.Path)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func impersonate(t *testing.T, s *httptest.Server) *config.Host {
	h := clustertest.HostWith(clustertest.Kubeconfig(t, s.URL, s.Certificate(), nil, nil))
	h.Identity.Mode = config.IdentityImpersonate
	return h
}

func TestImpersonate(t *testing.T) {
	s := impersonating(t, nil, "system:node:n1", "system:nodes")
	c, err := Connect(t.Context(), impersonate(t, s), "n1", nil, Counts{})
	testutil.Must(t, err)
	defer c.Close()
	if c.UID != "u1" {
		t.Errorf("%+v", c)
	}
	for what, made := range map[string]any{"events": c.Rest, "leases": provider.LeaseREST(c.Rest)} {
		if text := fmt.Sprintf("%+v", made); !strings.Contains(text, "system:node:n1") || !strings.Contains(text, "system:nodes") {
			t.Errorf("%s are not written as the node: %s", what, text)
		}
	}
}

// Insufficient rights give one sentence with the rules that suffice.
func TestImpersonateWithoutTheRight(t *testing.T) {
	for _, allowed := range [][]string{nil, {"system:node:n2", "system:nodes"}, {"system:node:n1"}, {"system:nodes"}} {
		_, err := Connect(t.Context(), impersonate(t, impersonating(t, nil, allowed...)), "n1", nil, Counts{})
		if err == nil {
			t.Errorf("with %v it connected", allowed)
			continue
		}
		_, text, _ := strings.Cut(hint.Of(err), "with the rules ")
		text, _, _ = strings.Cut(text, " (")
		var rules []rbacv1.PolicyRule
		if err := yaml.UnmarshalStrict([]byte(text), &rules); err != nil {
			t.Fatalf("the rules cannot be pasted: %v", err)
		}
		want := map[string]string{"users": "system:node:n1", "groups": "system:nodes"}
		for _, r := range rules {
			if len(r.Resources) != 1 || len(r.ResourceNames) != 1 || len(r.Verbs) != 1 || want[r.Resources[0]] != r.ResourceNames[0] || r.Verbs[0] != "impersonate" || len(r.APIGroups) != 1 || r.APIGroups[0] != "" {
				t.Errorf("a rule is %+v", r)
			}
			delete(want, r.Resources[0])
		}
		if len(want) > 0 || !strings.Contains(err.Error(), "cannot impersonate resource") || strings.Contains(err.Error(), "\n") {
			t.Errorf("with %v it says %q; not named: %v", allowed, err, want)
		}
	}
}

// A Node that another agent reports is refused before anything is done.
func TestForeignNodeIsRefused(t *testing.T) {
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: v1.NodeStatus{NodeInfo: v1.NodeSystemInfo{KubeletVersion: "v1.37.1", OSImage: "Debian"}}}
	node.APIVersion, node.Kind = "v1", "Node"
	s := impersonating(t, node, "system:node:n1", "system:nodes")
	_, err := Connect(t.Context(), impersonate(t, s), "n1", nil, Counts{})
	if err == nil || !strings.Contains(err.Error(), `already has a node "n1" that does not belong to Bowline (kubelet v1.37.1, Debian`) || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v", err)
	}
	node.Annotations = map[string]string{provider.AnnotationDriver: "bowline"}
	c, err := Connect(t.Context(), impersonate(t, s), "n1", nil, Counts{})
	if err != nil {
		t.Fatalf("its own is refused: %v", err)
	}
	c.Close()
}
