package mirror

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/pod"
)

// action is one call to be made. Static is the pod whose mirror pod is to be made, Mirror
// the mirror pod that goes before, or alone.
type action struct {
	static *v1.Pod
	mirror *v1.Pod
	why    string
}

// name is that of the mirror pod.
func (a action) name() string {
	p := a.static
	if p == nil {
		p = a.mirror
	}
	return p.Namespace + "/" + p.Name
}

// input of decide.
type input struct {
	static, mirrors []*v1.Pod
	// complete: every source has been seen, so that a mirror pod without a static pod
	// stands for nothing.
	complete bool
	// ending says whether an earlier static pod of this name has not ended yet.
	ending func(namespace, name string) bool
	// buried says of a mirror pod that it tells of a life of its static pod that is over.
	buried func(mirror types.UID) bool
	// lives says whether this static pod lives: nothing of it has ended, or is about to.
	lives func(static types.UID) bool
	// withheld says of a mirror pod's annotations that its static pod may be there.
	withheld func(annotations map[string]string) bool
}

// decide says what to do so that each static pod has its mirror pod, and nothing else
// has one. The mirror pod of a pod that still ends shows how it ends, and stays.
func decide(in input) []action {
	type name struct{ namespace, name string }
	of := func(p *v1.Pod) name { return name{p.Namespace, p.Name} }
	mirrors := make(map[name]*v1.Pod, len(in.mirrors))
	for _, m := range in.mirrors {
		mirrors[of(m)] = m
	}
	wanted := map[name]*v1.Pod{}
	for _, p := range in.static {
		// Of two of one name, from two sources, the one that is shown already.
		if m := mirrors[of(p)]; wanted[of(p)] == nil || m != nil && stands(m, p) {
			wanted[of(p)] = p
		}
	}
	var out []action
	for _, p := range in.static {
		m := mirrors[of(p)]
		switch {
		case wanted[of(p)] != p, in.ending(p.Namespace, p.Name):
		case m == nil:
			out = append(out, action{static: p, why: "it has none"})
		case m.DeletionTimestamp != nil:
			out = append(out, action{static: p, mirror: m, why: "it was deleted, and the static pod was not"})
		case !stands(m, p):
			out = append(out, action{static: p, mirror: m, why: "it stands for another version of the static pod"})
		case in.buried(m.UID):
			out = append(out, action{static: p, mirror: m, why: "it told how the static pod ended that was put back since"})
		case ended(m) && in.lives(p.UID):
			// No status comes back from its end: it tells of a life that ended with a
			// shutdown of the machine.
			out = append(out, action{static: p, mirror: m, why: "it tells of the end of an earlier life"})
		}
	}
	for _, m := range in.mirrors {
		if wanted[of(m)] == nil && in.complete && !in.ending(m.Namespace, m.Name) && !in.withheld(m.Annotations) {
			out = append(out, action{mirror: m, why: "there is no such static pod"})
		}
	}
	return out
}

func stands(mirror, static *v1.Pod) bool {
	return mirror.Annotations[pod.AnnotationMirror] == static.Annotations[pod.AnnotationConfigHash]
}

func ended(p *v1.Pod) bool {
	return p.Status.Phase == v1.PodSucceeded || p.Status.Phase == v1.PodFailed
}
