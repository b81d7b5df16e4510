package plan

import (
	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// inits runs the init containers in order, and keeps the sidecars among them running. It reports
// whether all of them are done in the current sandbox, so that the main containers may start.
func (d *decision) inits() bool {
	list := d.spec.InitContainers
	next := d.nextInit()
	for i := range list {
		c := &list[i]
		switch {
		case i > next:
			d.prefetch(c)
		case pod.Sidecar(c):
			d.keepSidecar(c)
		case i == next:
			d.runInit(c)
		}
	}
	return next == len(list)
}

// nextInit is the index of the first init container that is not done. It searches from the end,
// because the instances of early ones may have been garbage collected: the last one that exists in
// the current sandbox implies all before it, and a main container there implies all of them.
// Containers of an older sandbox do not count.
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

// initDone reports whether an init container is done: it exited with 0, or, for a sidecar, it has
// started, including its postStart hook and startup probe.
func (d *decision) initDone(c *v1.Container, got *pod.Container) bool {
	if !pod.Sidecar(c) {
		return got.State == pod.StateExited && got.ExitCode == 0
	}
	if got.State != pod.StateRunning || d.ledger.Containers[got.ID].Why.Cause != StopNone || !d.hooked(got) {
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

// keepSidecar starts a sidecar whenever it is not running, whatever its exit code.
func (d *decision) keepSidecar(c *v1.Container) {
	got := d.here(c.Name)
	switch {
	case got == nil:
		d.launch(c, nil, &d.starting, "the next containers need it")
	case got.State == pod.StateRunning:
		d.settled(got)
		if !d.hooked(got) {
			d.starting = true
			d.note(c.Name + ": its postStart hook has not ended")
		} else if c.StartupProbe != nil && d.in.Verdicts[got.ID].Startup != pod.VerdictSuccess {
			d.note(c.Name + ": its startup probe has not succeeded")
		}
	default:
		d.launch(c, got, &d.starting, "a sidecar is kept running")
	}
}

// runInit runs the init container whose turn it is. A failure that ends the pod was already handled
// in ends.
func (d *decision) runInit(c *v1.Container) {
	got := d.here(c.Name)
	switch {
	case got == nil:
		d.launch(c, nil, &d.starting, "it is its turn to initialise the pod")
	case got.State == pod.StateRunning:
		d.settled(got)
		d.hooked(got)
		d.note("init container " + c.Name + " is running")
	default:
		d.launch(c, got, &d.starting, "it has to succeed before the next")
	}
}
