package plan

import (
	"time"

	"github.com/bowline-k8s/bowline/pod"
)

// leastGrace is the grace period of a container that could not be stopped before the pod's own was
// over.
const leastGrace = 2 * time.Second

// stopsCutOff is how many stops of one container may be cut off before the next one, with the grace
// period over, kills at once.
const stopsCutOff = 10

// terminating stops whatever runs. Main, init and ephemeral containers stop immediately and
// together; then the sidecars in reverse order, each after those behind it have stopped, or all at
// once when the grace period is over.
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

// requested sets a request on a pod that is past Syncing without one.
func (d *decision) requested() {
	if d.terminate == nil {
		d.end(CauseFinished, "", "")
	}
}

// stopAll plans the stops that are due, and reports whether any container is live.
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
			began := d.ledger.Containers[c.ID].StopBegan
			switch {
			case began.IsZero():
				end = d.in.Now.Add(leastGrace)
			case !began.Before(by):
				end = began.Add(leastGrace) // the same end as when its turn came
			}
		}
		d.stop(c, end, Stop{StopPodEnds, d.terminate.words()})
	}
	return left
}

// sidecarTurn reports whether everything that stops before the sidecar with index at has stopped:
// all containers but sidecars, and the sidecars behind it.
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

// cancelStarts cancels operations that would start something. What they have started by then shows
// in the next observation.
func (d *decision) cancelStarts() {
	for i := range d.in.InFlight {
		switch d.in.InFlight[i].Kind {
		case OpVolumes, OpSandbox, OpPull, OpStart, OpHook:
			d.cancel = append(d.cancel, d.in.InFlight[i].Key())
		}
	}
}
