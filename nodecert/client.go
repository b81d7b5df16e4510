package nodecert

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes"
	typed "k8s.io/client-go/kubernetes/typed/certificates/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/certificate"
	"k8s.io/klog/v2"
)

// Config of a Client.
type Config struct {
	NodeName string
	// Directory stores the certificates. It is created if needed, for the process's user only.
	// Several nodes may share it.
	Directory string
	// Asker has the credential that requests the first certificate, usually a bootstrap token.
	Asker *rest.Config
	// Approve: the Asker requests each certificate, and approves its own requests.
	Approve bool
	// RenewFailed counts failed renewals; nil: no one counts them.
	RenewFailed certificate.Counter
}

// Client manages the client certificate of a node.
type Client struct {
	config  Config
	manager *rotation
	rest    *rest.Config
	last    lastRequest
	waits   atomic.Bool // for the first certificate: Wait reports errors
}

// NewClient loads the stored certificate. It starts nothing.
func NewClient(ctx context.Context, c Config) (*Client, error) {
	if c.NodeName == "" || c.Directory == "" || c.Asker == nil {
		return nil, errors.New("nodecert: NodeName, Directory and Asker are required")
	}
	out := &Client{config: c}
	out.waits.Store(true)
	store, err := newStore(ctx, c.Directory, c.NodeName+"-client")
	if err != nil {
		return nil, err
	}
	var approve typed.CertificateSigningRequestInterface
	if c.Approve {
		client, err := typed.NewForConfig(c.Asker)
		if err != nil {
			return nil, err
		}
		approve = client.CertificateSigningRequests()
	}
	out.manager, err = newRotation(&certificate.Config{
		Ctx: quiet(ctx, &out.waits), Name: "node certificate",
		SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
		GetUsages:  certificate.DefaultKubeletClientGetUsages,
		Template: &x509.CertificateRequest{Subject: pkix.Name{
			CommonName: UserName(c.NodeName), Organization: []string{Group}}},
		CertificateStore: store, CertificateRenewFailure: c.RenewFailed,
		ClientsetFn: func(current *tls.Certificate) (kubernetes.Interface, error) {
			if current == nil || c.Approve {
				return newClientset(c.Asker, approve, &out.last)
			}
			return newClientset(out.rest, nil, &out.last)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("node certificate in %s: %w", c.Directory, err)
	}
	out.rest, err = out.nodeREST()
	return out, err
}

// Group is the group of all nodes, and UserName the user name of one node.
const Group = "system:nodes"

func UserName(node string) string { return "system:node:" + node }

// nodeREST connects to the same API server as Asker, as the node.
func (c *Client) nodeREST() (*rest.Config, error) {
	server, _, err := rest.DefaultServerUrlFor(c.config.Asker)
	if err != nil {
		return nil, err
	}
	t, err := newTransport(c.config.Asker, c.manager.Current)
	if err != nil {
		return nil, err
	}
	out := rest.AnonymousClientConfig(c.config.Asker)
	out.Host = server.String() // includes the scheme that TLSClientConfig, which is dropped, implied
	// The transport has the connection settings: client-go refuses both.
	out.TLSClientConfig, out.Dial, out.Proxy, out.Transport = rest.TLSClientConfig{}, nil, nil, t
	out.RateLimiter = nil
	return out, nil
}

// REST authenticates as the node with the current certificate. It must not be modified.
func (c *Client) REST() *rest.Config { return c.rest }

// Current is the current certificate; nil: there is none yet, or it has expired.
func (c *Client) Current() *tls.Certificate { return c.manager.Current() }

// Run requests certificates until ctx ends.
func (c *Client) Run(ctx context.Context) error { return c.manager.Run(ctx) }

const (
	look = 50 * time.Millisecond
	// slowAnswer bounds the API server's answer to a request. The approval may take longer, because
	// it may need a person.
	slowAnswer = 15 * time.Second
)

// Wait returns when there is a certificate, or with the reason why there is none. It waits for the
// approval of a request without limit. Run must be running.
func (c *Client) Wait(ctx context.Context) error {
	tick := time.NewTicker(look)
	defer tick.Stop()
	slow := time.After(slowAnswer)
	for c.manager.Current() == nil {
		name, err := c.last.get()
		var no *refusal
		if errors.As(err, &no) {
			return no
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-slow:
			switch {
			case err != nil:
				return fmt.Errorf("ask the API server at %s for a certificate: %w", c.config.Asker.Host, err)
			case name == "":
				return fmt.Errorf("the API server at %s does not answer a certificate request", c.config.Asker.Host)
			}
			klog.FromContext(ctx).Info("Waiting for certificate approval", "csr", name, "node", c.config.NodeName)
		case <-tick.C:
		}
	}
	c.waits.Store(false)
	return nil
}

// newStore is the manager's file store, in a directory of the process's user only.
func newStore(ctx context.Context, directory, prefix string) (certificate.Store, error) {
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return nil, fmt.Errorf("certificateDirectory: %w", err)
	}
	log := klog.FromContext(ctx)
	files, err := certificate.NewFileStoreWithLogger(log.V(3), prefix, directory, directory, "", "")
	if err != nil {
		return nil, fmt.Errorf("certificateDirectory %s: %w", directory, err)
	}
	return store{files, log, prefix}, nil
}
