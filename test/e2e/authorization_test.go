package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// nodeRequests are requests to the node's API, with the subresources of nodes any of which permits them.
// None changes anything: those that could are for a pod that does not exist. permissions_test.go of
// provider/api has every route; nodeRequests has each path that /statusz lists, and each kind of the others.
var nodeRequests = []struct{ method, path, permit string }{
	{"GET", "/healthz", "healthz,proxy"},
	{"GET", "/healthz/syncloop", "healthz,proxy"},
	{"GET", "/pods", "pods,proxy"},
	{"GET", "/runningpods", "pods,proxy"},
	{"GET", "/configz", "configz,proxy"},
	{"GET", "/flagz", "configz"},
	{"GET", "/statusz", "statusz"},
	{"GET", "/metrics", "metrics"},
	{"GET", "/metrics/cadvisor", "metrics"},
	{"GET", "/metrics/resource", "metrics"},
	{"GET", "/metrics/probes", "metrics"},
	{"GET", "/metrics/slis", "metrics"},
	{"GET", "/stats/", "stats"},
	{"GET", "/stats/summary", "stats"},
	{"POST", "/stats/summary", "stats"},
	{"GET", "/logs/", "log"},
	{"GET", "/logs/?query=kubelet&tailLines=1", "log"},
	{"POST", "/checkpoint/NS/none/main", "checkpoint"},
	{"GET", "/containerLogs/NS/none/main", "proxy"},
	{"POST", "/exec/NS/none/main?command=id&output=1", "proxy"},
	{"GET", "/exec/NS/none/main?command=id&output=1", "proxy"},
	{"POST", "/attach/NS/none/main?output=1", "proxy"},
	{"GET", "/attach/NS/none/main?output=1", "proxy"},
	{"POST", "/portForward/NS/none", "proxy"},
	{"GET", "/portForward/NS/none", "proxy"},
	{"POST", "/run/NS/none/main?cmd=id", "proxy"},
	{"GET", "/debug/pprof/", "proxy"},
	{"PUT", "/debug/flags/v", "proxy"},
	{"GET", "/bowline/v1/why/NS/none", "proxy"},
	{"GET", "/allocatedPods", "proxy"}, // its feature gate is off, so it is any unknown path
	{"GET", "/no/such/path", "proxy"},
}

// portClient is a client of the node's port, with a certificate or without one.
func portClient(t *testing.T, pair *labtest.KeyPair) *http.Client {
	t.Helper()
	// These tests do not verify the node's identity.
	config := &tls.Config{InsecureSkipVerify: true}
	if pair != nil {
		cert, err := tls.LoadX509KeyPair(pair.Cert, pair.Key)
		testutil.Must(t, err)
		config.Certificates = []tls.Certificate{cert}
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}, Timeout: 20 * time.Second}
}

// codeOf returns the status code of a request; token, if not empty, is the bearer token.
func codeOf(t *testing.T, client *http.Client, method, url, token string) int {
	t.Helper()
	code, _ := reply(t, client, method, url, token)
	return code
}

// reply returns the status code and the text of the answer to a request.
func reply(t *testing.T, client *http.Client, method, url, token string) (int, string) {
	t.Helper()
	code, text, err := send(t.Context(), client, method, url, token)
	if err != nil {
		t.Errorf("%s %s: %v", method, url, err)
	}
	return code, text
}

// statusz returns the node's page of that name. The API server's own role has no right to it, as
// with a kubelet.
func statusz(t *testing.T, base string) (text string) {
	t.Helper()
	client, token := portClient(t, nil), caller(t, namespace(t), "statusz")
	until(t, "/statusz", func(ctx context.Context) (err error) {
		var code int
		if code, text, err = send(ctx, client, http.MethodGet, base+"/statusz", token); err == nil && code != http.StatusOK {
			err = fmt.Errorf("code %d: %s", code, text)
		}
		return err
	})
	return text
}

// caller makes a service account that may use a subresource of nodes, or none, and returns its token.
func caller(t *testing.T, ns, subresource string) string {
	t.Helper()
	name := "may-" + subresource
	kubectl(t, "create", "serviceaccount", "-n", ns, name)
	if subresource != "nothing" {
		role := ns + "-" + subresource
		kubectl(t, "create", "clusterrole", role, "--verb=get,create,update", "--resource=nodes/"+subresource)
		kubectl(t, "create", "clusterrolebinding", role, "--clusterrole="+role, "--serviceaccount="+ns+":"+name)
		t.Cleanup(func() {
			_ = lab.Client.RbacV1().ClusterRoles().Delete(context.Background(), role, metav1.DeleteOptions{})
			_ = lab.Client.RbacV1().ClusterRoleBindings().Delete(context.Background(), role, metav1.DeleteOptions{})
		})
	}
	token, err := lab.Client.CoreV1().ServiceAccounts(ns).CreateToken(t.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	testutil.Must(t, err)
	return token.Status.Token
}

// The node's port serves only authorized clients: each request of each caller is permitted by one of its
// subresources, and by no other.
func TestNodePortAuthorization(t *testing.T) {
	parallel(t)
	ns := namespace(t)
	create(t, ns, brief("secret", `containers: [{name: main, image: $TOOLBOX, command: [sh, -c, "echo told; sleep inf"]}]`))
	ready(t, ns, "secret")
	base, plain, api := "https://"+nodeAddress(t), portClient(t, nil), portClient(t, &lab.Status.Cluster.KubeletClient)
	callers := map[string]string{}
	for _, subresource := range []string{"nothing", "healthz", "pods", "configz", "statusz", "metrics", "stats", "log", "checkpoint", "proxy"} {
		callers[subresource] = caller(t, ns, subresource)
	}
	until(t, "the last caller's rights are known", func(ctx context.Context) error {
		code, _, err := send(ctx, plain, http.MethodGet, base+"/pods", callers["proxy"])
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("code %d", code)
		}
		return err
	})
	for _, r := range nodeRequests {
		url := base + strings.ReplaceAll(r.path, "NS", ns)
		for _, token := range []string{"", "no-token-of-anybody"} {
			if code := codeOf(t, plain, r.method, url, token); code != http.StatusUnauthorized {
				t.Errorf("%s %s with the token %q: %d", r.method, r.path, token, code)
			}
		}
		for subresource, token := range callers {
			permitted := slices.Contains(strings.Split(r.permit, ","), subresource)
			code := codeOf(t, plain, r.method, url, token)
			if denied := code == http.StatusForbidden || code == http.StatusUnauthorized; denied == permitted || code == 0 {
				t.Errorf("%s %s of one who may use %s: %d", r.method, r.path, subresource, code)
			}
		}
		// The API server itself is known by its certificate. Its role (system:kubelet-api-admin) lacks two
		// subresources.
		denied := r.permit == "statusz" || r.permit == "checkpoint"
		if code := codeOf(t, api, r.method, url, ""); (code == http.StatusForbidden) != denied || code == http.StatusUnauthorized {
			t.Errorf("%s %s of the API server: %d", r.method, r.path, code)
		}
	}
	// A refused caller learns nothing of a pod that exists.
	for _, path := range []string{"/containerLogs/" + ns + "/secret/main", "/run/" + ns + "/secret/main?cmd=id", "/bowline/v1/why/" + ns + "/secret"} {
		get(t, t.Context(), plain, base+path, "", http.StatusUnauthorized)
		get(t, t.Context(), plain, base+path, callers["pods"], http.StatusForbidden)
	}
	until(t, "the log has what was printed", func(ctx context.Context) error {
		code, got, err := send(ctx, api, http.MethodGet, base+"/containerLogs/"+ns+"/secret/main", "")
		if err == nil && (code != http.StatusOK || got != "told\n") {
			err = fmt.Errorf("it is %q with code %d", got, code)
		}
		return err
	})
	contains(t, "the pods", get(t, t.Context(), plain, base+"/pods", callers["pods"], http.StatusOK), `"secret"`)
}

// Each path that the node's /statusz lists is among the requests of TestNodePortAuthorization.
func TestNodePortPathsAreKnown(t *testing.T) {
	parallel(t)
	text := statusz(t, "https://"+nodeAddress(t))
	_, list, found := strings.Cut(text, "Paths: ")
	if !found {
		t.Fatalf("/statusz lists no paths: %s", text)
	}
	for _, p := range strings.Fields(list) {
		if !slices.ContainsFunc(nodeRequests, func(r struct{ method, path, permit string }) bool { return r.path == p }) {
			t.Errorf("nodeRequests lacks %s", p)
		}
	}
}
