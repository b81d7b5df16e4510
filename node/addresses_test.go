package node

import (
	"testing"

	v1 "k8s.io/api/core/v1"
)

// The API server may dial the Hostname address first, so the host must not choose it.
func TestHostnameAddressIsTheNodesName(t *testing.T) {
	n := &Node{name: "box-1"}
	got := n.addresses([]string{"192.0.2.7"})
	if len(got) != 2 || got[1] != (v1.NodeAddress{Type: v1.NodeHostName, Address: "box-1"}) {
		t.Errorf("addresses %v", got)
	}
}
