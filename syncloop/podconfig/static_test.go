package podconfig

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/pod"
)

func staticPod(name, uid string, edit ...func(*v1.Pod)) *v1.Pod {
	return newPod(name, uid, append([]func(*v1.Pod){func(p *v1.Pod) {
		p.Annotations = map[string]string{pod.AnnotationSource: SourceFile, pod.AnnotationConfigHash: uid, pod.AnnotationSeen: "first"}
		p.Status.Phase = v1.PodPending
	}}, edit...)...)
}

func mirrorPod(name, uid, of string, edit ...func(*v1.Pod)) *v1.Pod {
	return newPod(name, uid, append([]func(*v1.Pod){func(p *v1.Pod) {
		p.Annotations = map[string]string{pod.AnnotationSource: SourceFile, pod.AnnotationConfigHash: of, pod.AnnotationMirror: of}
	}}, edit...)...)
}

func seenLater(p *v1.Pod) { p.Annotations[pod.AnnotationSeen] = "later" }

// Static pods and mirror pods of one name are kept apart, and a mirror pod is never run.
func TestMergeStatic(t *testing.T) {
	file := func(pods ...*v1.Pod) func(*PodConfig) { return func(c *PodConfig) { c.Replace(SourceFile, pods) } }
	api := func(p *v1.Pod) func(*PodConfig) { return func(c *PodConfig) { c.Set(SourceAPI, p) } }
	gone := func(name string) func(*PodConfig) { return func(c *PodConfig) { c.Drop(SourceAPI, "ns", name) } }
	for _, tc := range []struct {
		name  string
		steps []func(*PodConfig)
		want  []string
	}{
		{"new, and again", []func(*PodConfig){file(staticPod("a", "1")), file(staticPod("a", "1", seenLater))}, []string{"ADD a/1"}},
		{"edited", []func(*PodConfig){file(staticPod("a", "1")), file(staticPod("a", "2"))}, []string{"ADD a/1", "REMOVE a/1", "ADD a/2"}},
		{"edited under its own UID", []func(*PodConfig){file(staticPod("a", "1")), file(staticPod("a", "1", labelled))}, []string{"ADD a/1", "UPDATE a/1"}},
		{"removed beside another", []func(*PodConfig){file(staticPod("a", "1"), staticPod("b", "2")), file(staticPod("b", "2"))}, []string{"ADD a/1", "ADD b/2", "REMOVE a/1"}},
		{"a mirror pod alone", []func(*PodConfig){api(mirrorPod("a", "m", "1")), gone("a")}, nil},
		{"shown by its mirror pod", []func(*PodConfig){file(staticPod("a", "1")), api(mirrorPod("a", "m", "1", ready))}, []string{"ADD a/1", "RECONCILE a/1"}},
		{"the mirror pod goes", []func(*PodConfig){file(staticPod("a", "1")), api(mirrorPod("a", "m", "1")), gone("a")}, []string{"ADD a/1", "RECONCILE a/1"}},
		{"another version's mirror pod", []func(*PodConfig){file(staticPod("a", "1")), api(mirrorPod("a", "m", "2"))}, []string{"ADD a/1"}},
		{"another name's mirror pod", []func(*PodConfig){file(staticPod("a", "1")), api(mirrorPod("b", "m", "1"))}, []string{"ADD a/1"}},
		{"a pod in the mirror pod's place", []func(*PodConfig){api(mirrorPod("a", "m", "1")), api(newPod("a", "2")), api(mirrorPod("a", "m2", "1"))}, []string{"ADD a/2", "REMOVE a/2"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := New(SourceAPI, SourceFile)
			got := changes(t, c, func() {
				for _, step := range tc.steps {
					step(c)
				}
			})
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A static pod takes the status of its mirror pod, except an end that another writer put there.
func TestStaticStatus(t *testing.T) {
	failed := func(p *v1.Pod) { p.Status.Phase = v1.PodFailed }
	for what, tc := range map[string]struct {
		mirror *v1.Pod
		want   v1.PodPhase
	}{
		"running":         {mirrorPod("a", "m", "1", ready), v1.PodRunning},
		"failed":          {mirrorPod("a", "m", "1", failed), v1.PodPending},
		"being deleted":   {mirrorPod("a", "m", "1", ready, deleted(30)), v1.PodPending},
		"another version": {mirrorPod("a", "m", "2", ready), v1.PodPending},
	} {
		for order, steps := range map[string][]func(*PodConfig){
			"the mirror pod first": {func(c *PodConfig) { c.Set(SourceAPI, tc.mirror) }, func(c *PodConfig) { c.Replace(SourceFile, []*v1.Pod{staticPod("a", "1")}) }},
			"the static pod first": {func(c *PodConfig) { c.Replace(SourceFile, []*v1.Pod{staticPod("a", "1")}) }, func(c *PodConfig) { c.Set(SourceAPI, tc.mirror) }},
		} {
			c := New(SourceAPI, SourceFile)
			steps[0](c)
			steps[1](c)
			if p := c.Get("1"); p == nil || p.Status.Phase != tc.want || len(c.Pods()) != 1 {
				t.Errorf("%s, %s: %v, want %s", what, order, p, tc.want)
			}
		}
	}
	c := New(SourceAPI, SourceFile)
	c.Replace(SourceFile, []*v1.Pod{staticPod("a", "1")})
	if !c.RetainTerminalStatus("1", v1.PodStatus{Phase: v1.PodSucceeded}) || c.RetainTerminalStatus("2", v1.PodStatus{}) {
		t.Error("it retains a status for other pods than the source has")
	}
	c.Set(SourceAPI, mirrorPod("a", "m", "1", ready))
	c.Replace(SourceFile, []*v1.Pod{staticPod("a", "1", seenLater)})
	if p := c.Get("1"); p.Status.Phase != v1.PodSucceeded || p.Annotations[pod.AnnotationSeen] != "first" {
		t.Errorf("the end is not remembered: %s, seen %s", p.Status.Phase, p.Annotations[pod.AnnotationSeen])
	}
}

func TestObjectAndResolve(t *testing.T) {
	c := New(SourceAPI, SourceFile)
	ref := pod.Ref{Namespace: "ns", Name: "a", UID: "1"}
	if object, ok := c.Object(ref); !ok || object != ref {
		t.Errorf("a pod of the API server is reported by %v, %v", object, ok)
	}
	c.Replace(SourceFile, []*v1.Pod{staticPod("a", "1")})
	if object, ok := c.Object(ref); ok {
		t.Errorf("without a mirror pod it is reported by %v", object)
	}
	c.Set(SourceAPI, mirrorPod("a", "m", "1"))
	if object, ok := c.Object(ref); !ok || object.UID != "m" || c.Resolve("m") != "1" || c.Resolve("1") != "1" {
		t.Errorf("it is reported by %v, %v; m is %s", object, ok, c.Resolve("m"))
	}
	c.Replace(SourceFile, nil)
	if object, ok := c.Object(ref); !ok || object.UID != "m" {
		t.Errorf("while it ends it is reported by %v, %v", object, ok)
	}
	c.Set(SourceAPI, mirrorPod("a", "m", "1", deleted(0)))
	if object, ok := c.Object(ref); ok {
		t.Errorf("one on its way out tells: %v", object)
	}
}

// A pod from the API server does not become a static pod by its annotation.
func TestClaims(t *testing.T) {
	c := New(SourceAPI, SourceFile)
	p := newPod("a", "1", func(p *v1.Pod) { p.Annotations = map[string]string{pod.AnnotationSource: SourceFile, "b": "c"} })
	c.Set(SourceAPI, p)
	if got := c.Get("1"); pod.IsStatic(got) || got.Annotations["b"] != "c" || !pod.IsStatic(p) {
		t.Errorf("it is taken for %v, and itself is now %v", got.Annotations, p.Annotations)
	}
	at := metav1.Now()
	p = p.DeepCopy()
	p.DeletionTimestamp = &at
	c.Last(SourceAPI, p)
	if got := c.Get("1"); pod.IsStatic(got) {
		t.Error("its last version is believed")
	}
}
