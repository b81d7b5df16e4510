package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// permissions has the subresources of nodes/<this node> that each request needs on the 1.37 kubelet, any of
// which permits it. It has each method of each path.
var permissions = []struct{ method, path, want string }{
	{"GET", "/healthz", "healthz,proxy"},
	{"GET", "/healthz/syncloop", "healthz,proxy"},
	{"HEAD", "/healthz", "healthz,proxy"},
	{"HEAD", "/healthz/syncloop", "healthz,proxy"},
	{"GET", "/pods", "pods,proxy"},
	{"GET", "/pods/", "pods,proxy"},
	{"GET", "/runningpods", "pods,proxy"},
	{"GET", "/runningpods/", "pods,proxy"},
	{"GET", "/allocatedPods", "pods,proxy"},
	{"GET", "/allocatedPods/", "pods,proxy"},
	{"GET", "/allocatedPods/shop/web", "pods,proxy"},
	{"GET", "/allocatedPods/shop/web/u1", "pods,proxy"},
	{"GET", "/configz", "configz,proxy"},
	{"GET", "/flagz", "configz"},
	{"GET", "/statusz", "statusz"},
	{"GET", "/metrics", "metrics"},
	{"GET", "/metrics/cadvisor", "metrics"},
	{"GET", "/metrics/resource", "metrics"},
	{"GET", "/metrics/probes", "metrics"},
	{"GET", "/metrics/slis", "metrics"},
	{"GET", "/stats/summary", "stats"},
	{"POST", "/stats/summary", "stats"},
	{"GET", "/stats/", "stats"},
	{"POST", "/stats/container", "stats"},
	{"GET", "/logs/", "log"},
	{"GET", "/logs/syslog", "log"},
	{"POST", "/checkpoint/shop/web/app", "checkpoint"},
	{"GET", "/containerLogs/shop/web/app", "proxy"},
	{"GET", "/exec/shop/web/app", "proxy"},
	{"POST", "/exec/shop/web/app", "proxy"},
	{"GET", "/exec/shop/web/u1/app", "proxy"},
	{"POST", "/exec/shop/web/u1/app", "proxy"},
	{"GET", "/attach/shop/web/app", "proxy"},
	{"POST", "/attach/shop/web/app", "proxy"},
	{"GET", "/attach/shop/web/u1/app", "proxy"},
	{"POST", "/attach/shop/web/u1/app", "proxy"},
	{"GET", "/portForward/shop/web", "proxy"},
	{"POST", "/portForward/shop/web", "proxy"},
	{"GET", "/portForward/shop/web/u1", "proxy"},
	{"POST", "/portForward/shop/web/u1", "proxy"},
	{"POST", "/run/shop/web/app", "proxy"},
	{"POST", "/run/shop/web/u1/app", "proxy"},
	{"GET", "/debug/pprof/heap", "proxy"},
	{"PUT", "/debug/flags/v", "proxy"},
	{"GET", "/bowline/v1/why/shop/web", "proxy"},
	{"GET", "/anything/else", "proxy"},
	{"HEAD", "/anything/else", "proxy"},
	{"POST", "/anything/else", "proxy"},
	{"PUT", "/anything/else", "proxy"},
	{"PATCH", "/anything/else", "proxy"},
	{"DELETE", "/anything/else", "proxy"},
}

// TestEveryRouteHasPermissions: a path that is served is in permissions, so that no path comes without
// a test of what it needs.
func TestEveryRouteHasPermissions(t *testing.T) {
	s := testServer(t, &node{})
	mux := http.NewServeMux()
	for _, r := range s.routes() {
		for _, pattern := range r.patterns {
			mux.Handle(pattern, http.NotFoundHandler())
		}
	}
	known := map[string]bool{}
	for _, c := range permissions {
		_, pattern := mux.Handler(httptest.NewRequest(c.method, c.path, nil))
		known[c.method+" "+pattern] = true
	}
	for _, r := range s.routes() {
		for _, pattern := range r.patterns {
			for _, method := range r.methods {
				if !known[method+" "+pattern] {
					t.Errorf("permissions lacks %s %s", method, pattern)
				}
				delete(known, method+" "+pattern)
			}
		}
	}
	for unserved := range known {
		t.Errorf("permissions has %s, which is not served", unserved)
	}
}

// TestAuthorizationTable: every path requires the subresources that the 1.37 kubelet requires.
func TestAuthorizationTable(t *testing.T) {
	for _, c := range permissions {
		n := &node{pods: []*v1.Pod{webPod()}, granted: map[string]bool{}}
		w := call(testServer(t, n), c.method, c.path)
		if w.Code != http.StatusForbidden {
			t.Errorf("%s %s by someone without rights: %d, want 403", c.method, c.path, w.Code)
		}
		var want []string
		for sub := range strings.SplitSeq(c.want, ",") {
			want = append(want, verbs[c.method]+" nodes/n1/"+sub)
		}
		if got := strings.Join(n.asked, " "); got != strings.Join(want, " ") {
			t.Errorf("%s %s asked for %q, want %q", c.method, c.path, got, want)
		}
		// Any one of them is enough.
		for sub := range strings.SplitSeq(c.want, ",") {
			n := &node{pods: []*v1.Pod{webPod()}, granted: map[string]bool{sub: true}}
			if w := call(testServer(t, n), c.method, c.path); w.Code == http.StatusForbidden {
				t.Errorf("%s %s with %s: 403", c.method, c.path, sub)
			}
		}
	}
}
