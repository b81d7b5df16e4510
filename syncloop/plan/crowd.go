package plan

import (
	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/pod"
)

// crowded reports whether the pod has so many instances that the named container must not get one
// more: all of them are in the runtime's lists, whose size is limited. It removes the oldest one that
// a newer instance has replaced. Garbage collection removes them too, but only once a minute.
func (d *decision) crowded(name string) bool {
	o := &d.in.Observed
	all := len(o.Containers)
	for i := range d.in.InFlight {
		if d.in.InFlight[i].Kind == OpStart {
			all++
		}
	}
	if all < spec.Instances(spec.ContainersOf(d.spec)) {
		return false
	}
	d.note(name + " waits until an older instance is removed")
	var oldest *pod.Container
	for i := range o.Containers {
		c := &o.Containers[i]
		switch {
		case c.State != pod.StateExited, o.Newest(c.Name) == c:
		case d.flyingID(OpRemoveContainer, c.ID):
			return true
		case d.paused(IDKey(c.ID)):
		case oldest == nil || c.CreatedAt.Before(oldest.CreatedAt):
			oldest = c
		}
	}
	if oldest != nil {
		d.begin(Operation{Kind: OpRemoveContainer, ID: oldest.ID, Container: oldest.Name, Attempt: oldest.Attempt, Reason: "the pod has too many instances"})
	}
	return true
}

// tooManySandboxes reports whether the pod must not get one more sandbox, for the same reason. A dead
// sandbox stays only while it holds the last instance of a container, so garbage collection makes
// room.
func (d *decision) tooManySandboxes() bool {
	return len(d.in.Observed.Sandboxes) >= spec.Instances(spec.ContainersOf(d.spec))
}
