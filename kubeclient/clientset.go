// Package kubeclient makes clients for the API server that have only the API groups which Bowline
// needs.
package kubeclient

import (
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	authenticationv1 "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	certificatesv1 "k8s.io/client-go/kubernetes/typed/certificates/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	nodev1 "k8s.io/client-go/kubernetes/typed/node/v1"
	rbacv1 "k8s.io/client-go/kubernetes/typed/rbac/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/bowline-k8s/bowline/version"
)

// Clientset has the clients that a node needs. client-go's own clientset has those of every API
// group, which would keep 10 MB more of the program resident. Do not call a method that is not
// defined here: the embedded interface is nil.
type Clientset struct {
	kubernetes.Interface
	core           *corev1.CoreV1Client
	coordination   *coordinationv1.CoordinationV1Client
	authentication *authenticationv1.AuthenticationV1Client
	authorization  *authorizationv1.AuthorizationV1Client
	node           *nodev1.NodeV1Client                 // runtime classes
	certificates   *certificatesv1.CertificatesV1Client // trust bundles
	rbac           *rbacv1.RbacV1Client                 // for the rights that "host add" grants
	discovery      *discovery.DiscoveryClient
}

func (c *Clientset) CoreV1() corev1.CoreV1Interface                         { return c.core }
func (c *Clientset) CoordinationV1() coordinationv1.CoordinationV1Interface { return c.coordination }
func (c *Clientset) AuthenticationV1() authenticationv1.AuthenticationV1Interface {
	return c.authentication
}
func (c *Clientset) AuthorizationV1() authorizationv1.AuthorizationV1Interface {
	return c.authorization
}
func (c *Clientset) NodeV1() nodev1.NodeV1Interface                         { return c.node }
func (c *Clientset) CertificatesV1() certificatesv1.CertificatesV1Interface { return c.certificates }
func (c *Clientset) RbacV1() rbacv1.RbacV1Interface                         { return c.rbac }
func (c *Clientset) Discovery() discovery.DiscoveryInterfaces               { return c.discovery }

// Configure sets the user agent and the kubelet's default rate limits (kubeAPIQPS and kubeAPIBurst).
func Configure(c *rest.Config) *rest.Config {
	c.UserAgent, c.QPS, c.Burst = "bowline/"+version.Version, 50, 100
	return c
}

// New creates the clients. They share one HTTP client and one rate limiter.
func New(config *rest.Config) (_ *Clientset, err error) {
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	shared := rest.CopyConfig(config)
	if shared.RateLimiter == nil && shared.QPS > 0 && shared.Burst > 0 {
		shared.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(shared.QPS, shared.Burst)
	}
	c := &Clientset{}
	if c.core, err = corev1.NewForConfigAndClient(shared, httpClient); err != nil {
		return nil, err
	}
	if c.coordination, err = coordinationv1.NewForConfigAndClient(shared, httpClient); err != nil {
		return nil, err
	}
	if c.authentication, err = authenticationv1.NewForConfigAndClient(shared, httpClient); err != nil {
		return nil, err
	}
	if c.authorization, err = authorizationv1.NewForConfigAndClient(shared, httpClient); err != nil {
		return nil, err
	}
	if c.node, err = nodev1.NewForConfigAndClient(shared, httpClient); err != nil {
		return nil, err
	}
	if c.certificates, err = certificatesv1.NewForConfigAndClient(shared, httpClient); err != nil {
		return nil, err
	}
	if c.rbac, err = rbacv1.NewForConfigAndClient(shared, httpClient); err != nil {
		return nil, err
	}
	c.discovery, err = discovery.NewDiscoveryClientForConfigAndClient(shared, httpClient)
	return c, err
}
