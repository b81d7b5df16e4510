package provider

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestOutlines: virtual-kubelet sees of a pod what it acts on, and nothing of its spec. The informer's own
// pods stay whole.
func TestOutlines(t *testing.T) {
	source, err := NewPodSource(fake.NewClientset(), "node")
	testutil.Must(t, err)
	deleted := metav1.NewTime(time.Unix(1000, 0))
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "u", Generation: 3, DeletionTimestamp: &deleted, Labels: map[string]string{"a": "b"}},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "app"}}},
		Status:     v1.PodStatus{Phase: v1.PodRunning},
	}
	testutil.Must(t, source.informer.GetIndexer().Add(p))
	lister := outlines{source}.Lister()
	one, err := lister.Pods("ns").Get("web")
	testutil.Must(t, err)
	all, err := lister.List(labels.Everything())
	testutil.Must(t, err)
	named, err := lister.Pods("ns").List(labels.Everything())
	testutil.Must(t, err)
	for _, got := range append(append([]*v1.Pod{one}, all...), named...) {
		if got.UID != "u" || got.Generation != 3 || got.DeletionTimestamp == nil || got.Labels["a"] != "b" || got.Status.Phase != v1.PodRunning || len(got.Spec.Containers) != 0 {
			t.Errorf("%+v", got)
		}
	}
	if len(all) != 1 || len(named) != 1 {
		t.Errorf("%d pods, and %d of the namespace", len(all), len(named))
	}
	if whole, err := source.Lister().Pods("ns").Get("web"); err != nil || len(whole.Spec.Containers) != 1 {
		t.Errorf("%v: %+v", err, whole)
	}
	if _, err := lister.Pods("ns").Get("other"); err == nil {
		t.Error("a pod that does not exist was found")
	}
}
