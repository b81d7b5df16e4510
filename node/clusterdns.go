package node

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// dnsService is the name of the cluster's DNS Service. kubeadm, k3s, kind and the cloud providers
// all use it, with CoreDNS or not.
const dnsService = "kube-dns"

// clusterDNS returns a function for the addresses of the cluster's DNS: those in the configuration,
// or else those of the Service kube-system/kube-dns. A node may read Services anyway, so this needs
// no further right. An empty list in the configuration is a choice: pods then get the host's
// resolver.
func clusterDNS(configured []string, services corelisters.ServiceLister) func() []string {
	if configured != nil {
		return func() []string { return configured }
	}
	return func() []string {
		service, err := services.Services(metav1.NamespaceSystem).Get(dnsService)
		if err != nil { // the Service does not exist, or the API server has not been met
			return nil
		}
		addresses := service.Spec.ClusterIPs
		if len(addresses) == 0 {
			addresses = []string{service.Spec.ClusterIP}
		}
		return slices.DeleteFunc(slices.Clone(addresses), func(a string) bool { return a == "" || a == v1.ClusterIPNone })
	}
}
