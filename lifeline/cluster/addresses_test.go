package cluster

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestNodeOf: which addresses lead to a node.
func TestNodeOf(t *testing.T) {
	for name, c := range map[string]struct {
		node v1.Node
		want string
	}{
		"none":        {v1.Node{}, "{n [] []}"},
		"dual stack":  {v1.Node{Spec: v1.NodeSpec{PodCIDR: "10.1.0.0/24", PodCIDRs: []string{"10.1.0.0/24", "fd00:1::/64"}}}, "{n [10.1.0.0 10.1.0.1 fd00:1:: fd00:1::1] [10.1.0.0/24 fd00:1::/64]}"},
		"one podCIDR": {v1.Node{Spec: v1.NodeSpec{PodCIDR: "10.1.0.7/24"}}, "{n [10.1.0.0 10.1.0.1] [10.1.0.0/24]}"},
		"no prefix":   {v1.Node{Spec: v1.NodeSpec{PodCIDR: "ten"}}, "{n [] []}"},
		"addresses and names": {v1.Node{Status: v1.NodeStatus{Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "192.168.0.2"},
			{Type: v1.NodeExternalIP, Address: "192.0.2.1"}, {Type: v1.NodeHostName, Address: "n"}, {Type: v1.NodeInternalIP, Address: "192.168.0.2"}}}}, "{n [192.0.2.1 192.168.0.2] []}"},
		"Calico": {v1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"projectcalico.org/IPv4Address": "192.168.0.2/24",
			"projectcalico.org/IPv4VXLANTunnelAddr": "10.244.9.64", "projectcalico.org/ASNumber": "64512"}}, Spec: v1.NodeSpec{PodCIDR: "10.1.0.0/24"}},
			"{n [10.244.9.64 192.168.0.2] [10.1.0.0/24]}"},
	} {
		c.node.Name = "n"
		if got := fmt.Sprint(nodeOf(&c.node)); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestServicePrefixes(t *testing.T) {
	of := func(all ...string) *networkingv1.ServiceCIDR {
		return &networkingv1.ServiceCIDR{Spec: networkingv1.ServiceCIDRSpec{CIDRs: all}}
	}
	if got := servicePrefixes(nil); got == nil || len(got) != 0 {
		t.Errorf("no object: %#v", got)
	}
	got := servicePrefixes([]*networkingv1.ServiceCIDR{of("fd00::/108", "10.96.0.0/12"), of("10.96.0.9/12", "ten"), of("10.8.0.0/16")})
	if fmt.Sprint(got) != "[10.8.0.0/16 10.96.0.0/12 fd00::/108]" {
		t.Errorf("got %v", got)
	}
}
