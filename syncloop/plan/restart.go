package plan

import (
	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// lostExitCode stands for the exit of a container that ran and left no trace: a kill, as a kubelet
// reports it.
const lostExitCode = 137

// finished reports whether a main container has exited for good. Its newest instance decides, in
// whichever sandbox it was. If the runtime has no instance left, the API object's status decides: a
// container that must run once never runs twice because its remains were garbage collected.
func (d *decision) finished(c *v1.Container) bool {
	if d.flying(OpStart, c.Name) {
		return false
	}
	if newest := d.in.Observed.Newest(c.Name); newest != nil {
		return !d.ledger.Containers[newest.ID].Again && newest.State == pod.StateExited && !d.anyLive(c.Name) && !pod.Restarts(d.spec, c, newest.ExitCode)
	}
	st := d.reported(c.Name)
	if st == nil || pod.CanRestartAll(d.spec) {
		return false
	}
	switch {
	case st.State.Terminated != nil:
		return !pod.Restarts(d.spec, c, st.State.Terminated.ExitCode)
	case st.State.Running != nil:
		return !pod.Restarts(d.spec, c, lostExitCode)
	case st.LastTerminationState.Terminated != nil:
		return !pod.Restarts(d.spec, c, st.LastTerminationState.Terminated.ExitCode)
	}
	return false
}

// nextAttempt is the number of the next instance: one more than that of the newest instance, or
// else than the restart count in the API object, so that it never goes back.
func (d *decision) nextAttempt(name string) uint32 {
	if newest := d.in.Observed.Newest(name); newest != nil {
		return newest.Attempt + 1
	}
	n := d.ledger.Names[name].Attempt
	if st := d.reported(name); st != nil {
		reported := uint32(max(st.RestartCount, 0))
		if st.State.Running != nil || st.State.Terminated != nil || st.LastTerminationState.Terminated != nil {
			reported++
		}
		n = max(n, reported)
	}
	return n
}
