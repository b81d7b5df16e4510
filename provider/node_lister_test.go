package provider

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestObjectTTL(t *testing.T) {
	for annotation, want := range map[string]time.Duration{"0": 0, "300": 5 * time.Minute, "": -1, "5m": -1} {
		n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"node.alpha.kubernetes.io/ttl": annotation}}}
		ttl, ok := objectTTL(n)
		if ok != (want >= 0) || ok && ttl != want {
			t.Errorf("%q: %v, %v", annotation, ttl, ok)
		}
	}
	if _, ok := objectTTL(&v1.Node{}); ok {
		t.Error("a node without the annotation says something")
	}
}
