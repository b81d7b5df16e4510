package syncloop_test

import (
	"os"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/syncloop/images"
)

// TestACutRecordOpensNoImage: a power cut leaves half of the record of pulls. The next process then
// does not know which image only a secret could pull, so a pod without the secret gets none of them,
// with either pull policy; the pod with the secret pulls again.
func TestACutRecordOpensNoImage(t *testing.T) {
	t.Parallel()
	const image = "registry.example/bowline-test:1"
	w := newWorld(t, fake.Config{Registry: map[string]fake.RegistryImage{image: {Password: "sesame"}}})
	w.pullRecords = true
	_, err := w.api.client.CoreV1().Secrets(namespace).Create(t.Context(), &v1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "login", Namespace: namespace, UID: "uid-login"}, Type: v1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{v1.DockerConfigJsonKey: []byte(`{"auths":{"registry.example":{"username":"ann","password":"sesame"}}}`)},
	}, metav1.CreateOptions{})
	testutil.Must(t, err)
	member := func(name string) *v1.Pod {
		return with(newPod(name), func(p *v1.Pod) { p.Spec.ImagePullSecrets = []v1.LocalObjectReference{{Name: "login"}} })
	}
	refused := func(name string, policy v1.PullPolicy, reasons ...string) {
		t.Helper()
		w.api.create(with(newPod(name), func(p *v1.Pod) { p.Spec.Containers[0].ImagePullPolicy = policy }))
		w.until(name+" is refused the image", func() bool {
			p := w.api.pod(name)
			if ready(p) {
				t.Fatalf("%s runs an image that only another pod's secret could pull", name)
			}
			return slices.Contains(reasons, waitingReason(p, "app"))
		})
	}
	w.up()
	w.createReady(member("first"))
	w.down()
	record := images.RecordFile(w.machine().RootDir)
	data, err := os.ReadFile(record)
	testutil.Must(t, err)
	testutil.Must(t, os.WriteFile(record, data[:len(data)/2], 0o600))
	w.up()
	refused("stranger", v1.PullIfNotPresent, images.ReasonPull, images.ReasonBackOff)
	refused("lazy", v1.PullNever, images.ReasonNeverPull)
	pulls := w.rt.Count(fake.OpPull, "")
	w.createReady(member("second"))
	if got := w.rt.Count(fake.OpPull, ""); got <= pulls {
		t.Errorf("%d pulls, and %d before the second pod with the secret", got, pulls)
	}
	if !ready(w.api.pod("first")) {
		t.Error("the damaged record has stopped the pod that ran")
	}
}
