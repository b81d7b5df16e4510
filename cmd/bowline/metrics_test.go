package main

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/provider"
)

// TestMetricsOfEachNode: of two nodes of a process each shows its own series, and what is
// the process's neither; the version is the one that the node reports.
func TestMetricsOfEachNode(t *testing.T) {
	var all nodesMetrics
	shown := func(node string) string {
		w := httptest.NewRecorder()
		all.of(node).handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		return w.Body.String()
	}
	old := provider.ReportedVersion("v1.30.4")
	all.of("one").reports(old)
	own := provider.ReportedVersion("")
	all.of("two").reports(own)
	all.of("two").reports(own) // it is driven again
	for node, version := range map[string]string{"one": old, "two": own} {
		got := shown(node)
		if strings.Count(got, "kubernetes_build_info{") != 1 || !strings.Contains(got, `git_version="`+version+`"`) {
			t.Errorf("%s reports %s and shows %q", node, version, got)
		}
		if !strings.Contains(got, "bowline_pod_worker_illegal_phase_edges_total 0") || !strings.Contains(got, "kubelet_started_user_namespaced_pods_total 0") {
			t.Errorf("%s lacks series of its own: %q", node, got)
		}
		for _, prefix := range []string{"rest_client_", "process_", "go_"} {
			if strings.Contains(got, "\n"+prefix) {
				t.Errorf("%s shows %s* of the process", node, prefix)
			}
		}
	}
	if old != "v1.30.4" {
		t.Errorf("beside an API server of v1.30.4 a node reports %s", old)
	}
}
