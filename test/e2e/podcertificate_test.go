package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	certificatesclient "k8s.io/client-go/kubernetes/typed/certificates/v1"
)

// signer is a signer whose requests the test answers itself.
const signer = "bowline.example/lab"

// signOne waits for the only request for a pod's certificate in a namespace, and signs it.
func signOne(t *testing.T, api certificatesclient.CertificatesV1Interface, ns string) {
	t.Helper()
	until(t, "a request for the pod's certificate", func(ctx context.Context) error {
		list, err := api.PodCertificateRequests(ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(list.Items) != 1 || list.Items[0].Spec.SignerName != signer {
			return fmt.Errorf("%d requests", len(list.Items))
		}
		r := &list.Items[0]
		if err := sign(r); err != nil {
			return err
		}
		_, err = api.PodCertificateRequests(ns).UpdateStatus(ctx, r, metav1.UpdateOptions{})
		return err
	})
}

// sign issues a certificate for the request's key, by a CA made for it.
func sign(r *certificatesv1.PodCertificateRequest) error {
	request, err := x509.ParseCertificateRequest(r.Spec.StubPKCS10Request)
	if err != nil {
		return err
	}
	authority, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	from := time.Now().Add(-time.Minute).Truncate(time.Second)
	to := from.Add(2 * time.Hour)
	leaf := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: from, NotAfter: to, DNSNames: []string{r.Spec.PodName + ".example"}}
	der, err := x509.CreateCertificate(rand.Reader, leaf, &x509.Certificate{SerialNumber: big.NewInt(2)}, request.PublicKey, authority)
	if err != nil {
		return err
	}
	at := func(t time.Time) *metav1.Time { return &metav1.Time{Time: t} }
	r.Status = certificatesv1.PodCertificateRequestStatus{
		Conditions: []metav1.Condition{{Type: certificatesv1.PodCertificateRequestConditionTypeIssued, Status: metav1.ConditionTrue,
			Reason: "Signed", LastTransitionTime: metav1.Now()}},
		CertificateChain: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		NotBefore:        at(from), BeginRefreshAt: at(from.Add(time.Hour)), NotAfter: at(to),
	}
	return nil
}
