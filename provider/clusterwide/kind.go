package clusterwide

import (
	"context"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// kind is one kind of object, and how a client lists and watches it.
type kind struct {
	name   string
	object runtime.Object
	list   func(context.Context, kubernetes.Interface, metav1.ListOptions) (runtime.Object, error)
	watch  func(context.Context, kubernetes.Interface, metav1.ListOptions) (watch.Interface, error)
}

// client is the client of one kind, whose lists are an L.
type client[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// kindOf makes a kind. reads returns its client.
func kindOf[L runtime.Object](name string, object runtime.Object,
	reads func(kubernetes.Interface) client[L]) *kind {
	k := &kind{name: name, object: object}
	k.list = func(ctx context.Context, c kubernetes.Interface, o metav1.ListOptions) (runtime.Object, error) {
		return reads(c).List(ctx, o)
	}
	k.watch = func(ctx context.Context, c kubernetes.Interface, o metav1.ListOptions) (watch.Interface, error) {
		return reads(c).Watch(ctx, o)
	}
	return k
}

var (
	services = kindOf("Services", &v1.Service{},
		func(c kubernetes.Interface) client[*v1.ServiceList] { return c.CoreV1().Services("") })
	runtimeClasses = kindOf("RuntimeClasses", &nodev1.RuntimeClass{},
		func(c kubernetes.Interface) client[*nodev1.RuntimeClassList] { return c.NodeV1().RuntimeClasses() })
	endpointSlices = kindOf("EndpointSlices", &discoveryv1.EndpointSlice{},
		func(c kubernetes.Interface) client[*discoveryv1.EndpointSliceList] {
			return c.DiscoveryV1().EndpointSlices("")
		})
	serviceCIDRs = kindOf("ServiceCIDRs", &networkingv1.ServiceCIDR{},
		func(c kubernetes.Interface) client[*networkingv1.ServiceCIDRList] {
			return c.NetworkingV1().ServiceCIDRs()
		})
	networkPolicies = kindOf("NetworkPolicies", &networkingv1.NetworkPolicy{},
		func(c kubernetes.Interface) client[*networkingv1.NetworkPolicyList] {
			return c.NetworkingV1().NetworkPolicies("")
		})
	namespaces = kindOf("Namespaces", &v1.Namespace{},
		func(c kubernetes.Interface) client[*v1.NamespaceList] { return c.CoreV1().Namespaces() })
	pods = kindOf("Pods", &v1.Pod{},
		func(c kubernetes.Interface) client[*v1.PodList] { return runningPods{c} })
	nodes = kindOf("Nodes", &v1.Node{},
		func(c kubernetes.Interface) client[*v1.NodeList] { return c.CoreV1().Nodes() })
)

// runningPods leaves out pods that have ended: a cluster keeps thousands of them.
type runningPods struct{ kubernetes.Interface }

const notEnded = "status.phase!=Succeeded,status.phase!=Failed"

func (c runningPods) List(ctx context.Context, o metav1.ListOptions) (*v1.PodList, error) {
	o.FieldSelector = notEnded
	return c.CoreV1().Pods(metav1.NamespaceAll).List(ctx, o)
}

func (c runningPods) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.FieldSelector = notEnded
	return c.CoreV1().Pods(metav1.NamespaceAll).Watch(ctx, o)
}
