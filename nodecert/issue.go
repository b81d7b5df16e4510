package nodecert

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcertificates "k8s.io/client-go/kubernetes/typed/certificates/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/bowline-k8s/bowline/hint"
)

// Issued is what a cluster issues for a new node.
type Issued struct {
	Kubeconfig []byte
	Until      time.Time
	ClientCA   []byte // CA of the clients that call the node; nil if the cluster does not tell
	DNS        string // address of the cluster's DNS; empty if the cluster does not tell
}

const (
	issueTime  = 2 * time.Minute
	issuePause = 500 * time.Millisecond
)

// Issue has the cluster sign a client certificate for system:node:NAME. admin must be allowed
// to approve it.
func Issue(ctx context.Context, admin *rest.Config, name string) (*Issued, error) {
	ctx, cancel := context.WithTimeout(ctx, issueTime)
	defer cancel()
	client, err := typedcertificates.NewForConfig(admin)
	if err != nil {
		return nil, err
	}
	core, err := corev1.NewForConfig(admin)
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}},
	}, key)
	if err != nil {
		return nil, err
	}
	signed, err := sign(ctx, client.CertificateSigningRequests(), name, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request}))
	if err != nil {
		return nil, fmt.Errorf("a credential for node %q: %w", name, err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	issued := &Issued{}
	if issued.Until, err = expiry(signed); err != nil {
		return nil, fmt.Errorf("a credential for node %q: %w", name, err)
	}
	issued.Kubeconfig, err = nodeKubeconfig(admin, name, signed, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}))
	if err != nil {
		return nil, err
	}
	return issued, issued.ask(ctx, core)
}

// ask fills the optional fields, which the cluster may not tell.
func (i *Issued) ask(ctx context.Context, core corev1.CoreV1Interface) error {
	authority, err := core.ConfigMaps(metav1.NamespaceSystem).Get(ctx, "extension-apiserver-authentication", metav1.GetOptions{})
	switch {
	case err == nil:
		i.ClientCA = []byte(authority.Data["client-ca-file"])
	case !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err):
		return fmt.Errorf("read the CA of the API server's client certificate: %w", err)
	}
	dns, err := core.Services(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{LabelSelector: "k8s-app=kube-dns"})
	if err != nil {
		if apierrors.IsForbidden(err) {
			return nil
		}
		return fmt.Errorf("read the cluster's DNS Service: %w", err)
	}
	if at := slices.IndexFunc(dns.Items, func(s v1.Service) bool { return s.Spec.ClusterIP != "" && s.Spec.ClusterIP != v1.ClusterIPNone }); at >= 0 {
		i.DNS = dns.Items[at].Spec.ClusterIP
	}
	return nil
}

// sign creates a certificate signing request, approves it, and waits for the certificate. The
// controller manager may approve it first.
func sign(ctx context.Context, requests typedcertificates.CertificateSigningRequestInterface, name string, request []byte) ([]byte, error) {
	r, err := requests.Create(ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "bowline-" + name + "-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: request, SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	for {
		approved := false
		for _, c := range r.Status.Conditions {
			switch c.Type {
			case certificatesv1.CertificateDenied, certificatesv1.CertificateFailed:
				return nil, fmt.Errorf("request %s is %s: %s", r.Name, c.Type, c.Message)
			case certificatesv1.CertificateApproved:
				approved = true
			}
		}
		switch {
		case len(r.Status.Certificate) > 0:
			return r.Status.Certificate, nil
		case !approved:
			r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
				Type: certificatesv1.CertificateApproved, Status: v1.ConditionTrue,
				Reason: "BowlineConfigure", Message: "approved by the user of bowline configure",
			})
			_, err := requests.UpdateApproval(ctx, r.Name, r, metav1.UpdateOptions{})
			if err != nil && !apierrors.IsConflict(err) {
				return nil, fmt.Errorf("approve request %s: %w", r.Name, err)
			}
		default:
			select {
			case <-ctx.Done():
			case <-time.After(issuePause):
			}
		}
		next, err := requests.Get(ctx, r.Name, metav1.GetOptions{})
		switch {
		case err == nil:
			r = next
		case approved && ctx.Err() != nil:
			return nil, hint.Add(fmt.Errorf("request %s is approved but not signed", r.Name), "check that the controller manager runs with a signing key")
		default:
			return nil, err
		}
	}
}

func expiry(certificate []byte) (time.Time, error) {
	block, _ := pem.Decode(certificate)
	if block == nil {
		return time.Time{}, errors.New("the signer returned no certificate")
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return time.Time{}, err
	}
	return c.NotAfter, nil
}

// nodeKubeconfig returns a kubeconfig that reaches the cluster as admin does and authenticates as
// the node.
func nodeKubeconfig(admin *rest.Config, name string, certificate, key []byte) ([]byte, error) {
	ca := admin.CAData
	if len(ca) == 0 && admin.CAFile != "" {
		var err error
		if ca, err = os.ReadFile(admin.CAFile); err != nil {
			return nil, err
		}
	}
	user := "system:node:" + name
	c := clientcmdapi.NewConfig()
	c.Clusters["cluster"] = &clientcmdapi.Cluster{Server: admin.Host + admin.APIPath, CertificateAuthorityData: ca, TLSServerName: admin.ServerName}
	c.AuthInfos[user] = &clientcmdapi.AuthInfo{ClientCertificateData: certificate, ClientKeyData: key}
	c.Contexts[name] = &clientcmdapi.Context{Cluster: "cluster", AuthInfo: user}
	c.CurrentContext = name
	return clientcmd.Write(*c)
}
