package nodecert

import (
	"context"
	"fmt"
	"sync"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typed "k8s.io/client-go/kubernetes/typed/certificates/v1"
	"k8s.io/client-go/kubernetes/typed/certificates/v1beta1"
	"k8s.io/client-go/rest"
)

// clientset implements only what the certificate manager calls; other methods panic. If v1 fails,
// the manager tries v1beta1, which current clusters do not have.
type clientset struct {
	kubernetes.Interface
	v1      certificates
	v1beta1 *v1beta1.CertificatesV1beta1Client
}

func (c clientset) CertificatesV1() typed.CertificatesV1Interface             { return c.v1 }
func (c clientset) CertificatesV1beta1() v1beta1.CertificatesV1beta1Interface { return c.v1beta1 }

type certificates struct {
	typed.CertificatesV1Interface
	requests requests
}

func (c certificates) CertificateSigningRequests() typed.CertificateSigningRequestInterface {
	return c.requests
}

// requests stores the result of the last request, which the manager would only log, and approves it
// if it may.
type requests struct {
	typed.CertificateSigningRequestInterface
	approve typed.CertificateSigningRequestInterface // nil: someone else approves
	last    *lastRequest
}

// lastRequest is the newest request, and the error that it failed with.
type lastRequest struct {
	mu   sync.Mutex
	name string
	err  error
}

func (l *lastRequest) note(name string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.name, l.err = name, err
}

func (l *lastRequest) get() (name string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.name, l.err
}

func newClientset(c *rest.Config, approve typed.CertificateSigningRequestInterface, last *lastRequest) (kubernetes.Interface, error) {
	client, err := typed.NewForConfig(c)
	if err != nil {
		return nil, err
	}
	old, err := v1beta1.NewForConfig(c)
	if err != nil {
		return nil, err
	}
	return clientset{v1: certificates{client, requests{client.CertificateSigningRequests(), approve, last}}, v1beta1: old}, nil
}

// refusal is an error that retrying does not fix: a missing right.
type refusal struct {
	what string
	err  error
}

func (r *refusal) Error() string { return r.what + ": " + r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

func (r requests) Create(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, o metav1.CreateOptions) (*certificatesv1.CertificateSigningRequest, error) {
	out, err := r.CertificateSigningRequestInterface.Create(ctx, csr, o)
	if err != nil {
		r.last.note("", refused("ask for a certificate", err))
		return nil, err
	}
	if r.approve != nil {
		if err := approve(ctx, r.approve, out); err != nil {
			r.last.note(out.Name, err)
			return nil, err
		}
	}
	r.last.note(out.Name, nil)
	return out, nil
}

// List is how the manager waits for the certificate.
func (r requests) List(ctx context.Context, o metav1.ListOptions) (*certificatesv1.CertificateSigningRequestList, error) {
	out, err := r.CertificateSigningRequestInterface.List(ctx, o)
	if err != nil {
		name, _ := r.last.get()
		r.last.note(name, refused("read request "+name, err))
	}
	return out, err
}

// refused wraps an error in a refusal if retrying does not fix it.
func refused(what string, err error) error {
	if apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) {
		return &refusal{what, err}
	}
	return err
}

// approve approves a request, unless it is approved already, for example by the controller manager.
func approve(ctx context.Context, requests typed.CertificateSigningRequestInterface, csr *certificatesv1.CertificateSigningRequest) error {
	csr = csr.DeepCopy()
	for {
		for _, c := range csr.Status.Conditions {
			if c.Type == certificatesv1.CertificateApproved {
				return nil
			}
		}
		csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: certificatesv1.CertificateApproved, Status: v1.ConditionTrue,
			Reason: "BowlineApproved", Message: "approved by the Bowline process that asked for it (identity.mode CSR)",
		})
		_, err := requests.UpdateApproval(ctx, csr.Name, csr, metav1.UpdateOptions{})
		switch {
		case err == nil:
			return nil
		case !apierrors.IsConflict(err):
			return refused(fmt.Sprintf("approve request %s for signer %s", csr.Name, csr.Spec.SignerName), err)
		}
		if csr, err = requests.Get(ctx, csr.Name, metav1.GetOptions{}); err != nil {
			return refused("read request "+csr.Name, err)
		}
	}
}
