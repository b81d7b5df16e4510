package hostadmin

import (
	"context"
	"fmt"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
)

// remains shows what the user has to know or do before the node's pods are useful. This is advice,
// so it skips what cannot be read.
func (e *Editor) remains(ctx context.Context, h *v1alpha1.Host) {
	if node, err := e.Client.CoreV1().Nodes().Get(ctx, nodeName(h), metav1.GetOptions{}); err == nil {
		if taints := ownTaints(node); len(taints) > 0 {
			e.Reporter.Show(fmt.Sprintf("\nPods need a toleration to run there: %s\n", strings.Join(taints, ", ")))
		}
	}
	e.Reporter.Show("\nPods on the host resolve names and reach Services once it has kube-proxy and a route to the cluster's pods (docs/networking.md).\nUntil then, set dnsPolicy: Default.\n")
	list, err := e.Client.CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{FieldSelector: "spec.signerName=" + certificatesv1.KubeletServingSignerName})
	if err != nil {
		return
	}
	if pending := pendingServing(list.Items, nodeName(h)); len(pending) > 0 {
		e.Reporter.Show(fmt.Sprintf("\nFor kubectl logs and exec, approve the node's serving certificate:\n  kubectl certificate approve %s\n", strings.Join(pending, " ")))
	}
}

// ownTaints are the taints that keep pods away while the node is healthy.
func ownTaints(n *v1.Node) (taints []string) {
	for i := range n.Spec.Taints {
		t := &n.Spec.Taints[i]
		if t.Effect != v1.TaintEffectPreferNoSchedule && !strings.HasPrefix(t.Key, "node.kubernetes.io/") {
			taints = append(taints, t.ToString())
		}
	}
	return taints
}

// pendingServing are the node's undecided requests for a serving certificate.
func pendingServing(all []certificatesv1.CertificateSigningRequest, node string) (names []string) {
	for i := range all {
		r := &all[i]
		if r.Spec.SignerName == certificatesv1.KubeletServingSignerName && r.Spec.Username == "system:node:"+node &&
			len(r.Status.Conditions) == 0 && len(r.Status.Certificate) == 0 {
			names = append(names, r.Name)
		}
	}
	return names
}
