package plan

import (
	"time"

	"github.com/bowline-k8s/bowline/pod"
)

// leastGrace is what a container gets that waited for its turn until the pod's
// grace was over.
const leastGrace = 2 * time.Second

// stopsCutOff is how many stops of one container may be cut off, each with a grace
// of its own, before the next one has none.
const stopsCutOff = 10

// terminating stops what runs. Main containers, init containers and ephemeral
// ones stop at once and together; then the sidecars in reverse order, each when
// those behind it have gone, or all of them when the grace is over.
func (d *decision) terminating() pod.Phase {
	d.requested()
	d.cancelStarts()
	left := d.stopAll()
	switch {
	case left:
		d.note("waits for its containers to stop")
		return pod.Terminating
	case d.creating():
		d.note("waits for a start under way to end")
		return pod.Terminating
	}
	d.note("a fresh observation shows nothing running")
	return pod.Terminated
}

// requested gives a pod that is past Syncing a request, should it have none.
func (d *decision) requested() {
	if d.terminate == nil {
		d.end(CauseFinished, "", "")
	}
}

// stopAll issues the stops that are due, and reports whether anything is live.
func (d *decision) stopAll() bool {
	o := &d.in.Observed
	by := d.terminate.by()
	over := !by.After(d.in.Now)
	left := false
	for i := range o.Containers {
		c := &o.Containers[i]
		if !live(c) {
			continue
		}
		left = true
		at := sidecarIndex(d.spec, c.Name)
		if at >= 0 && !over && !d.sidecarTurn(at) {
			d.wakeAt(by)
			d.note(c.Name + " stops after the containers that may need it")
			continue
		}
		end := by
		if over && d.terminate.Grace > 0 {
			began, ok := d.book.StopBegan[c.ID]
			switch {
			case !ok:
				end = d.in.Now.Add(leastGrace)
			case !began.Before(by):
				end = began.Add(leastGrace) // as it was given when its turn came
			}
		}
		d.stop(c, end, Stop{StopPodEnds, d.terminate.words()})
	}
	return left
}

// sidecarTurn reports whether everything that stops before the sidecar at index
// at has stopped: all but sidecars, and the sidecars behind it.
func (d *decision) sidecarTurn(at int) bool {
	for i := range d.in.Observed.Containers {
		c := &d.in.Observed.Containers[i]
		if !live(c) {
			continue
		}
		if other := sidecarIndex(d.spec, c.Name); other < 0 || other > at {
			return false
		}
	}
	return true
}

// cancelStarts cancels what would bring something up. What it made meanwhile
// shows in the observation after its end.
func (d *decision) cancelStarts() {
	for i := range d.in.InFlight {
		switch d.in.InFlight[i].Kind {
		case OpVolumes, OpSandbox, OpPull, OpStart, OpHook:
			d.cancel = append(d.cancel, d.in.InFlight[i].Key())
		}
	}
}
