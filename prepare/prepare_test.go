package prepare

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// TestSubnetOf: subnetOf returns the IPv4 network that the cluster assigned to the Node, if any.
func TestSubnetOf(t *testing.T) {
	for cidrs, want := range map[string]string{"10.42.3.0/24": "10.42.3.0/24", "fd00::/64,10.42.3.0/24": "10.42.3.0/24", "": ""} {
		n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "pi-1"}}
		if cidrs != "" {
			n.Spec.PodCIDRs = strings.Split(cidrs, ",")
			n.Spec.PodCIDR = n.Spec.PodCIDRs[0]
		}
		got, err := subnetOf(t.Context(), fake.NewClientset(n), "pi-1")
		if err != nil || got.IsValid() != (want != "") || got.IsValid() && got.String() != want {
			t.Errorf("%q: %s, %v", cidrs, got, err)
		}
	}
	if got, err := subnetOf(t.Context(), fake.NewClientset(), "pi-1"); err != nil || got.IsValid() {
		t.Errorf("no Node yet: %s, %v", got, err)
	}
}
