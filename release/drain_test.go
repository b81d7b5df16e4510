package release

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/provider"
	"github.com/bowline-k8s/bowline/syncloop/owner"
)

// A release removes only Bowline's node from the cluster: a kubelet's node of the same name keeps
// its pods.
func TestDrainIsOfOurs(t *testing.T) {
	kubelets := v1.Node{Status: v1.NodeStatus{NodeInfo: v1.NodeSystemInfo{KubeletVersion: "v1.37.1"}}}
	bowlines := kubelets
	bowlines.Annotations = map[string]string{provider.AnnotationDriver: "bowline"}
	for name, c := range map[string]struct {
		node  *v1.Node
		drain bool
		step  What // about the node; empty: any
	}{
		"a kubelet's": {&kubelets, false, NodeForeign},
		"Bowline's":   {&bowlines, true, ""},
		"none":        {nil, false, NodeMissing},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				switch {
				case strings.HasSuffix(r.URL.Path, "/services/kubernetes"):
					_ = json.NewEncoder(w).Encode(v1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: metav1.ObjectMeta{UID: "cluster"}})
				case strings.HasSuffix(r.URL.Path, "/nodes/worker-1") && c.node != nil:
					node := c.node.DeepCopy()
					node.APIVersion, node.Kind, node.Name = "v1", "Node", "worker-1"
					_ = json.NewEncoder(w).Encode(node)
				default:
					w.WriteHeader(http.StatusNotFound)
					_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound})
				}
			}))
			defer server.Close()
			file := filepath.Join(t.TempDir(), "kubeconfig")
			testutil.Must(t, os.WriteFile(file, fmt.Appendf(nil, "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: %q}}]\ncontexts: [{name: c, context: {cluster: c}}]\n", server.URL), 0o600))
			var steps []Step
			// For a host without an owner, and for the node of that name.
			for _, id := range []owner.Identity{noOwner, {ClusterUID: "cluster", NodeName: "worker-1"}} {
				d, err := newDraining(t.Context(), file, nil, id, nil, "worker-1", func(s Step) { steps = append(steps, s) })
				testutil.Must(t, err)
				if (d != nil) != c.drain || c.step != "" && !slices.Contains(steps, Step{What: c.step, Object: "worker-1"}) {
					t.Errorf("%v: it is drained: %v; steps %v", id, d != nil, steps)
				}
			}
		})
	}
}

// TestDrainKnowsItsCluster: the Service default/kubernetes was recreated, and so has another UID.
// Then a pod that the API server has and that runs on the host is proof.
func TestDrainKnowsItsCluster(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case strings.HasSuffix(r.URL.Path, "/services/kubernetes"):
			_ = json.NewEncoder(w).Encode(v1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: metav1.ObjectMeta{UID: "made-again"}})
		case r.URL.Path == "/api/v1/pods":
			_ = json.NewEncoder(w).Encode(v1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: []v1.Pod{
				{ObjectMeta: metav1.ObjectMeta{UID: "p1"}},
				{ObjectMeta: metav1.ObjectMeta{UID: "m1", Annotations: map[string]string{pod.AnnotationMirror: "static", pod.AnnotationSeen: "then"}}},
			}})
		default:
			w.WriteHeader(http.StatusNotFound)
			_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound})
		}
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	testutil.Must(t, os.WriteFile(file, fmt.Appendf(nil, "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: %q}}]\ncontexts: [{name: c, context: {cluster: c}}]\n", server.URL), 0o600))
	id := owner.Identity{ClusterUID: "of-the-first-service", NodeName: "worker-1"}
	for name, c := range map[string]struct {
		running []owner.Sandbox
		refused string
	}{
		"its pod runs":         {[]owner.Sandbox{{PodUID: "p1", Stamp: id.Stamp()}}, ""},
		"its static pod runs":  {[]owner.Sandbox{{PodUID: "static", Seen: "then", Stamp: id.Stamp()}}, ""},
		"a static pod like it": {[]owner.Sandbox{{PodUID: "static", Seen: "later", Stamp: id.Stamp()}}, "is for cluster made-again"},
		"another pod runs":     {[]owner.Sandbox{{PodUID: "p2", Stamp: id.Stamp()}}, "is for cluster made-again"},
		"another node's stamp": {[]owner.Sandbox{{PodUID: "p1", Stamp: noOwner.Stamp()}}, "is for cluster made-again"},
		"nothing runs":         {nil, "is for cluster made-again"},
	} {
		_, err := newDraining(t.Context(), file, &owner.Record{Identity: id}, id, c.running, "worker-1", func(Step) {})
		if got := fmt.Sprint(err); (err == nil) != (c.refused == "") || !strings.Contains(got, c.refused) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
