package hostadmin

import (
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestAddShowsWhatRemains: a Ready node may still serve no logs and run no pods; the output says
// what to do.
func TestAddShowsWhatRemains(t *testing.T) { inWorld(t, testAddShowsWhatRemains) }

func testAddShowsWhatRemains(t *testing.T, w *world) {
	csr := func(name, user, signer string, conditions ...certificatesv1.CertificateSigningRequestCondition) {
		r := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: name}}
		r.Spec.Username, r.Spec.SignerName, r.Status.Conditions = user, signer, conditions
		testutil.Must(t, w.client.Tracker().Add(r))
	}
	csr("csr-mine", "system:node:box-1", certificatesv1.KubeletServingSignerName)
	csr("csr-approved", "system:node:box-1", certificatesv1.KubeletServingSignerName, certificatesv1.CertificateSigningRequestCondition{Type: certificatesv1.CertificateApproved})
	csr("csr-client", "system:node:box-1", certificatesv1.KubeAPIServerClientKubeletSignerName)
	csr("csr-other", "system:node:box-2", certificatesv1.KubeletServingSignerName)
	w.hosts.script = func(h *v1alpha1.Host, look int) {
		w.becomesNode(h, look)
		if look == 4 {
			n, err := w.client.CoreV1().Nodes().Get(t.Context(), "box-1", metav1.GetOptions{})
			testutil.Must(t, err)
			n.Spec.Taints = []v1.Taint{{Key: "example.com/lent", Value: "true", Effect: v1.TaintEffectNoSchedule},
				{Key: "node.kubernetes.io/network-unavailable", Effect: v1.TaintEffectNoSchedule}, {Key: "soft", Effect: v1.TaintEffectPreferNoSchedule}}
			testutil.Must(t, w.client.Tracker().Update(schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, n, ""))
		}
	}
	w.answers = []bool{true, true}
	testutil.Must(t, w.Add(w.ctx(), request()))
	said := w.said.String()
	for _, want := range []string{"\n  kubectl certificate approve csr-mine\n", "Pods need a toleration to run there: example.com/lent=true:NoSchedule\n",
		"set dnsPolicy: Default.\n"} {
		if !strings.Contains(said, want) {
			t.Errorf("it does not say %q:\n%s", want, said)
		}
	}
}
