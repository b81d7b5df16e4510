package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/cluster/clustertest"
	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/cri/lying"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/provider"
)

// TestQuarantineFromTheStart: a host that lies from the start, and so was never claimed, is shown
// as quarantined on the Node that was made for it, and on no other. While a Lease says that another
// process may manage the node, that process sets Ready.
func TestQuarantineFromTheStart(t *testing.T) {
	honest, liar := fake.Run(t, fake.Config{}), lying.New()
	// The runtime's name is longer than a budget allows.
	liar.Answer("Version", lying.Message(&runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: strings.Repeat("x", 2<<20), RuntimeApiVersion: "v1"}))
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	testutil.Must(t, err)
	t.Cleanup(liar.Serve(l))
	ours := map[string]string{provider.AnnotationDriver: "bowline", v1alpha1.HostAnnotation: "box"}
	for name, c := range map[string]struct {
		annotations map[string]string // of the Node; nil: there is none
		renewed     time.Duration     // age of the Lease's renewal; 0: there is no Lease
		want        []v1.NodeConditionType
		liar        bool // the runtime lies; otherwise the host does
		panics      bool // in the code that reads the host's facts
	}{
		"ours":                        {annotations: ours, renewed: time.Hour, want: []v1.NodeConditionType{"HostQuarantined", v1.NodeReady}},
		"ours without a lease":        {annotations: ours, renewed: 0, want: []v1.NodeConditionType{"HostQuarantined", v1.NodeReady}},
		"ours, perhaps managed":       {annotations: ours, renewed: 5 * time.Second, want: []v1.NodeConditionType{"HostQuarantined"}},
		"ours, its runtime lies":      {annotations: ours, renewed: time.Hour, want: []v1.NodeConditionType{"HostQuarantined", v1.NodeReady}, liar: true},
		"another's, its runtime lies": {annotations: map[string]string{"x": "y"}, renewed: time.Hour, liar: true},
		"ours, a panic":               {annotations: ours, renewed: time.Hour, want: []v1.NodeConditionType{"HostQuarantined", v1.NodeReady}, panics: true},
		"no node yet":                 {annotations: nil, renewed: 0, want: nil},
		"a kubelet's":                 {annotations: map[string]string{"x": "y"}, renewed: time.Hour, want: nil},
		"of another Host":             {annotations: map[string]string{provider.AnnotationDriver: "bowline", v1alpha1.HostAnnotation: "other"}, renewed: time.Hour, want: nil},
		"of a configuration":          {annotations: map[string]string{provider.AnnotationDriver: "bowline"}, renewed: time.Hour, want: nil},
		"not marked yet":              {annotations: map[string]string{v1alpha1.HostAnnotation: "box"}, renewed: time.Hour, want: nil},
	} {
		t.Run(name, func(t *testing.T) {
			var patches, events, others []string
			api := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				body, _ := io.ReadAll(r.Body)
				node := &v1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: "box", UID: "u2", Annotations: c.annotations}}
				missing := func() {
					w.WriteHeader(http.StatusNotFound)
					fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":404,"reason":"NotFound"}`)
				}
				switch r.Method + " " + r.URL.Path {
				case "GET /version":
					fmt.Fprint(w, clustertest.GoodVersion)
				case "POST /apis/authentication.k8s.io/v1/selfsubjectreviews":
					fmt.Fprint(w, `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1","status":{"userInfo":{"username":"system:node:box"}}}`)
				case "GET /api/v1/namespaces/default/services/kubernetes":
					fmt.Fprint(w, `{"kind":"Service","apiVersion":"v1","metadata":{"name":"kubernetes","uid":"u1"}}`)
				case "GET /api/v1/nodes/box":
					if c.annotations == nil {
						missing()
						return
					}
					_ = json.NewEncoder(w).Encode(node)
				case "GET /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/box":
					if c.renewed == 0 {
						missing()
						return
					}
					fmt.Fprintf(w, `{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"box"},"spec":{"leaseDurationSeconds":40,"renewTime":%q}}`,
						time.Now().Add(-c.renewed).UTC().Format("2006-01-02T15:04:05.000000Z"))
				case "PATCH /api/v1/nodes/box/status":
					patches = append(patches, string(body))
					_ = json.NewEncoder(w).Encode(node)
				case "POST /api/v1/namespaces/default/events":
					events = append(events, string(body))
					fmt.Fprint(w, `{"kind":"Event","apiVersion":"v1","metadata":{"name":"x"}}`)
				default:
					others = append(others, r.Method+" "+r.URL.Path)
					missing()
				}
			}))
			defer api.Close()
			cfg := clustertest.HostWith(clustertest.Kubeconfig(t, api.URL, api.Certificate(), nil, nil))
			cfg.Name, cfg.NodeName, cfg.HostObject = "box", "box", "box"
			cfg.Endpoint, cfg.RootDirectory = "unix://"+honest.Socket, t.TempDir()
			d := newDrivers(1)
			d.recognize = func(ctx context.Context, _ string, _ v1alpha1.MachineStatus) error {
				if c.panics {
					panic("found")
				}
				// Like a reader that finds too much in the host's facts.
				return budget.From(ctx).Exceed(budget.LineBytes, "a line of the machine's facts")
			}
			cfg.FailSwapOn = new(bool)
			if c.liar {
				cfg.Endpoint = "unix://" + l.Addr().String()
				d.recognize = func(context.Context, string, v1alpha1.MachineStatus) error { return nil }
			}
			if err := d.Manage(t.Context(), cfg, nil); !IsHostile(err) {
				t.Fatalf("it ended with: %v", err)
			}
			var got []v1.NodeConditionType
			for _, patch := range patches {
				var n v1.Node
				testutil.Must(t, json.Unmarshal([]byte(patch), &n))
				for _, condition := range n.Status.Conditions {
					got = append(got, condition.Type)
					if !strings.Contains(condition.Message, "the machine's facts") && !strings.Contains(condition.Message, "the reply to Version") && !strings.Contains(condition.Message, "panicked: found") {
						t.Errorf("the condition is %+v", condition)
					}
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("the conditions are %v, want %v", got, c.want)
			}
			if want := min(len(c.want), 1); len(events) != want || len(others) != 0 {
				t.Errorf("%d events, want %d; also asked for: %v", len(events), want, others)
			}
		})
	}
}
