package node

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestClusterDNS: a chart that is only rendered cannot look up the cluster's DNS, so the node finds
// it at any time, unless the configuration names it.
func TestClusterDNS(t *testing.T) {
	service := func(namespace string, s v1.ServiceSpec) *v1.Service {
		return &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "kube-dns"}, Spec: s}
	}
	for name, c := range map[string]struct {
		configured []string
		service    *v1.Service
		want       []string
	}{
		"the Service's":             {service: service("kube-system", v1.ServiceSpec{ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10", "fd00::a"}}), want: []string{"10.96.0.10", "fd00::a"}},
		"of an old API server":      {service: service("kube-system", v1.ServiceSpec{ClusterIP: "10.96.0.10"}), want: []string{"10.96.0.10"}},
		"headless":                  {service: service("kube-system", v1.ServiceSpec{ClusterIP: v1.ClusterIPNone, ClusterIPs: []string{v1.ClusterIPNone}})},
		"another namespace's":       {service: service("default", v1.ServiceSpec{ClusterIP: "10.96.0.11"})},
		"none":                      {},
		"the configuration's":       {configured: []string{"10.0.0.2"}, service: service("kube-system", v1.ServiceSpec{ClusterIP: "10.96.0.10"}), want: []string{"10.0.0.2"}},
		"the configuration's: none": {configured: []string{}, service: service("kube-system", v1.ServiceSpec{ClusterIP: "10.96.0.10"})},
	} {
		t.Run(name, func(t *testing.T) {
			index := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
			addresses := clusterDNS(c.configured, corelisters.NewServiceLister(index))
			if c.configured == nil && len(addresses()) != 0 {
				t.Fatalf("%v before there is a Service", addresses())
			}
			if c.service != nil { // created after the node
				testutil.Must(t, index.Add(c.service))
			}
			if got := addresses(); !slices.Equal(got, c.want) {
				t.Errorf("pods get %v, want %v", got, c.want)
			}
		})
	}
}
