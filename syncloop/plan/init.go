package plan

import (
	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// inits brings the init containers on their way, in order, and keeps the
// sidecars among them up. It reports whether all have done their part in the
// current sandbox, so that the main containers may run.
func (d *decision) inits() bool {
	list := d.spec.InitContainers
	next := d.nextInit()
	for i := range list {
		c := &list[i]
		switch {
		case i > next:
			d.prefetch(c)
		case sidecar(c):
			d.keepSidecar(c)
		case i == next:
			d.runInit(c)
		}
	}
	return next == len(list)
}

// nextInit is the index of the first init container that has not done its part.
// It looks from the end, as results of early ones may have been collected: the
// last one that exists in the current sandbox vouches for all before it, and a
// main container there for all of them. Containers of an older sandbox vouch for
// nothing.
func (d *decision) nextInit() int {
	list := d.spec.InitContainers
	if len(list) == 0 || d.mainHere() {
		return len(list)
	}
	for i := len(list) - 1; i >= 0; i-- {
		got := d.here(list[i].Name)
		if got == nil {
			continue
		}
		if d.initDone(&list[i], got) {
			return i + 1
		}
		return i
	}
	return 0
}

// initDone reports whether an init container has done its part: exited with
// success, or as a sidecar started, its startup probe and postStart included.
func (d *decision) initDone(c *v1.Container, got *pod.Container) bool {
	if !sidecar(c) {
		return got.State == pod.StateExited && got.ExitCode == 0
	}
	if got.State != pod.StateRunning || d.book.Why[got.ID].Cause != StopNone || !d.hooked(got) {
		return false
	}
	return c.StartupProbe == nil || d.in.Verdicts[got.ID].Startup == pod.VerdictSuccess
}

// mainHere reports whether a main container exists in the current sandbox.
func (d *decision) mainHere() bool {
	for i := range d.spec.Containers {
		if d.here(d.spec.Containers[i].Name) != nil {
			return true
		}
	}
	return false
}

// keepSidecar starts a sidecar whenever it does not run, whatever its exit code.
func (d *decision) keepSidecar(c *v1.Container) {
	got := d.here(c.Name)
	switch {
	case got == nil:
		d.launch(c, nil, &d.lane, "the next containers need it")
	case got.State == pod.StateRunning:
		d.settled(got)
		if !d.hooked(got) {
			d.lane = true
			d.note(c.Name + ": its postStart hook has not ended")
		} else if c.StartupProbe != nil && d.in.Verdicts[got.ID].Startup != pod.VerdictSuccess {
			d.note(c.Name + ": its startup probe has not succeeded")
		}
	default:
		d.launch(c, got, &d.lane, "a sidecar is kept running")
	}
}

// runInit runs the one init container whose turn it is. That its failure does
// not end the pod has been seen before.
func (d *decision) runInit(c *v1.Container) {
	got := d.here(c.Name)
	switch {
	case got == nil:
		d.launch(c, nil, &d.lane, "it is its turn to initialise the pod")
	case got.State == pod.StateRunning:
		d.settled(got)
		d.hooked(got)
		d.note("init container " + c.Name + " is running")
	default:
		d.launch(c, got, &d.lane, "it has to succeed before the next")
	}
}
