package node

import (
	"testing"

	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/bowline-k8s/bowline/cluster"
	"github.com/bowline-k8s/bowline/provider/clusterwide"
)

// runtimeHandler reads a RuntimeClass that the informer does not have: a pod does not wait for the
// watch.
func TestRuntimeClassThatIsNotSeen(t *testing.T) {
	client := fake.NewClientset(&nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "new"}, Handler: "h"})
	var shared clusterwide.Shared
	n := &Node{cluster: &cluster.Connection{Client: client}, runtimeClasses: shared.RuntimeClasses()}
	if handler, err := n.runtimeHandler(t.Context(), "new"); handler != "h" || err != nil {
		t.Errorf("%q, %v", handler, err)
	}
	if _, err := n.runtimeHandler(t.Context(), "none"); err == nil {
		t.Error("a class that does not exist has a handler")
	}
}
