package node

import (
	"slices"
	"testing"
	"time"

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
	labelled := func(name, created, address string, ports ...int32) *v1.Service {
		s := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name, Labels: map[string]string{"k8s-app": "kube-dns"}}, Spec: v1.ServiceSpec{ClusterIP: address}}
		at, err := time.Parse(time.DateOnly, created)
		testutil.Must(t, err)
		s.CreationTimestamp = metav1.NewTime(at)
		for _, port := range ports {
			s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{Port: port})
		}
		return s
	}
	other := labelled("dns", "2026-01-01", "10.96.0.12", 53)
	other.Namespace = "default"
	unlabelled := labelled("dns", "2026-01-01", "10.96.0.12", 53)
	unlabelled.Labels = nil
	for name, c := range map[string]struct {
		configured []string
		service    *v1.Service
		others     []*v1.Service
		want       []string
	}{
		"the Service's":        {service: service("kube-system", v1.ServiceSpec{ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10", "fd00::a"}}), want: []string{"10.96.0.10", "fd00::a"}},
		"of an old API server": {service: service("kube-system", v1.ServiceSpec{ClusterIP: "10.96.0.10"}), want: []string{"10.96.0.10"}},
		"headless":             {service: service("kube-system", v1.ServiceSpec{ClusterIP: v1.ClusterIPNone, ClusterIPs: []string{v1.ClusterIPNone}})},
		"another namespace's":  {service: service("default", v1.ServiceSpec{ClusterIP: "10.96.0.11"})},
		"none":                 {},
		"the configuration's":  {configured: []string{"10.0.0.2"}, service: service("kube-system", v1.ServiceSpec{ClusterIP: "10.96.0.10"}), want: []string{"10.0.0.2"}},
		"RKE2's":               {service: labelled("rke2-coredns-rke2-coredns", "2026-01-01", "10.43.0.10", 53, 53, 9153), want: []string{"10.43.0.10"}},
		"kube-dns among labelled": {service: service("kube-system", v1.ServiceSpec{ClusterIP: "10.96.0.10"}), want: []string{"10.96.0.10"},
			others: []*v1.Service{labelled("a", "2026-01-01", "10.96.0.13", 53)}},
		"the oldest of several": {service: labelled("rke2-coredns-rke2-coredns", "2026-01-02", "10.43.0.10", 53), want: []string{"10.43.0.10"},
			others: []*v1.Service{labelled("kube-dns-upstream", "2026-01-03", "10.43.0.11", 53), labelled("metrics", "2026-01-01", "10.43.0.12", 9153), labelled("headless", "2026-01-01", v1.ClusterIPNone, 53)}},
		"the first by name of two": {service: labelled("b", "2026-01-01", "10.43.0.11", 53), want: []string{"10.43.0.10"},
			others: []*v1.Service{labelled("a", "2026-01-01", "10.43.0.10", 53)}},
		"without the label":         {service: unlabelled},
		"labelled, elsewhere":       {service: other},
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
			for _, s := range c.others {
				testutil.Must(t, index.Add(s))
			}
			if got := addresses(); !slices.Equal(got, c.want) {
				t.Errorf("pods get %v, want %v", got, c.want)
			}
		})
	}
}
