package release

// Step is a step of a release, for the caller to show. What it is about depends on the kind.
type Step struct {
	What   What
	Object string
	// Container is that of a failed preStop hook.
	Container string
}

// What is the kind of a step.
type What string

const (
	// Recognized: the host is the node Object, and is claimed.
	Recognized What = "Recognized"
	// NoNode: the host is no node, and is claimed.
	NoNode What = "NoNode"
	// NodeMissing: the cluster has no node Object any more.
	NodeMissing What = "NodeMissing"
	// NodeForeign: another agent reports the node Object, and it stays with its pods.
	NodeForeign What = "NodeForeign"
	// Cordoned: the node Object takes no new pods.
	Cordoned What = "Cordoned"
	// Evicted: the API server has accepted the eviction of the pod Object, NAMESPACE/NAME.
	Evicted What = "Evicted"
	// Stopping: the pod Object, NAMESPACE/NAME, is being stopped.
	Stopping What = "Stopping"
	// HookFailed: the preStop hook of Container in the pod Object failed.
	HookFailed What = "HookFailed"
	// Undone: Object is a change of the host that was undone, in words.
	Undone What = "Undone"
	// NodeDeleted: the node Object is deleted.
	NodeDeleted What = "NodeDeleted"
)
