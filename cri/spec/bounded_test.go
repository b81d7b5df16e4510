package spec

import (
	"strconv"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// TestMetadataOfOnePodIsBounded: a pod with as many and as large annotations and labels as an API
// server accepts does not fill the runtime's list; small ones all stay.
func TestMetadataOfOnePodIsBounded(t *testing.T) {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u",
		Annotations: map[string]string{"small": "kept", "large": strings.Repeat("a", 200<<10)}, Labels: map[string]string{"app": "web"}}}
	for i := range 2000 {
		p.Labels["label-"+strconv.Itoa(i)] = strings.Repeat("l", 63)
	}
	m := Machine{Owner: "us"}
	annotations, labels := sandboxAnnotations(p, Machine{}), sandboxLabels(p, m)
	if annotations["small"] != "kept" || annotations["large"] != "" || annotations[pod.AnnotationAllocation] == "" {
		t.Errorf("%d annotations", len(annotations))
	}
	if labels["app"] != "web" || labels[pod.LabelPodUID] != "u" || labels[pod.LabelOwner] != "us" {
		t.Errorf("%d labels", len(labels))
	}
	total := 0
	for k, v := range labels {
		total += len(k) + len(v)
	}
	if total > 20<<10 {
		t.Errorf("the labels take %d bytes", total)
	}
	if len(p.Labels) != 2001 || len(p.Annotations) != 2 {
		t.Error("the pod itself was changed")
	}

	c := &v1.Container{Name: "c", Lifecycle: &v1.Lifecycle{PreStop: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{strings.Repeat("x", 900<<10)}}}}}
	if out := containerAnnotations(p, c, &ContainerInput{}); len(out[pod.AnnotationPreStop]) > maxAnnotations || out[pod.AnnotationHash] == "" {
		t.Errorf("the hook's annotation takes %d bytes", len(out[pod.AnnotationPreStop]))
	}
}
