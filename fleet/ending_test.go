package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/cluster/clustertest"
	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/provider"
	"github.com/bowline-k8s/bowline/syncloop/owner"
	"github.com/bowline-k8s/bowline/syncloop/volume"
)

// TestNodeSaysWhyItIsNotManaged: a host that someone else has, and one on which the node cannot be set up,
// have an event on the Node that was made for the host.
func TestNodeSaysWhyItIsNotManaged(t *testing.T) {
	for name, c := range map[string]struct {
		file, data string // on the host, below its root directory
		want       string
	}{
		"in use":          {owner.FilePath("/"), `{"schemaVersion": 1, "clusterUID": "u1", "nodeName": "another", "witnesses": {"serviceUID": "u1"}}`, "HostInUse"},
		"cannot be setup": {filepath.Join(volume.RecordDir("/"), "5b1c"), `{"schemaVersion": 2, "namespace": "ns", "name": "app", "more": true}`, "KubeletSetupFailed"},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			var events []string
			api := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				switch r.Method + " " + r.URL.Path {
				case "GET /version":
					fmt.Fprint(w, clustertest.GoodVersion)
				case "POST /apis/authentication.k8s.io/v1/selfsubjectreviews":
					fmt.Fprint(w, `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1","status":{"userInfo":{"username":"system:node:box"}}}`)
				case "GET /api/v1/namespaces/default/services/kubernetes":
					fmt.Fprint(w, `{"kind":"Service","apiVersion":"v1","metadata":{"name":"kubernetes","uid":"u1"}}`)
				case "GET /api/v1/nodes/box":
					_ = json.NewEncoder(w).Encode(&v1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: "box", UID: "u2",
						Annotations: map[string]string{provider.AnnotationDriver: "bowline", v1alpha1.HostAnnotation: "box"}}})
				case "POST /api/v1/namespaces/default/events":
					var e v1.Event
					body, _ := io.ReadAll(r.Body)
					_, kind, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, &e) // JSON or protobuf
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					defer mu.Unlock()
					events = append(events, e.InvolvedObject.Kind+"/"+e.InvolvedObject.Name+" "+e.Type+" "+e.Reason)
					e.SetGroupVersionKind(*kind)
					_ = json.NewEncoder(w).Encode(&e)
				default:
					w.WriteHeader(http.StatusNotFound)
					fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":404,"reason":"NotFound"}`)
				}
			}))
			defer api.Close()
			root := t.TempDir()
			testutil.Must(t, os.MkdirAll(filepath.Dir(root+c.file), 0o700))
			testutil.Must(t, os.WriteFile(root+c.file, []byte(c.data), 0o600))
			cfg := clustertest.HostWith(clustertest.Kubeconfig(t, api.URL, api.Certificate(), nil, nil))
			cfg.Name, cfg.NodeName, cfg.HostObject, cfg.FailSwapOn = "box", "box", "box", new(bool)
			cfg.Endpoint, cfg.RootDirectory = "unix://"+fake.Run(t, fake.Config{}).Socket, root
			d := newDrivers(1)
			d.recognize = func(context.Context, string, v1alpha1.MachineStatus) error { return nil }
			if err := d.Manage(t.Context(), cfg, nil); err == nil {
				t.Fatal("it is managed")
			}
			mu.Lock()
			defer mu.Unlock()
			if want := []string{"Node/box Warning " + c.want}; !slices.Equal(events, want) {
				t.Errorf("the events are %q, want %q", events, want)
			}
		})
	}
}
