package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/provider"
	"github.com/bowline-k8s/bowline/provider/clusterwide"
	"github.com/bowline-k8s/bowline/syncloop/owner"
)

// cluster is the API server as one node sees it.
type cluster struct {
	rest       *rest.Config // as the node
	client     kubernetes.Interface
	identity   *identity
	uid        string          // that a machine which is no node yet will know this cluster by; empty: none can
	witnesses  owner.Witnesses // as they were when it was met; set before that
	known      *owner.Record   // of a machine whose API server did not answer at first; else nil
	gitVersion string          // the API server's; empty before it is met
	// shared is what nodes of this process that are in one cluster have in common; set
	// before met is closed.
	shared clusterwide.Cluster
	// met is closed when the API server has proved to be that of the cluster and has
	// accepted the node. Before, nothing is told to it.
	met chan struct{}
}

// firstAnswer bounds the API server's first answer.
const firstAnswer = 15 * time.Second

// connectCluster makes the node's client and proves that it works: a broken
// credential is told now, in one sentence, and not by a node that never comes.
//
// One that does not answer is waited for where known, which may be nil, says of which
// cluster the machine is this node: what does not need it is driven meanwhile.
func connectCluster(ctx context.Context, cfg *config.Host, nodeName string, known func(context.Context) *owner.Record) (_ *cluster, err error) {
	id, err := newIdentity(ctx, cfg, nodeName)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", credentialOf(cfg), err)
	}
	defer func() {
		if err != nil {
			id.close()
			err = fmt.Errorf("%s: %w", credentialOf(cfg), err)
		}
	}()
	node := rest.CopyConfig(id.node)
	node.ContentType = runtime.ContentTypeProtobuf
	node.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	client, err := newClientset(node)
	if err != nil {
		return nil, err
	}
	c := &cluster{rest: node, client: client, identity: id, met: make(chan struct{})}
	switch err := c.introduce(ctx, nodeName); {
	case err == nil:
		close(c.met)
	case !isAway(err) || known == nil:
		return nil, err
	default:
		if c.known = known(ctx); c.known == nil {
			return nil, err
		}
		c.uid = c.known.ClusterUID
		klog.FromContext(ctx).Info("The API server is waited for; static pods are driven without it", "err", err)
	}
	return c, nil
}

func (c *cluster) close() { c.identity.close() }

// introduce asks who we are and what cluster this is.
func (c *cluster) introduce(ctx context.Context, nodeName string) error {
	ctx, cancel := context.WithTimeout(ctx, firstAnswer)
	defer cancel()
	want := "system:node:" + nodeName
	var untrusted *tls.CertificateVerificationError
	data, err := c.client.Discovery().RESTClient().Get().AbsPath("/version").DoRaw(ctx)
	switch {
	case apierrors.IsUnauthorized(err):
		return c.identity.unaccepted(err, c.rest.Host, nodeName)
	case apierrors.IsForbidden(err):
		// The answer to this request has no words; that to a review has.
		if _, said := c.client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{}); said != nil {
			err = said
		}
		return c.identity.forbidden(err, nodeName)
	case errors.As(err, &untrusted):
		return fmt.Errorf("the certificate of the API server at %s is not to be trusted: %w", c.rest.Host, untrusted.Err)
	case err != nil:
		return fmt.Errorf("the API server at %s does not answer: %w", c.rest.Host, err)
	}
	var server apiversion.Info
	if err := json.Unmarshal(data, &server); err != nil || server.GitVersion == "" {
		return fmt.Errorf("what answers at %s is no API server: it does not tell its version", c.rest.Host)
	}
	c.gitVersion = server.GitVersion
	review, err := c.client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	switch {
	case apierrors.IsUnauthorized(err):
		return c.identity.unaccepted(err, c.rest.Host, nodeName)
	case err != nil:
		return fmt.Errorf("the API server at %s does not say who we are: %w", c.rest.Host, err)
	case review.Status.UserInfo.Username != want:
		return fmt.Errorf("the credential is of %q; the node %q needs one of %q in the group system:nodes", review.Status.UserInfo.Username, nodeName, want)
	}
	w, node, err := witnesses(ctx, c.client, c.rest, nodeName)
	if err != nil {
		return fmt.Errorf("the API server at %s: %w", c.rest.Host, err)
	}
	c.uid, c.witnesses = w.Service, w
	if c.shared, err = sharedBy(c.identity.server, cmp.Or(w.Service, "of the Node "+w.Node)); err != nil {
		return err
	}
	if node == nil {
		return nil
	}
	// Told before anything is done to the machine; the registration looks again.
	return provider.CheckOwn(node)
}

// checkCertificate finds a client certificate that has expired, which the API
// server would only call unauthorized.
func checkCertificate(c *rest.Config, now time.Time) error {
	data := c.CertData
	if len(data) == 0 && c.CertFile != "" {
		var err error
		if data, err = os.ReadFile(c.CertFile); err != nil {
			return fmt.Errorf("client certificate: %w", err)
		}
	}
	if len(data) == 0 {
		return nil // another kind of credential
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
		return fmt.Errorf("the client certificate of %q expired on %s; issue a new one", cert.Subject.CommonName, cert.NotAfter.Format(time.RFC1123))
	case now.Before(cert.NotBefore):
		return fmt.Errorf("the client certificate of %q is not valid before %s; is this machine's clock right?", cert.Subject.CommonName, cert.NotBefore.Format(time.RFC1123))
	}
	return nil
}
