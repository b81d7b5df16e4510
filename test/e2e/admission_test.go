package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// rightsOfHost2 are the rights that a new machine needs, for the account of the example's chart.
const rightsOfHost2 = `
apiVersion: v1
kind: Namespace
metadata: {name: machines}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: example-bowline, namespace: machines}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: is-host2}
rules:
- {apiGroups: [""], resources: [users], resourceNames: ["system:node:host2"], verbs: [impersonate]}
- {apiGroups: [""], resources: [groups], resourceNames: ["system:nodes"], verbs: [impersonate]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: is-host2}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: is-host2}
subjects: [{kind: ServiceAccount, name: example-bowline, namespace: machines}]
`

// TestNodeAdmission tests the chart's policies, as it renders them, on a real API server. As a node
// that the account may impersonate, it can get neither a client certificate nor a mirror pod; it
// can get a serving certificate, and other nodes are not affected.
func TestNodeAdmission(t *testing.T) {
	onlyLocal(t, "it needs no host")
	parallel(t)
	p := newPooled(t, "host1")
	data := testutil.ReadFile(t, "../../charts/testdata/example.yaml")
	policies := rightsOfHost2
	for part := range strings.SplitSeq(string(data), "\n---\n") {
		if strings.Contains(part, "kind: ValidatingAdmissionPolicy") {
			policies += "---\n" + part + "\n"
		}
	}
	p.apply(policies)
	as := func(node string) kubernetes.Interface {
		c := rest.CopyConfig(p.lab.REST)
		c.Impersonate = rest.ImpersonationConfig{UserName: "system:node:" + node, Groups: []string{"system:nodes", "system:authenticated"}}
		client, err := kubernetes.NewForConfig(c)
		testutil.Must(t, err)
		return client
	}
	for _, name := range []string{"host1", "host2"} {
		_, err := p.lab.Client.CoreV1().Nodes().Create(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		testutil.Must(t, err)
	}
	requests := 0
	request := func(ctx context.Context, node, signer string, usages ...certificatesv1.KeyUsage) error {
		requests++
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		testutil.Must(t, err)
		subject := pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}
		der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject, DNSNames: []string{node}}, key)
		testutil.Must(t, err)
		_, err = as(node).CertificatesV1().CertificateSigningRequests().Create(ctx, &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("request-%d", requests)},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
				SignerName: signer, Usages: append(usages, certificatesv1.UsageDigitalSignature),
			},
		}, metav1.CreateOptions{})
		return err
	}
	mirror := func(ctx context.Context, node string) error {
		n, err := p.lab.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		testutil.Must(t, err)
		_, err = as(node).CoreV1().Pods(v1.NamespaceDefault).Create(ctx, &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name: "mirror-" + node, Labels: map[string]string{"app": "victim"}, Annotations: map[string]string{v1.MirrorPodAnnotationKey: "x"},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: n.UID, Controller: ptr.To(true)}},
			},
			Spec: v1.PodSpec{NodeName: node, Containers: []v1.Container{{Name: "a", Image: "none"}}},
		}, metav1.CreateOptions{})
		return err
	}
	// A policy takes effect a moment after its creation.
	refused := func(what string, do func(context.Context) error) {
		t.Helper()
		testutil.Must(t, labtest.Until(t.Context(), patience, what+" is refused", func(ctx context.Context) error {
			if err := do(ctx); err == nil || !strings.Contains(err.Error(), "nodeAdmission") {
				return fmt.Errorf("it came to: %v", err)
			}
			return nil
		}))
	}
	for _, signer := range []string{certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.KubeAPIServerClientSignerName} {
		refused("a client certificate of "+signer, func(ctx context.Context) error {
			return request(ctx, "host2", signer, certificatesv1.UsageClientAuth)
		})
	}
	attempts := 0
	refused("a mirror pod", func(ctx context.Context) error {
		if attempts++; attempts > 1 { // one that was made before the policy took effect
			_ = p.lab.Client.CoreV1().Pods(v1.NamespaceDefault).Delete(ctx, "mirror-host2", *metav1.NewDeleteOptions(0))
		}
		return mirror(ctx, "host2")
	})
	for what, err := range map[string]error{
		"a serving certificate":             request(t.Context(), "host2", certificatesv1.KubeletServingSignerName, certificatesv1.UsageServerAuth),
		"another node's client certificate": request(t.Context(), "host1", certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.UsageClientAuth),
		"another node's mirror pod":         mirror(t.Context(), "host1"),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	p.kubectl("create", "configmap", "of-an-administrator")
}
