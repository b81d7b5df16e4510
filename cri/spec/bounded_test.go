package spec

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/bowline-k8s/bowline/pod"
)

// TestMetadataOfOnePodIsBounded: a pod with as many and as large annotations and labels as an API
// server accepts does not fill the runtime's list; small ones all stay.
func TestMetadataOfOnePodIsBounded(t *testing.T) {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u",
		Annotations: map[string]string{"small": "kept", "large": strings.Repeat("a", 200<<10), pod.AnnotationAllocation: strings.Repeat("f", 2<<10)},
		Labels:      map[string]string{"app": "web"}}}
	for i := range 2000 {
		p.Labels["label-"+strconv.Itoa(i)] = strings.Repeat("l", 63)
	}
	m := Machine{Owner: "us"}
	annotations, labels := sandboxAnnotations(p, Machine{}), sandboxLabels(p, m)
	if annotations["small"] != "kept" || annotations["large"] != "" || !strings.HasPrefix(annotations[pod.AnnotationAllocation], "{") {
		t.Errorf("%d annotations", len(annotations))
	}
	if labels["app"] != "web" || labels[pod.LabelPodUID] != "u" || labels[pod.LabelOwner] != "us" {
		t.Errorf("%d labels", len(labels))
	}
	if len(p.Labels) != 2001 || len(p.Annotations) != 3 {
		t.Error("the pod itself was changed")
	}
	if n := cost(labels) - cost(sandboxLabels(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}}, m)); n > maxLabels {
		t.Errorf("the pod's labels cost %d", n)
	}

	p.Labels = map[string]string{}
	for i := range 5000 { // many entries cost more in memory than their bytes
		p.Labels[strconv.Itoa(i)] = ""
	}
	if n := len(sandboxLabels(p, m)); n > 50 {
		t.Errorf("%d labels", n)
	}
}

// TestHooksOfAPodAreBoundedTogether: the containers' hooks, as JSON writes them, have one bound for
// the pod. The first containers keep theirs, and an ephemeral container takes nothing from them.
func TestHooksOfAPodAreBoundedTogether(t *testing.T) {
	p := &v1.Pod{}
	hook := &v1.Lifecycle{PreStop: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{strings.Repeat("<", 300)}}}}
	for i := range 270 {
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: fmt.Sprint("c", i), Lifecycle: hook, Ports: []v1.ContainerPort{{ContainerPort: 80}}})
	}
	total := func() (n int, hooks int) {
		for c := range pod.AllContainers(&p.Spec) {
			a := containerAnnotations(p, c, &ContainerInput{})
			for _, k := range []string{pod.AnnotationPreStop, pod.AnnotationPorts} {
				if v, ok := a[k]; ok {
					n += entry(k, v)
				}
			}
			if a[pod.AnnotationPreStop] != "" {
				hooks++
			}
			if a[pod.AnnotationHash] == "" || a[pod.AnnotationImage] != c.Image {
				t.Errorf("%s lacks its own annotations", c.Name)
			}
		}
		return n, hooks
	}
	n, hooks := total()
	if n > maxOptional || hooks == 0 || containerAnnotations(p, &p.Spec.Containers[0], &ContainerInput{})[pod.AnnotationPreStop] == "" {
		t.Errorf("%d bytes of %d hooks", n, hooks)
	}
	before := containerAnnotations(p, &p.Spec.Containers[1], &ContainerInput{})
	p.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "debug", Lifecycle: hook}}}
	if after := containerAnnotations(p, &p.Spec.Containers[1], &ContainerInput{}); len(after) != len(before) {
		t.Errorf("an ephemeral container changed %d annotations to %d", len(before), len(after))
	}
	if again, _ := total(); again > maxOptional {
		t.Errorf("%d bytes with an ephemeral container", again)
	}
}

// TestAllocationOfManyContainers: the annotation with one entry for each container is left out before
// it becomes too long.
func TestAllocationOfManyContainers(t *testing.T) {
	for n, want := range map[int]bool{1: true, 20: true, 5000: false} {
		p := &v1.Pod{}
		for i := range n {
			p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: fmt.Sprint("c", i),
				Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}}})
		}
		if _, has := sandboxAnnotations(p, Machine{})[pod.AnnotationAllocation]; has != want {
			t.Errorf("%d containers: %v", n, has)
		}
	}
}

// TestBareSandbox: a sandbox beside those that carry the pod's metadata has only what Bowline needs
// to recognize it.
func TestBareSandbox(t *testing.T) {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u", Labels: map[string]string{"app": "web"},
		Annotations: map[string]string{"a": "b", pod.AnnotationSource: "file", pod.AnnotationConfigHash: strings.Repeat("x", 1<<10)}}}
	config, err := Sandbox(p, Machine{Owner: "us"}, 7)
	if err != nil {
		t.Fatal(err)
	}
	Bare(config)
	if len(config.Labels) != 4 || config.Labels[pod.LabelOwner] != "us" || len(config.Annotations) != 2 || config.Annotations[pod.AnnotationSource] != "file" {
		t.Errorf("%v, %v", config.Labels, config.Annotations)
	}
}

// TestAnyMetadataIsBounded: whatever labels, annotations, hooks and paths a pod has, what it adds to
// the lists stays within the bound of one pod.
func TestAnyMetadataIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		texts := rapid.Custom(func(t *rapid.T) string {
			return strings.Repeat(rapid.SampledFrom([]string{"x", "<", "\x01", "ä", `"`}).Draw(t, "of"), rapid.IntRange(0, 9000).Draw(t, "length"))
		})
		m := rapid.Custom(func(t *rapid.T) map[string]string {
			out := map[string]string{}
			long := texts.Draw(t, "value")
			for i := range rapid.IntRange(0, 200).Draw(t, "entries") {
				out[strconv.Itoa(i)] = long[:min(len(long), rapid.IntRange(0, 300).Draw(t, "cut"))]
			}
			out["long"] = long
			return out
		})
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u", Labels: m.Draw(t, "labels"), Annotations: m.Draw(t, "annotations")}}
		for i := range rapid.IntRange(1, 20).Draw(t, "containers") {
			c := v1.Container{Name: fmt.Sprint("c", i), Image: "i", TerminationMessagePath: texts.Draw(t, "path")}
			c.Lifecycle = &v1.Lifecycle{PreStop: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{texts.Draw(t, "hook")}}}}
			p.Spec.Containers = append(p.Spec.Containers, c)
		}
		plain := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}, Spec: *p.Spec.DeepCopy()}
		if n := cost(sandboxLabels(p, Machine{})) - cost(sandboxLabels(plain, Machine{})); n > maxLabels {
			t.Fatalf("the labels cost %d", n)
		}
		if n := cost(sandboxAnnotations(p, Machine{})); n > maxAnnotations {
			t.Fatalf("the annotations cost %d", n)
		}
		n := 0
		for i := range p.Spec.Containers {
			c := &p.Spec.Containers[i]
			for k, v := range containerAnnotations(p, c, &ContainerInput{}) {
				switch {
				case k == pod.AnnotationPreStop, k == pod.AnnotationTerminationPath && len(v) > maxPath:
					n += entry(k, v)
				case len(v) > maxPath:
					t.Fatalf("%s has %d bytes", k, len(v))
				}
			}
		}
		if n > maxOptional {
			t.Fatalf("the containers' annotations cost %d", n)
		}
	})
}
