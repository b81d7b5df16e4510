package plan

import (
	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// mains starts the main containers in order and restarts them according to their restart policies.
func (d *decision) mains() {
	for i := range d.spec.Containers {
		c := &d.spec.Containers[i]
		got := d.in.Observed.Newest(c.Name)
		switch {
		case got != nil && got.State == pod.StateRunning && d.sandbox != nil && got.SandboxID == d.sandbox.ID:
			d.settled(got)
			if !d.hooked(got) {
				d.starting = true
				d.note(c.Name + ": its postStart hook has not ended")
			}
		case d.finished(c):
		case got == nil:
			d.launch(c, nil, &d.starting, "it does not exist")
		default:
			d.launch(c, got, &d.starting, "its restart policy wants it to run")
		}
	}
}

// prefetchMains pulls the images of the main containers while the init containers run.
func (d *decision) prefetchMains() {
	for i := range d.spec.Containers {
		if c := &d.spec.Containers[i]; !d.finished(c) && !d.anyLive(c.Name) {
			d.prefetch(c)
		}
	}
}

// ephemerals starts each ephemeral container once only. They do not wait for other containers'
// turns: a pod that hangs in a hook must not keep its debugger out.
func (d *decision) ephemerals() {
	turn := false
	for i := range d.spec.EphemeralContainers {
		c := (*v1.Container)(&d.spec.EphemeralContainers[i].EphemeralContainerCommon)
		if got := d.in.Observed.Newest(c.Name); got != nil && got.State != pod.StateCreated {
			if got.State == pod.StateRunning {
				d.settled(got)
			}
			continue
		}
		if st := d.reported(c.Name); st != nil && (st.State.Running != nil || st.State.Terminated != nil) {
			continue
		}
		d.launch(c, nil, &turn, "an ephemeral container was added")
	}
}
