package provider

import (
	"context"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/bowline-k8s/bowline/hint"
)

func TestCheckOwn(t *testing.T) {
	managed := v1.NodeStatus{NodeInfo: v1.NodeSystemInfo{KubeletVersion: "v1.37.1", OSImage: "Debian"}}
	for name, c := range map[string]struct {
		annotations map[string]string
		status      v1.NodeStatus
		ours        bool
	}{
		"a kubelet's":                {nil, managed, false},
		"another mark":               {map[string]string{AnnotationDriver: "other"}, managed, false},
		"ours":                       {map[string]string{AnnotationDriver: "bowline"}, managed, true},
		"made before its machine":    {nil, v1.NodeStatus{}, true},
		"ours, not yet reported for": {map[string]string{AnnotationDriver: "bowline"}, v1.NodeStatus{}, true},
	} {
		err := CheckOwn(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: c.annotations}, Status: c.status})
		if (err == nil) != c.ours {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && (strings.Contains(err.Error(), "\n") || !strings.Contains(hint.Of(err), "kubectl annotate node n1 bowline.io/driver=bowline")) {
			t.Errorf("%s: %q", name, err)
		}
	}
}

// TestForeignNodeIsNotChanged: a registered node is marked. One that another agent has taken over
// is neither read nor patched.
func TestForeignNodeIsNotChanged(t *testing.T) {
	ctx := context.Background()
	made := nodeObject(Registration{NodeName: "n1"}, NodeInfo{KubeletVersion: "v1.37.1"}, nil, nil, 0, metav1.Now().Time)
	if err := CheckOwn(made); err != nil {
		t.Fatalf("our own node: %v", err)
	}
	delete(made.Annotations, AnnotationDriver)
	client := fake.NewClientset(made)
	c := &nodeClient{NodeInterface: client.CoreV1().Nodes(), log: reportLog()}
	if _, err := c.Get(ctx, "n1", metav1.GetOptions{}); err == nil || !strings.Contains(err.Error(), "does not belong to Bowline") {
		t.Errorf("it was read: %v", err)
	}
	if _, err := c.Patch(ctx, "n1", "application/strategic-merge-patch+json", []byte(`{}`), metav1.PatchOptions{}, "status"); err == nil {
		t.Error("it was patched")
	}
	for _, a := range client.Actions() {
		if a.GetVerb() != "get" {
			t.Errorf("%s of %s", a.GetVerb(), a.GetResource().Resource)
		}
	}
}
