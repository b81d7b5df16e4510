package api

import (
	"net/http"
	"slices"
	"strings"
)

// route is one line of the kubelet's API.
type route struct {
	patterns []string // of http.ServeMux
	methods  []string
	// subresources of nodes/<this node>, any of which lets the caller in; the
	// verb is that of the HTTP method.
	subresources []string
	// handler is nil for a part of the kubelet's API that this node does not
	// offer: 501, after authorization.
	handler http.HandlerFunc
}

var (
	get     = []string{http.MethodGet}
	post    = []string{http.MethodPost}
	getPost = []string{http.MethodGet, http.MethodPost}
	anyVerb = []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}
)

// routes is the whole table. The subresources are those of the kubelet of 1.37
// with fine-grained authorization: the special one first, then proxy, for
// callers whose rules are older.
func (s *Server) routes() []route {
	pods := []string{"pods", "proxy"}
	proxy := []string{"proxy"}
	metrics := []string{"metrics"}
	return []route{
		{[]string{"/healthz", "/healthz/{check}"}, []string{http.MethodGet, http.MethodHead}, []string{"healthz", "proxy"}, s.healthz},
		{[]string{"/pods", "/pods/{$}"}, get, pods, s.listPods},
		{[]string{"/runningpods", "/runningpods/{$}"}, get, pods, s.runningPods},
		{[]string{"/allocatedPods", "/allocatedPods/{namespace}/{pod}", "/allocatedPods/{namespace}/{pod}/{uid}"}, get, pods, nil},
		{[]string{"/configz"}, get, []string{"configz", "proxy"}, s.configz},
		{[]string{"/flagz"}, get, []string{"configz"}, nil},
		{[]string{"/statusz"}, get, []string{"statusz"}, nil},

		{[]string{"/metrics"}, get, metrics, s.cfg.Metrics.ServeHTTP},
		{[]string{"/metrics/slis", "/metrics/cadvisor", "/metrics/resource", "/metrics/probes"}, get, metrics, nil},
		{[]string{"/stats/", "/stats/summary"}, get, []string{"stats"}, nil},
		{[]string{"/logs/"}, get, []string{"log"}, nil},
		{[]string{"/checkpoint/{namespace}/{pod}/{container}"}, post, []string{"checkpoint"}, nil},

		{[]string{"/containerLogs/{namespace}/{pod}/{container}"}, get, proxy, s.containerLogs},
		{[]string{"/exec/{namespace}/{pod}/{container}", "/exec/{namespace}/{pod}/{uid}/{container}"}, getPost, proxy, s.exec},
		{[]string{"/attach/{namespace}/{pod}/{container}", "/attach/{namespace}/{pod}/{uid}/{container}"}, getPost, proxy, s.attach},
		{[]string{"/portForward/{namespace}/{pod}", "/portForward/{namespace}/{pod}/{uid}"}, getPost, proxy, s.portForward},
		{[]string{"/run/{namespace}/{pod}/{container}", "/run/{namespace}/{pod}/{uid}/{container}"}, post, proxy, s.run},

		{[]string{"/debug/pprof/"}, get, proxy, nil},
		{[]string{"/debug/flags/v"}, []string{http.MethodPut}, proxy, nil},
		{[]string{"/bowline/v1/why/{namespace}/{pod}"}, get, proxy, s.why},

		{[]string{"/"}, anyVerb, proxy, func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, "404 page not found", http.StatusNotFound)
		}},
	}
}

// guard lets only those through to a route that are known and allowed.
func (s *Server) guard(r route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !s.admit(w, req, r.subresources) {
			return
		}
		switch {
		case !slices.Contains(r.methods, req.Method):
			w.Header().Set("Allow", strings.Join(r.methods, ", "))
			http.Error(w, "Method Not Allowed", http.StatusMethodNotAllowed)
		case r.handler == nil:
			http.Error(w, req.URL.Path+" is not offered by this node", http.StatusNotImplemented)
		default:
			r.handler(w, req)
		}
	})
}
