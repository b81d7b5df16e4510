package node

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/kubeletmetrics"
	"github.com/bowline-k8s/bowline/provider"
)

func noState(context.Context) kubeletmetrics.State { return kubeletmetrics.State{} }

// TestBuildInfoFollowsTheNode: an API server that is met late, or upgraded, changes the version
// that the node reports, and the metric with it.
func TestBuildInfoFollowsTheNode(t *testing.T) {
	m := NewMetrics()
	m.reports(provider.ReportedVersion("")) // the API server has not been met
	node := &v1.Node{}
	for _, server := range []string{"v1.30.4", "v1.31.0"} {
		node.Status.NodeInfo.KubeletVersion = provider.ReportedVersion(server)
		m.see(node)
		w := httptest.NewRecorder()
		m.handler(noState).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		if got := w.Body.String(); strings.Count(got, "kubernetes_build_info{") != 1 || !strings.Contains(got, `git_version="`+server+`"`) {
			t.Errorf("with an API server of %s: %q", server, got)
		}
	}
	node.Status.NodeInfo.KubeletVersion = ""
	m.see(node) // its status has not been written yet
	w := httptest.NewRecorder()
	m.handler(noState).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if got := w.Body.String(); !strings.Contains(got, `git_version="v1.31.0"`) {
		t.Errorf("a node without a status: %q", got)
	}
}

// TestMetricsOfEachNode: each of two nodes of a process shows its own metrics, and the CPU time and memory
// of the process, as kubernetes-mixin's dashboard asks of a kubelet; the version is the one that the node
// reports.
func TestMetricsOfEachNode(t *testing.T) {
	all := map[string]*Metrics{"one": NewMetrics(), "two": NewMetrics()}
	shown := func(node string) string {
		w := httptest.NewRecorder()
		all[node].handler(noState).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		return w.Body.String()
	}
	old := provider.ReportedVersion("v1.30.4")
	all["one"].reports(old)
	own := provider.ReportedVersion("")
	all["two"].reports(own)
	all["two"].reports(own) // its driver starts again
	for node, version := range map[string]string{"one": old, "two": own} {
		got := shown(node)
		if strings.Count(got, "kubernetes_build_info{") != 1 || !strings.Contains(got, `git_version="`+version+`"`) {
			t.Errorf("%s reports %s and shows %q", node, version, got)
		}
		if !strings.Contains(got, "bowline_pod_worker_illegal_phase_edges_total 0") || !strings.Contains(got, "kubelet_started_user_namespaced_pods_total 0") {
			t.Errorf("%s lacks series of its own: %q", node, got)
		}
		for _, series := range []string{"process_resident_memory_bytes", "process_cpu_seconds_total", "go_goroutines"} {
			if strings.Count(got, "\n"+series+" ") != 1 {
				t.Errorf("%s lacks %s of the process", node, series)
			}
		}
	}
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	answer, err := (&http.Client{Transport: all["one"].client.Wrap(http.DefaultTransport)}).Get(server.URL)
	testutil.Must(t, err)
	answer.Body.Close()
	for node, want := range map[string]int{"one": 1, "two": 0} {
		if n := strings.Count(shown(node), "\nrest_client_requests_total{"); n != want {
			t.Errorf("after a request of one, %s has %d series of requests, want %d", node, n, want)
		}
	}
	if old != "v1.30.4" {
		t.Errorf("beside an API server of v1.30.4 a node reports %s", old)
	}
}
