package hosts

import "github.com/bowline-k8s/bowline/api/v1alpha1"

// removal is what is seen of a deleted Host and of its node.
type removal struct {
	policy   v1alpha1.DeletionPolicy
	was      bool // it has been a node, or may have been
	node     bool // there is a Node that was made of it
	cordoned bool // that node takes no new pods
	pods     int  // on that node, but for those that would be put back (DaemonSets')
	driven   bool // a driver is at it, or is being ended
	released bool // nothing of ours is on the machine
}

// step is what is done next with a deleted Host.
type step string

const (
	stepCordon  step = "cordon"  // the node takes no new pods
	stepEvict   step = "evict"   // ask its pods to end, by the driver
	stepEnd     step = "end"     // no driver any more
	stepRelease step = "release" // empty the machine, and give its lock back
	stepForget  step = "forget"  // delete the Node and what the API has of its pods
	stepDone    step = "done"    // the finalizer goes
)

// next is the step that is due. A driver makes its node anew when somebody deletes it,
// so it ends first; pods are forgotten only when nothing of them runs, or by a detach.
func next(r removal) step {
	drains := r.policy != v1alpha1.DeletionDetach && r.was
	switch {
	case drains && r.node && !r.cordoned:
		return stepCordon
	case drains && r.node && r.pods > 0:
		return stepEvict
	case r.driven:
		return stepEnd
	case drains && !r.released:
		return stepRelease
	case r.node:
		return stepForget
	}
	return stepDone
}
