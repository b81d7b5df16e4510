package syncloop

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/objects"
)

// A pod's ConfigMaps and Secrets are followed until it is released, and never after that: the API
// server refuses a node the objects of a pod that is gone.
func TestObjectsOfAReleasedPod(t *testing.T) {
	m, err := objects.New(objects.Config{Client: fake.NewClientset(), SyncTimeout: time.Nanosecond})
	testutil.Must(t, err)
	l := &Loop{cfg: Config{Objects: m}, released: map[types.UID]bool{}}
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"},
		Spec: v1.PodSpec{Volumes: []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{
			Secret: &v1.SecretVolumeSource{SecretName: "s"}}}}},
	}
	followed := func(want bool, when string) {
		t.Helper()
		_, err := m.Secret(t.Context(), "ns", "s")
		if err == nil {
			t.Fatal("an object that no one reads is there")
		}
		if got := !strings.Contains(err.Error(), "not registered"); got != want {
			t.Errorf("%s: followed %v, want %v (%v)", when, got, want, err)
		}
	}
	followed(false, "before")
	l.register(p)
	followed(true, "while it lives")
	l.unregister("u", true)
	followed(false, "released")
	l.register(p)
	followed(false, "after an update that came late")
	l.unregister("u", false)
	l.register(p)
	followed(true, "of a worker of its own, again")
	l.unregister("u", false)
	p.Status.Phase = v1.PodFailed
	l.register(p)
	followed(false, "of a pod that has ended by itself")
}

// Whether a mount may be recursively read-only depends on the handler of the pod's newest sandbox.
func TestRecursiveReadOnlyFollowsTheHandler(t *testing.T) {
	l := &Loop{cfg: Config{Machine: func() spec.Machine { return spec.Machine{} }, RecursiveReadOnly: func(h string) bool { return h == "runc" }}}
	for handler, want := range map[string]bool{"runc": true, "kata": false} {
		o := pod.Observed{Sandboxes: []pod.Sandbox{{RuntimeHandler: handler}, {RuntimeHandler: "runc"}}}
		j := &job{loop: l, observed: o}
		if got := j.machine().RecursiveReadOnly; got != want {
			t.Errorf("handler %s: %v", handler, got)
		}
	}
}
