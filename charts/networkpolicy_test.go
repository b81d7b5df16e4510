package charts

import (
	"reflect"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// TestNetworkPolicy: the policy selects the pods in which the nodes listen, and admits only the
// peers in the values.
func TestNetworkPolicy(t *testing.T) {
	all := documents(t, "testdata/example.yaml")
	policies := of[networkingv1.NetworkPolicy](t, all, "NetworkPolicy")
	p, d := policies["example-bowline"], of[appsv1.Deployment](t, all, "Deployment")["example-bowline"]
	if len(policies) != 1 || p == nil || d == nil {
		t.Fatalf("the policies are %v", policies)
	}
	if p.Namespace != d.Namespace || !reflect.DeepEqual(p.Spec.PodSelector, *d.Spec.Selector) {
		t.Errorf("it selects %v of %s", p.Spec.PodSelector, p.Namespace)
	}
	if len(p.Spec.PolicyTypes) != 1 || p.Spec.PolicyTypes[0] != networkingv1.PolicyTypeIngress || len(p.Spec.Ingress) != 1 {
		t.Fatalf("it is of %v: %v", p.Spec.PolicyTypes, p.Spec.Ingress)
	}
	in := p.Spec.Ingress[0]
	if len(in.Ports) != 0 || len(in.From) != 1 || in.From[0].IPBlock == nil || in.From[0].IPBlock.CIDR != "192.0.2.10/32" {
		t.Errorf("it lets in %v", in)
	}
}
