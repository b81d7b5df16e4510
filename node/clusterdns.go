package node

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// dnsService is the name of the cluster's DNS Service. kubeadm, k3s, kind and the cloud providers
// all use it, with CoreDNS or not.
const dnsService = "kube-dns"

// dnsLabels select the cluster's DNS Service where it has another name. RKE2's Helm chart calls it
// rke2-coredns-rke2-coredns.
var dnsLabels = labels.SelectorFromSet(labels.Set{"k8s-app": "kube-dns"})

// dnsPort is the port to which resolvers send.
const dnsPort = 53

// clusterDNS returns a function for the addresses of the cluster's DNS: those in the configuration,
// or else those of the cluster's DNS Service in kube-system. A node may read Services anyway, so
// this needs no further right. An empty list in the configuration is a choice: pods then get the
// host's resolver.
func clusterDNS(configured []string, services corelisters.ServiceLister) func() []string {
	if configured != nil {
		return func() []string { return configured }
	}
	return func() []string {
		service := findDNS(services.Services(metav1.NamespaceSystem))
		if service == nil {
			return nil
		}
		return clusterIPs(service)
	}
}

// findDNS returns the cluster's DNS Service, by its name or else by its label, or nil if it does not
// exist or the API server has not been met. Other Services may have the label too: those of metrics
// do not serve DNS, and the oldest of the rest is the cluster's own.
func findDNS(services corelisters.ServiceNamespaceLister) *v1.Service {
	if service, err := services.Get(dnsService); err == nil {
		return service
	}
	labelled, err := services.List(dnsLabels)
	if err != nil {
		return nil
	}
	labelled = slices.DeleteFunc(labelled, func(s *v1.Service) bool {
		return len(clusterIPs(s)) == 0 || !slices.ContainsFunc(s.Spec.Ports, func(p v1.ServicePort) bool { return p.Port == dnsPort })
	})
	if len(labelled) == 0 {
		return nil
	}
	return slices.MinFunc(labelled, func(a, b *v1.Service) int {
		if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
}

// clusterIPs returns the addresses of a Service; a headless one has none.
func clusterIPs(s *v1.Service) []string {
	addresses := s.Spec.ClusterIPs
	if len(addresses) == 0 {
		addresses = []string{s.Spec.ClusterIP}
	}
	return slices.DeleteFunc(slices.Clone(addresses), func(a string) bool { return a == "" || a == v1.ClusterIPNone })
}
