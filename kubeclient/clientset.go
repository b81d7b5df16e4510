// Package kubeclient makes clients for the API server that have only the API groups which Bowline
// needs.
package kubeclient

import (
	"errors"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	authenticationv1 "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	certificatesv1 "k8s.io/client-go/kubernetes/typed/certificates/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	discoveryv1 "k8s.io/client-go/kubernetes/typed/discovery/v1"
	networkingv1 "k8s.io/client-go/kubernetes/typed/networking/v1"
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
	endpoints      *discoveryv1.DiscoveryV1Client       // EndpointSlices, for lifelines
	networking     *networkingv1.NetworkingV1Client     // ServiceCIDRs and NetworkPolicies, for lifelines
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
func (c *Clientset) DiscoveryV1() discoveryv1.DiscoveryV1Interface          { return c.endpoints }
func (c *Clientset) NetworkingV1() networkingv1.NetworkingV1Interface       { return c.networking }
func (c *Clientset) Discovery() discovery.DiscoveryInterfaces               { return c.discovery }

// Configure sets the user agent and the kubelet's default rate limits (kubeAPIQPS and kubeAPIBurst).
func Configure(c *rest.Config) *rest.Config {
	c.UserAgent = "bowline/" + version.Version
	return Limit(c, 50, 100)
}

// Limit sets a rate limit in the form of a KubeletConfiguration: requests a second, and requests at
// once. Without a positive qps there is no limit.
func Limit(c *rest.Config, qps, burst int32) *rest.Config {
	if qps <= 0 {
		qps = -1 // 0 would be client-go's default
	}
	c.QPS, c.Burst = float32(qps), int(burst)
	return c
}

// New creates the clients. They share one HTTP client and one rate limiter.
func New(config *rest.Config) (*Clientset, error) {
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	shared := rest.CopyConfig(config)
	if shared.RateLimiter == nil && shared.QPS > 0 && shared.Burst > 0 {
		shared.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(shared.QPS, shared.Burst)
	}
	c := &Clientset{}
	var errs [10]error
	c.core, errs[0] = corev1.NewForConfigAndClient(shared, httpClient)
	c.coordination, errs[1] = coordinationv1.NewForConfigAndClient(shared, httpClient)
	c.authentication, errs[2] = authenticationv1.NewForConfigAndClient(shared, httpClient)
	c.authorization, errs[3] = authorizationv1.NewForConfigAndClient(shared, httpClient)
	c.node, errs[4] = nodev1.NewForConfigAndClient(shared, httpClient)
	c.certificates, errs[5] = certificatesv1.NewForConfigAndClient(shared, httpClient)
	c.rbac, errs[6] = rbacv1.NewForConfigAndClient(shared, httpClient)
	c.discovery, errs[7] = discovery.NewDiscoveryClientForConfigAndClient(shared, httpClient)
	c.endpoints, errs[8] = discoveryv1.NewForConfigAndClient(shared, httpClient)
	c.networking, errs[9] = networkingv1.NewForConfigAndClient(shared, httpClient)
	return c, errors.Join(errs[:]...)
}
