package hostadmin

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
)

// TestWhy: the node's own message is shown as it is, and a Status of the API server is explained.
func TestWhy(t *testing.T) {
	status := func(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
			Code: int32(code), Reason: reason, Message: message})
	}
	for name, c := range map[string]struct {
		on     string // the pod's node
		answer http.HandlerFunc
		want   string // of the error; empty: the report
	}{
		"a report": {"box-1", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(pod.WhyReport{Namespace: "shop", Name: "web-0", Phase: "Syncing"})
		}, ""},
		"the node says no": {"box-1", func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "{web-0} is not on this node", http.StatusNotFound)
		}, "node box-1: {web-0} is not on this node"},
		"no message": {"box-1", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) },
			"node box-1: the node does not serve this report. Check that it is a Bowline node: kubectl get nodes --show-labels"},
		"the API server knows no such node": {"box-1", func(w http.ResponseWriter, _ *http.Request) {
			status(w, http.StatusNotFound, metav1.StatusReasonNotFound, "no such path")
		}, "node box-1: the node does not serve this report. Check that it is a Bowline node: kubectl get nodes --show-labels"},
		"the API server forbids it": {"box-1", func(w http.ResponseWriter, _ *http.Request) {
			status(w, http.StatusForbidden, metav1.StatusReasonForbidden, "nodes/proxy is forbidden")
		}, "node box-1: nodes/proxy is forbidden"},
		"another kind of answer": {"box-1", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")) },
			"the answer of node box-1 is not a report"},
		"no node yet": {"", nil, "has no node yet. Read the scheduler's reason: kubectl -n shop describe pod web-0"},
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case "/api/v1/namespaces/shop/pods/web-0":
					w.Header().Set("Content-Type", "application/json")
					p := v1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0"}}
					p.Spec.NodeName = c.on
					_ = json.NewEncoder(w).Encode(p)
				case "/api/v1/nodes/box-1/proxy/bowline/v1/why/shop/web-0":
					c.answer(w, r)
				default:
					t.Errorf("asked for %s", r.URL.Path)
				}
			}))
			defer s.Close()
			client, err := kubernetes.NewForConfig(&rest.Config{Host: s.URL})
			testutil.Must(t, err)
			report, err := Why(t.Context(), client, "shop", "web-0")
			switch {
			case c.want == "" && (err != nil || report.Phase != "Syncing"):
				t.Errorf("%+v, %v", report, err)
			case c.want != "" && (err == nil || !strings.Contains(hint.Text(err), c.want)):
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}
