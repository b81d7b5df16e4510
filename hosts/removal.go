package hosts

import "github.com/bowline-k8s/bowline/api/v1alpha1"

// removal is the observed state of a deleted Host and of its node.
type removal struct {
	policy   v1alpha1.DeletionPolicy
	was      bool // it has been a node, or may have been
	node     bool // a Node exists that was made of it
	cordoned bool // that Node is unschedulable
	pods     int  // on that Node, except those that would be recreated (DaemonSets')
	managed  bool // it has a driver, perhaps one that is stopping
	released bool // nothing of ours is on the machine
}

// step is what is done next for a deleted Host.
type step string

const (
	stepCordon  step = "cordon"  // make the node unschedulable
	stepEvict   step = "evict"   // evict its pods; the driver ends them
	stepEnd     step = "end"     // stop the driver
	stepRelease step = "release" // release the host, and its lock
	stepForget  step = "forget"  // delete the Node and its pods from the API
	stepDone    step = "done"    // remove the finalizer
)

// next is the step that is due. The driver stops before the Node is deleted, because it would
// recreate the Node. The API's pods are deleted only once nothing of them runs; a detach leaves
// them to the cluster.
func next(r removal) step {
	drains := r.policy != v1alpha1.DeletionDetach && r.was
	switch {
	case drains && r.node && !r.cordoned:
		return stepCordon
	case drains && r.node && r.pods > 0:
		return stepEvict
	case r.managed:
		return stepEnd
	case drains && !r.released:
		return stepRelease
	case r.node:
		return stepForget
	}
	return stepDone
}
