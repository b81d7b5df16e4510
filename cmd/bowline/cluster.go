package main

import (
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
	"k8s.io/client-go/tools/clientcmd"
)

// cluster is the API server as one node sees it.
type cluster struct {
	rest       *rest.Config
	client     kubernetes.Interface
	uid        string // what tells this cluster from others
	gitVersion string // the API server's
}

// firstAnswer bounds the API server's first answer.
const firstAnswer = 15 * time.Second

// connectCluster makes the node's client and proves that it works: a broken
// credential is told now, in one sentence, and not by a node that never comes.
func connectCluster(ctx context.Context, kubeconfig, nodeName string) (*cluster, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	if err := checkCertificate(config, time.Now()); err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	config.UserAgent = "bowline/" + version
	config.QPS, config.Burst = 50, 100 // the kubelet's kubeAPIQPS and kubeAPIBurst
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	client, err := newClientset(config)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	ctx, cancel := context.WithTimeout(ctx, firstAnswer)
	defer cancel()
	c := &cluster{rest: config, client: client}
	if err := c.introduce(ctx, nodeName); err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	return c, nil
}

// introduce asks who we are and what cluster this is.
func (c *cluster) introduce(ctx context.Context, nodeName string) error {
	want := "system:node:" + nodeName
	var untrusted *tls.CertificateVerificationError
	data, err := c.client.Discovery().RESTClient().Get().AbsPath("/version").DoRaw(ctx)
	switch {
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the API server at %s does not accept this credential; issue a new one for %s", c.rest.Host, want)
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
		return fmt.Errorf("the API server at %s does not accept this credential; issue a new one for %s", c.rest.Host, want)
	case err != nil:
		return fmt.Errorf("the API server at %s does not say who we are: %w", c.rest.Host, err)
	case review.Status.UserInfo.Username != want:
		return fmt.Errorf("the credential is of %q; the node %q needs one of %q in the group system:nodes", review.Status.UserInfo.Username, nodeName, want)
	}
	// A node may not read namespaces; it may read services, and this one is made
	// with the cluster.
	service, err := c.client.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("the API server at %s does not show the service default/kubernetes, by whose UID clusters are told apart: %w", c.rest.Host, err)
	}
	c.uid = string(service.UID)
	return nil
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
