package syncloop_test

import (
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri/fake"
)

// A container has the variables of the API server and of the Services of its namespace, however
// many others the cluster has.
func TestVariablesOfServices(t *testing.T) {
	t.Parallel()
	w := up(t)
	for key, ip := range map[string]string{"default/kubernetes": "10.0.0.1", "default/other": "10.0.0.2", namespace + "/own": "10.0.0.3", "elsewhere/far": "10.0.0.4"} {
		ns, name, _ := strings.Cut(key, "/")
		if err := w.services.Add(&v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
			Spec: v1.ServiceSpec{ClusterIP: ip, Ports: []v1.ServicePort{{Port: 80}}}}); err != nil {
			t.Fatal(err)
		}
	}
	made := make(chan *runtimeapi.ContainerConfig, 1)
	w.rt.Inject("CreateContainer", fake.Fault{Times: -1, Match: func(req any) bool {
		select {
		case made <- req.(*runtimeapi.CreateContainerRequest).GetConfig():
		default:
		}
		return false
	}})
	w.api.create(newPod("web"))
	w.untilReady("web")
	var hosts []string
	for _, e := range (<-made).GetEnvs() {
		if strings.HasSuffix(e.GetKey(), "_SERVICE_HOST") {
			hosts = append(hosts, e.GetKey()+"="+string(e.GetValue()))
		}
	}
	slices.Sort(hosts)
	if want := []string{"KUBERNETES_SERVICE_HOST=10.0.0.1", "OWN_SERVICE_HOST=10.0.0.3"}; !slices.Equal(hosts, want) {
		t.Errorf("it has %v, want %v", hosts, want)
	}
	w.api.delete("web", 1)
	w.untilGone()
}
