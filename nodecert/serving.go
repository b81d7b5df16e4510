package nodecert

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"sync/atomic"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes"
	typed "k8s.io/client-go/kubernetes/typed/certificates/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/certificate"
)

// ServingConfig of a Serving.
type ServingConfig struct {
	NodeName  string
	Directory string // as in Config
	// IPs at which the API server reaches the node now. The certificate follows them.
	IPs func() []net.IP
	// Node authenticates as the node, which the signer requires of the requester.
	Node *rest.Config
	// Approver approves each request; nil: a person or a controller approves. The controller
	// manager does not.
	Approver *rest.Config
	// Until serves as long as there is no signed certificate.
	Until func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// RenewFailed counts failed renewals, and Rotated observes how long a certificate was used, in
	// seconds; nil: no one counts them.
	RenewFailed certificate.Counter
	Rotated     certificate.Histogram
}

// Serving manages the serving certificate of a node.
type Serving struct {
	config  ServingConfig
	manager *rotation
	last    lastRequest
}

// NewServing loads the stored certificate. It starts nothing.
func NewServing(ctx context.Context, c ServingConfig) (*Serving, error) {
	if c.NodeName == "" || c.Directory == "" || c.Node == nil || c.Until == nil || c.IPs == nil {
		return nil, errors.New("nodecert: NodeName, Directory, IPs, Node and Until are required")
	}
	store, err := newStore(ctx, c.Directory, c.NodeName+"-serving")
	if err != nil {
		return nil, err
	}
	out := &Serving{config: c}
	var approve typed.CertificateSigningRequestInterface
	if c.Approver != nil {
		client, err := typed.NewForConfig(c.Approver)
		if err != nil {
			return nil, err
		}
		approve = client.CertificateSigningRequests()
	}
	out.manager, err = newRotation(&certificate.Config{
		Ctx: quiet(ctx, new(atomic.Bool)), Name: "serving certificate",
		SignerName: certificatesv1.KubeletServingSignerName,
		GetUsages:  certificate.DefaultKubeletServingGetUsages,
		// An address that the stored certificate lacks causes a new request.
		GetTemplate: func() *x509.CertificateRequest {
			return &x509.CertificateRequest{
				Subject:     pkix.Name{CommonName: UserName(c.NodeName), Organization: []string{Group}},
				DNSNames:    []string{c.NodeName},
				IPAddresses: c.IPs(),
			}
		},
		CertificateStore: store, CertificateRenewFailure: c.RenewFailed, CertificateRotation: c.Rotated,
		ClientsetFn: func(*tls.Certificate) (kubernetes.Interface, error) {
			return newClientset(c.Node, approve, &out.last)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("serving certificate in %s: %w", c.Directory, err)
	}
	return out, nil
}

// Run requests certificates until ctx ends.
func (s *Serving) Run(ctx context.Context) error { return s.manager.Run(ctx) }

// Current returns the certificate that the cluster signed, or nil.
func (s *Serving) Current() *tls.Certificate { return s.manager.Current() }

// Get is a GetCertificate of a tls.Config. New connections get the renewed certificate.
func (s *Serving) Get(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c := s.manager.Current(); c != nil {
		return c, nil
	}
	return s.config.Until(hello)
}
