package main

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
)

// clientset has the clients that a node needs. client-go's own has those of every
// API group, and with them 10 MB of program that would be resident. A method
// that is not here must not be called: the embedded interface is nil.
type clientset struct {
	kubernetes.Interface
	core           *corev1.CoreV1Client
	coordination   *coordinationv1.CoordinationV1Client
	authentication *authenticationv1.AuthenticationV1Client
	authorization  *authorizationv1.AuthorizationV1Client
	node           *nodev1.NodeV1Client                 // runtime classes
	certificates   *certificatesv1.CertificatesV1Client // trust bundles
	rbac           *rbacv1.RbacV1Client                 // the rights that "host add" gives
	discovery      *discovery.DiscoveryClient
}

func (c *clientset) CoreV1() corev1.CoreV1Interface                         { return c.core }
func (c *clientset) CoordinationV1() coordinationv1.CoordinationV1Interface { return c.coordination }
func (c *clientset) AuthenticationV1() authenticationv1.AuthenticationV1Interface {
	return c.authentication
}
func (c *clientset) AuthorizationV1() authorizationv1.AuthorizationV1Interface {
	return c.authorization
}
func (c *clientset) NodeV1() nodev1.NodeV1Interface                         { return c.node }
func (c *clientset) CertificatesV1() certificatesv1.CertificatesV1Interface { return c.certificates }
func (c *clientset) RbacV1() rbacv1.RbacV1Interface                         { return c.rbac }
func (c *clientset) Discovery() discovery.DiscoveryInterfaces               { return c.discovery }

// ours names this program in what c asks for, and gives it the pace of a kubelet
// (kubeAPIQPS and kubeAPIBurst).
func ours(c *rest.Config) *rest.Config {
	c.UserAgent, c.QPS, c.Burst = "bowline/"+version, 50, 100
	return c
}

// newClientset makes the clients; they share one connection and one rate limit.
func newClientset(config *rest.Config) (_ *clientset, err error) {
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	shared := rest.CopyConfig(config)
	if shared.RateLimiter == nil && shared.QPS > 0 && shared.Burst > 0 {
		shared.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(shared.QPS, shared.Burst)
	}
	c := &clientset{}
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
