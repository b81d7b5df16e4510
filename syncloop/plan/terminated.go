package plan

import "github.com/bowline-k8s/bowline/pod"

// terminated cleans up in order: sandboxes, then volumes, then, once the API server has the last
// status, the remains of a deleted pod. A finished pod keeps its containers, for their logs, until
// garbage collection.
func (d *decision) terminated() pod.Phase {
	d.requested()
	if d.in.Phase == pod.Terminated {
		d.cancelStarts()
	}
	switch {
	case d.stopAll(): // a call that had been given up took effect after all
		d.note("waits for a late container to stop")
	case d.creating():
		d.note("waits for a start under way to end")
	case d.stopSandboxes():
		d.note("waits for its sandboxes to stop")
	case d.release():
		d.note("waits for its volumes to be released")
	case !d.in.Reported:
		d.note("waits for the API server to take the last status")
	case d.remove():
		d.note("waits for its remains to be removed")
	case len(d.in.InFlight) > 0:
		d.note("waits for its last operations to end")
	default:
		d.note("everything is stopped, released and reported")
		return pod.Gone
	}
	return pod.Terminated
}

func (d *decision) stopSandboxes() bool {
	left := false
	for i := range d.in.Observed.Sandboxes {
		if d.stopSandbox(&d.in.Observed.Sandboxes[i], d.terminate.words()) {
			left = true
		}
	}
	return left
}

func (d *decision) release() bool {
	switch {
	case d.in.Volumes == VolumesReleased:
		return false
	case d.flying(OpVolumes, ""), d.flying(OpRelease, ""):
	case d.ledger.Backoff(VolumesKey).Of == OpRelease && d.paused(VolumesKey):
		d.note("the release is tried again later" + because(d.ledger.Backoff(VolumesKey)))
	default:
		d.begin(Operation{Kind: OpRelease, Reason: "nothing uses the volumes any more"})
	}
	return true
}

// remove removes the remains of a deleted, orphaned or evicted pod, and reports whether some are
// left. An evicted pod's remains go because the host is short of the resource that they occupy. Remains that
// cannot be removed do not hold up the pod; garbage collection removes them.
func (d *decision) remove() bool {
	if c := d.terminate.Cause; c != CauseDeleted && c != CauseOrphan && c != CauseEvicted {
		return false
	}
	o := &d.in.Observed
	left := false
	for i := range o.Containers {
		if d.failed(o.Containers[i].ID) {
			continue
		}
		left = true
		d.begin(Operation{Kind: OpRemoveContainer, ID: o.Containers[i].ID, Container: o.Containers[i].Name,
			Attempt: o.Containers[i].Attempt, Reason: d.terminate.words()})
	}
	if left {
		return true
	}
	for i := range o.Sandboxes {
		if d.failed(o.Sandboxes[i].ID) {
			continue
		}
		left = true
		d.begin(Operation{Kind: OpRemoveSandbox, ID: o.Sandboxes[i].ID, Attempt: o.Sandboxes[i].Attempt, Reason: d.terminate.words()})
	}
	return left
}

// failed reports whether removing this container or sandbox has failed before.
func (d *decision) failed(id string) bool {
	b := d.ledger.Backoff(IDKey(id))
	return b.Failures > 0 && (b.Of == OpRemoveContainer || b.Of == OpRemoveSandbox)
}
