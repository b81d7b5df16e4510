package ownership

import (
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

func TestNodeNames(t *testing.T) {
	var n nodeNames
	free, err := n.reserve([]string{"c1"}, "box", "a")
	testutil.Must(t, err)
	if _, err := n.reserve([]string{"c1"}, "box", "b"); err == nil || !strings.Contains(err.Error(), `host a already uses the node name "box"`) {
		t.Errorf("a second host of one node: %v", err)
	}
	for _, other := range [][2]string{{"c2", "box"}, {"c1", "box2"}} {
		if _, err := n.reserve([]string{other[0]}, other[1], "b"); err != nil {
			t.Errorf("%s in %s: %v", other[1], other[0], err)
		}
	}
	free()
	if _, err := n.reserve([]string{"c1"}, "box", "b"); err != nil {
		t.Errorf("after free: %v", err)
	}
}

// TestNodeNamesOfManyWitnesses: one witness in common is enough, as when the Service was recreated
// between the starts of two hosts. A refused host takes no name.
func TestNodeNamesOfManyWitnesses(t *testing.T) {
	var n nodeNames
	free, err := n.reserve([]string{"service-1", "node-1", "node-1"}, "box", "a")
	testutil.Must(t, err)
	if _, err := n.reserve([]string{"service-2", "node-1"}, "box", "b"); err == nil || !strings.Contains(err.Error(), `host a already uses the node name "box"`) {
		t.Errorf("a second host of one node: %v", err)
	}
	if _, err := n.reserve([]string{"service-2"}, "box", "c"); err != nil {
		t.Errorf("a refused host has taken a name: %v", err)
	}
	free()
	if _, err := n.reserve([]string{"service-1", "node-1"}, "box", "b"); err != nil {
		t.Errorf("after free: %v", err)
	}
}
