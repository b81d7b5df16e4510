// Package cluster connects a node to the API server of its cluster: it gets the node's credential,
// proves that the API server is that of the cluster the host belongs to, and keeps on the host how
// to recognize that cluster. Nothing is reported to an API server before that proof.
package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/certificate"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/kubeclient"
	"github.com/bowline-k8s/bowline/provider"
	"github.com/bowline-k8s/bowline/provider/clusterwide"
	"github.com/bowline-k8s/bowline/syncloop/owner"
)

// Connection is one node's connection to its API server.
type Connection struct {
	Rest       *rest.Config // authenticates as the node
	Client     kubernetes.Interface
	Identity   *identity
	UID        string          // ID under which a host that is no node yet records this cluster; empty if there is none
	Witnesses  owner.Witnesses // as read by identify; set before Ready is closed
	known      *owner.Record   // the owner file, if the API server did not answer at startup; else nil
	GitVersion string          // version of the API server; empty before it answers
	// Shared identifies what nodes of one cluster in this process share; set before Ready is closed.
	Shared clusterwide.Cluster
	// Ready is closed when the API server has proved to be that of the host's cluster and has
	// accepted the node. Nothing is reported to it before that.
	Ready chan struct{}
}

// firstAnswer bounds the first exchange with the API server.
const firstAnswer = 15 * time.Second

// Counts count what a connection does. Each field may be nil.
type Counts struct {
	// Wrap wraps the transport of the node's requests.
	Wrap func(http.RoundTripper) http.RoundTripper
	// RenewFailed counts failed renewals of the node's client certificate.
	RenewFailed certificate.Counter
}

// Connect creates the node's client and proves that it works, so that a broken credential is
// reported at once, in one sentence, and not as a node that never appears.
//
// If the API server does not answer and known (which may be nil) returns the owner record of this
// node, Connect succeeds all the same: WaitForAPIServer waits for the API server, and what does not
// need it, such as static pods, is managed meanwhile.
func Connect(ctx context.Context, cfg *config.Host, nodeName string, known func(context.Context) *owner.Record, counts Counts) (_ *Connection, err error) {
	id, err := newIdentity(ctx, cfg, nodeName, counts.RenewFailed)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", credentialOf(cfg), err)
	}
	defer func() {
		if err != nil {
			id.close()
			err = fmt.Errorf("%s: %w", credentialOf(cfg), err)
		}
	}()
	node := kubeclient.Limit(rest.CopyConfig(id.node), *cfg.KubeAPIQPS, *cfg.KubeAPIBurst)
	if counts.Wrap != nil {
		node.Wrap(counts.Wrap)
	}
	node.ContentType = runtime.ContentTypeProtobuf
	node.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	client, err := kubeclient.New(node)
	if err != nil {
		return nil, err
	}
	c := &Connection{Rest: node, Client: client, Identity: id, Ready: make(chan struct{})}
	switch err := c.identify(ctx, nodeName); {
	case err == nil:
		c.share(c.recorded(ctx, known))
		close(c.Ready)
	case !isUnavailable(err) || known == nil:
		return nil, err
	default:
		if c.known = known(ctx); c.known == nil {
			return nil, err
		}
		c.UID = c.known.ClusterUID
		klog.FromContext(ctx).Info("Waiting for the API server; static pods run without it", hint.With(err, "err", err)...)
	}
	return c, nil
}

func (c *Connection) Close() { c.Identity.close() }

// identify asks the API server which user this is and which cluster it serves.
func (c *Connection) identify(ctx context.Context, nodeName string) error {
	ctx, cancel := context.WithTimeout(ctx, firstAnswer)
	defer cancel()
	want := "system:node:" + nodeName
	var untrusted *tls.CertificateVerificationError
	data, err := c.Client.Discovery().RESTClient().Get().AbsPath("/version").DoRaw(ctx)
	switch {
	case apierrors.IsUnauthorized(err):
		return c.Identity.unaccepted(err, c.Rest.Host, nodeName)
	case apierrors.IsForbidden(err):
		// A 403 of /version has no message; that of a SelfSubjectReview does.
		if _, said := c.Client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{}); said != nil {
			err = said
		}
		return c.Identity.forbidden(err, nodeName)
	case errors.As(err, &untrusted):
		return fmt.Errorf("the certificate of the API server at %s is not trusted: %w", c.Rest.Host, untrusted.Err)
	case err != nil:
		return fmt.Errorf("the API server at %s does not answer: %w", c.Rest.Host, err)
	}
	var server apiversion.Info
	if err := json.Unmarshal(data, &server); err != nil || server.GitVersion == "" {
		return fmt.Errorf("the server at %s is not an API server: it does not report a version", c.Rest.Host)
	}
	c.GitVersion = server.GitVersion
	review, err := c.Client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	switch {
	case apierrors.IsUnauthorized(err):
		return c.Identity.unaccepted(err, c.Rest.Host, nodeName)
	case err != nil:
		return fmt.Errorf("the API server at %s does not report the user of the credential: %w", c.Rest.Host, err)
	case review.Status.UserInfo.Username != want:
		return fmt.Errorf("the credential belongs to %q; node %q needs one for %q in the group system:nodes", review.Status.UserInfo.Username, nodeName, want)
	}
	w, node, err := Witnesses(ctx, c.Client, c.Rest, nodeName)
	if err != nil {
		return fmt.Errorf("the API server at %s: %w", c.Rest.Host, err)
	}
	c.UID, c.Witnesses = w.Service, w
	if c.Shared, err = sharedBy(c.Identity.server, ""); err != nil { // share sets the UID
		return err
	}
	if node == nil {
		return nil
	}
	// Check before anything changes on the host; the registration checks again.
	return provider.CheckOwn(node)
}

// checkCertificate reports an expired client certificate, which the API server would reject only as
// unauthorized.
func checkCertificate(c *rest.Config, now time.Time) error {
	data := c.CertData
	if len(data) == 0 && c.CertFile != "" {
		var err error
		if data, err = os.ReadFile(c.CertFile); err != nil {
			return fmt.Errorf("client certificate: %w", err)
		}
	}
	if len(data) == 0 {
		return nil // no client certificate
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return fmt.Errorf("the client certificate is not PEM")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	switch {
	case err != nil:
		return fmt.Errorf("client certificate: %w", err)
	case now.After(cert.NotAfter):
		return hint.Add(fmt.Errorf("the client certificate of %q expired on %s", cert.Subject.CommonName, cert.NotAfter.Format(time.RFC1123)), "issue a new one")
	case now.Before(cert.NotBefore):
		return hint.Add(fmt.Errorf("the client certificate of %q is not valid before %s", cert.Subject.CommonName, cert.NotBefore.Format(time.RFC1123)), "check the clock of this machine")
	}
	return nil
}
