package plan

import "github.com/bowline-k8s/bowline/pod"

// advance is the only place where a phase changes. A phase may stay or move to the next one. Any
// other change is refused and named in illegal.
func advance(from, to pod.Phase) (now pod.Phase, illegal string) {
	switch {
	case from < pod.Syncing || from > pod.Gone || to < pod.Syncing || to > pod.Gone:
		return from, from.String() + " to " + to.String()
	case to == from, to == from+1:
		return to, ""
	}
	return from, from.String() + " to " + to.String()
}
