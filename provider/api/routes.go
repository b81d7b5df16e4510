package api

import (
	"net/http"
	"slices"
	"strings"
)

// route is one entry of the kubelet's API.
type route struct {
	patterns []string // of http.ServeMux
	methods  []string
	// subresources of nodes/<this node>, any of which permits the request. The verb is that of the
	// HTTP method.
	subresources []string
	// handler is nil for a part of the kubelet's API that this node does not offer: it answers 501,
	// after authorization.
	handler http.HandlerFunc
	// streams: the answer has no time limit.
	streams bool
}

var (
	get     = []string{http.MethodGet}
	post    = []string{http.MethodPost}
	getPost = []string{http.MethodGet, http.MethodPost}
	anyVerb = []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}
)

// routes is the whole API. The subresources are those of the 1.37 kubelet with fine-grained
// authorization: the specific one first, then proxy, for callers with older rules.
func (s *Server) routes() []route {
	pods := []string{"pods", "proxy"}
	proxy := []string{"proxy"}
	metrics := []string{"metrics"}
	all := []route{
		{[]string{"/healthz", "/healthz/{check}"}, []string{http.MethodGet, http.MethodHead}, []string{"healthz", "proxy"}, s.healthz, false},
		{[]string{"/pods", "/pods/{$}"}, get, pods, s.listPods, false},
		{[]string{"/runningpods", "/runningpods/{$}"}, get, pods, s.runningPods, false},
		{[]string{allocatedPath, allocatedPath + "/{$}"}, get, pods, s.allocatedPods, false},
		{[]string{allocatedPath + "/{namespace}/{pod}", allocatedPath + "/{namespace}/{pod}/{uid}"}, get, pods, s.allocatedPod, false},
		{[]string{"/configz"}, get, []string{"configz", "proxy"}, s.configz, false},
		{[]string{"/flagz"}, get, []string{"configz"}, s.flagz, false},
		{[]string{"/statusz"}, get, []string{"statusz"}, s.statusz, false},

		{[]string{"/metrics"}, get, metrics, s.cfg.Metrics.ServeHTTP, false},
		{[]string{"/metrics/cadvisor"}, get, metrics, s.cfg.Stats.Cadvisor, false},
		{[]string{"/metrics/resource"}, get, metrics, s.cfg.Stats.Resource, false},
		{[]string{"/metrics/probes"}, get, metrics, s.cfg.ProbeMetrics.ServeHTTP, false},
		{[]string{"/metrics/slis"}, get, metrics, s.cfg.SLIMetrics.ServeHTTP, false},
		{[]string{"/stats/summary"}, getPost, []string{"stats"}, s.summary, false},
		{[]string{"/stats/"}, getPost, []string{"stats"}, notThere, false},
		{[]string{"/logs/"}, get, []string{"log"}, s.systemLogs, true},
		{[]string{checkpointPattern}, post, []string{"checkpoint"}, s.checkpoint, true},

		{[]string{"/containerLogs/{namespace}/{pod}/{container}"}, get, proxy, s.containerLogs, true},
		{[]string{"/exec/{namespace}/{pod}/{container}", "/exec/{namespace}/{pod}/{uid}/{container}"}, getPost, proxy, s.exec, true},
		{[]string{"/attach/{namespace}/{pod}/{container}", "/attach/{namespace}/{pod}/{uid}/{container}"}, getPost, proxy, s.attach, true},
		{[]string{"/portForward/{namespace}/{pod}", "/portForward/{namespace}/{pod}/{uid}"}, getPost, proxy, s.portForward, true},
		{[]string{"/run/{namespace}/{pod}/{container}", "/run/{namespace}/{pod}/{uid}/{container}"}, post, proxy, s.run, false},

		{[]string{"/debug/pprof/"}, get, proxy, nil, false},
		{[]string{"/debug/flags/v"}, []string{http.MethodPut}, proxy, nil, false},
		{[]string{"/bowline/v1/why/{namespace}/{pod}"}, get, proxy, s.why, false},

		{[]string{"/"}, anyVerb, proxy, notThere, false},
	}
	off := map[string]bool{"/flagz": s.cfg.NoFlagz, "/statusz": s.cfg.NoStatusz, checkpointPattern: s.cfg.Checkpoint == nil,
		allocatedPath: !s.cfg.AllocatedPods, allocatedPath + "/{namespace}/{pod}": !s.cfg.AllocatedPods}
	return slices.DeleteFunc(all, func(r route) bool { return off[r.patterns[0]] })
}

const (
	checkpointPattern = "/checkpoint/{namespace}/{pod}/{container}"
	allocatedPath     = "/allocatedPods"
)

// metricPath is the path of a route in metrics, in a kubelet's form: the first part, or two of
// /metrics/..., and "other" for what no route has.
func (r *route) metricPath() string {
	parts := strings.Split(strings.Trim(r.patterns[0], "/"), "/")
	switch {
	case parts[0] == "":
		return "other"
	case parts[0] == "metrics" && len(parts) > 1:
		return "metrics/" + parts[1]
	}
	return parts[0]
}

// longRunning are the paths whose requests last as long as their caller likes.
var longRunning = []string{"exec", "attach", "portForward", "debug"}

// metricMethod is the method of a request in metrics: those that net/http knows.
func metricMethod(method string) string {
	if method == http.MethodOptions || method == http.MethodTrace || method == http.MethodConnect || slices.Contains(anyVerb, method) {
		return method
	}
	return "other"
}

func notThere(w http.ResponseWriter, _ *http.Request) {
	http.Error(w, "404 page not found", http.StatusNotFound)
}

// guard admits only authenticated and authorized requests to a route.
func (s *Server) guard(r route) http.Handler {
	path := r.metricPath()
	long := slices.Contains(longRunning, path)
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		defer s.cfg.Request(metricMethod(req.Method), path, long)()
		timed := prompt{w, s.bounds.answer}
		if !s.admit(timed, req, r.subresources) {
			return
		}
		welcome(req.Context())
		switch {
		case !slices.Contains(r.methods, req.Method):
			w.Header().Set("Allow", strings.Join(r.methods, ", "))
			http.Error(timed, "Method Not Allowed", http.StatusMethodNotAllowed)
		case r.handler == nil:
			http.Error(timed, req.URL.Path+" is not offered by this node", http.StatusNotImplemented)
		case r.streams:
			r.handler(w, req)
		default:
			r.handler(timed, req)
		}
	})
}
