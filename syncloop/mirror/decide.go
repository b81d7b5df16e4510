package mirror

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/pod"
)

// action is a step of the Manager. static is the pod to create a mirror pod for; mirror is the
// mirror pod to delete first, or alone.
type action struct {
	static *v1.Pod
	mirror *v1.Pod
	why    string
}

// name returns the namespace and name of the mirror pod.
func (a action) name() string {
	p := a.static
	if p == nil {
		p = a.mirror
	}
	return p.Namespace + "/" + p.Name
}

// input is the input of decide.
type input struct {
	static, mirrors []*v1.Pod
	// complete: every source has been seen, so a mirror pod without a static pod is stale.
	complete bool
	// ending reports whether an earlier static pod of this name has not ended yet.
	ending func(namespace, name string) bool
	// forgotten reports whether a mirror pod describes an ended life of its static pod.
	forgotten func(mirror types.UID) bool
	// alive reports whether this static pod is alive: it has not ended and is not ending.
	alive func(static types.UID) bool
	// withheld reports whether the static pod of a mirror pod with these annotations may exist
	// although no source shows it.
	withheld func(annotations map[string]string) bool
}

// decide returns the actions after which each static pod has its mirror pod, and no other mirror
// pod exists. The mirror pod of a pod that is still ending shows how it ends, and stays.
func decide(in input) []action {
	type name struct{ namespace, name string }
	of := func(p *v1.Pod) name { return name{p.Namespace, p.Name} }
	mirrors := make(map[name]*v1.Pod, len(in.mirrors))
	for _, m := range in.mirrors {
		mirrors[of(m)] = m
	}
	wanted := map[name]*v1.Pod{}
	for _, p := range in.static {
		// Of two static pods of one name, from two sources, the one with a mirror pod wins.
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
			out = append(out, action{static: p, mirror: m, why: "it was deleted, but the static pod was not"})
		case !stands(m, p):
			out = append(out, action{static: p, mirror: m, why: "it belongs to another version of the static pod"})
		case in.forgotten(m.UID):
			out = append(out, action{static: p, mirror: m, why: "it reports the end of a static pod that was added again since"})
		case pod.Terminal(m.Status.Phase) && in.alive(p.UID):
			// A final status cannot become a live one again. It describes a life that ended with a
			// shutdown of the host.
			out = append(out, action{static: p, mirror: m, why: "it reports the end of an earlier instance"})
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
