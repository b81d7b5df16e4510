package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
)

// whyAPI has the pod shop/web-0 on the node box-1, and that node behind the API server's proxy.
func whyAPI(t *testing.T, report *pod.WhyReport) []string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/api/v1/namespaces/shop/pods/web-0":
			p := v1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0"}}
			p.Spec.NodeName = "box-1"
			_ = json.NewEncoder(w).Encode(p)
		case "/api/v1/nodes/box-1/proxy/bowline/v1/why/shop/web-0":
			_ = json.NewEncoder(w).Encode(report)
		default:
			w.WriteHeader(http.StatusNotFound)
			_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
				Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound, Message: r.URL.Path + " not found"})
		}
	}))
	t.Cleanup(s.Close)
	c := clientcmdapi.NewConfig()
	c.Clusters["here"] = &clientcmdapi.Cluster{Server: s.URL}
	c.Contexts["shop"] = &clientcmdapi.Context{Cluster: "here", Namespace: "shop"}
	c.Contexts["none"] = &clientcmdapi.Context{Cluster: "here"}
	c.CurrentContext = "none"
	file := filepath.Join(t.TempDir(), "kubeconfig")
	testutil.Must(t, clientcmd.WriteToFile(*c, file))
	return []string{"--kubeconfig", file}
}

// A pod is named as in kubectl.
func TestWhyNames(t *testing.T) {
	way := whyAPI(t, &pod.WhyReport{Namespace: "shop", Name: "web-0", Phase: "Syncing"})
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	t.Setenv("HOME", t.TempDir())
	if _, errOut, status := typed(t, "why", "pod", "web-0"); status != 1 || !strings.Contains(errOut, "no cluster is configured") {
		t.Errorf("without a kubeconfig: status %d, %q", status, errOut)
	}
	for line, want := range map[string]string{ // empty: the report
		"pod web-0 -n shop":           "",
		"pod shop/web-0":              "",
		"pod shop/web-0 -n shop":      "",
		"pod web-0 --context shop":    "",
		"pod/web-0 -n shop":           "",
		"po/web-0 --context shop":     "",
		"pod web-0":                   "pod default/web-0",
		"pod shop/web-0 -n other":     "set one of them",
		"pod shop/":                   "does not name a pod",
		"pod a/b/c":                   "does not name a pod",
		"pod pod/web-0":               `"pod/web-0" means NAMESPACE/NAME; for another namespace, run: bowline why pod web-0 -n NAMESPACE`,
		"pod web-0 -n shop -o yaml":   `--output "yaml": text or json`,
		"deploy/web -n shop":          "bowline why pod NAME",
		"web-0 -n shop":               "bowline why pod web-0",
		"pod/web-0 pod/web-1 -n shop": `unexpected argument "pod/web-1"`,
	} {
		out, errOut, status := typed(t, append(append([]string{"why"}, strings.Fields(line)...), way...)...)
		if want == "" && (status != 0 || !strings.HasPrefix(out, "shop/web-0  Syncing\n")) {
			t.Errorf("why %s: status %d, %q, %q", line, status, out, errOut)
		}
		if want != "" && (status != 1 || !strings.Contains(errOut, want)) {
			t.Errorf("why %s: status %d, %q; want %q in it", line, status, errOut, want)
		}
	}
}
