package plan

import (
	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// launch takes a container that should run one step further: back-off, pull, sandbox and volumes,
// its turn, start. prior is the instance whose crash counts, or nil. turn is whether it is taken: containers
// start one after another, and a pull or a postStart hook in flight delays the containers after it,
// but a back-off does not.
func (d *decision) launch(c *v1.Container, prior *pod.Container, turn *bool, why string) {
	d.forgetCrash(c.Name)
	switch {
	case d.flying(OpStart, c.Name):
		*turn = true
		d.note(c.Name + " is starting")
		return
	case d.occupied(c.Name):
		d.note(c.Name + " waits for an earlier instance to go")
		return
	case prior != nil && prior.State == pod.StateExited && d.crashed(c, prior):
		d.paused(c.Name)
		d.note(d.ledger.Backoff(c.Name).Message)
		return
	case d.paused(c.Name):
		d.note(c.Name + " is tried again later" + because(d.ledger.Backoff(c.Name)))
		return
	case d.flying(OpPull, c.Name):
		*turn = true
		d.note("the image of " + c.Name + " is being pulled")
		return
	case !d.ledger.Names[c.Name].Pulled:
		*turn = true
		d.begin(Operation{Kind: OpPull, Container: c.Name, Reason: "its image must be present"})
		return
	case d.sandbox == nil:
		d.note(c.Name + " waits for the sandbox")
		return
	case d.in.Volumes != VolumesReady:
		d.note(c.Name + " waits for the volumes")
		return
	case d.resizing:
		*turn = true
		d.note(c.Name + " waits for the pod's resize")
		return
	case *turn:
		d.note(c.Name + " waits for its turn")
		return
	case d.crowded(c.Name):
		return
	}
	*turn = true
	d.begin(Operation{Kind: OpStart, Container: c.Name, ID: d.sandbox.ID, Attempt: d.nextAttempt(c.Name),
		Crashes: d.nextCrashes(c, prior), Reason: why})
}

// turnTaken reports whether an init or main container is being started or has its postStart hook
// run. Ephemeral containers have a turn of their own.
func (d *decision) turnTaken() bool {
	for i := range d.in.InFlight {
		if op := &d.in.InFlight[i]; (op.Kind == OpStart || op.Kind == OpHook) && d.resets(op.Container) {
			return true
		}
	}
	return false
}

// prefetch pulls the image of a container whose turn comes later. It skips policy Never, because an
// init container may bring that image.
func (d *decision) prefetch(c *v1.Container) {
	if c.ImagePullPolicy == v1.PullNever || d.ledger.Names[c.Name].Pulled || d.here(c.Name) != nil || d.paused(c.Name) {
		return
	}
	d.begin(Operation{Kind: OpPull, Container: c.Name, Reason: "its turn to start comes later"})
}

// occupied reports whether an instance of the named container blocks a new one: it may be running,
// it was created and never started, or an operation is in flight for it.
func (d *decision) occupied(name string) bool {
	for i := range d.in.Observed.Containers {
		if c := &d.in.Observed.Containers[i]; c.Name == name && c.State != pod.StateExited {
			return true
		}
	}
	return d.flying(OpStop, name) || d.flying(OpRemoveContainer, name) || d.flying(OpHook, name)
}

// hooked reports whether the running instance's postStart hook is done. If the start's reply was
// lost before the hook, it starts the hook.
func (d *decision) hooked(c *pod.Container) bool {
	if d.flying(OpStart, c.Name) || d.flyingID(OpHook, c.ID) {
		return false
	}
	if d.ledger.Containers[c.ID].Hook != HookPending {
		return true
	}
	if d.in.Hold == "" && !d.paused(c.Name) {
		d.begin(Operation{Kind: OpHook, ID: c.ID, Container: c.Name, Reason: "its start was cut off before the postStart hook"})
	}
	return false
}

// settled clears the back-off and the pull record of a running container.
func (d *decision) settled(c *pod.Container) {
	if len(d.ledger.Names) == 0 || d.ledger.Containers[c.ID].Why.Cause != StopNone || d.flying(OpStart, c.Name) {
		return
	}
	d.ledger.pulled(c.Name, false) // its next start checks the image again
	if d.ledger.Containers[c.ID].Hook == HookPending {
		return // its hook is still being tried
	}
	d.ledger.clearBackoff(c.Name)
}

func because(b Backoff) string {
	if b.Reason == "" {
		return ""
	}
	if b.Message == "" {
		return ": " + b.Reason
	}
	return ": " + b.Reason + ": " + b.Message
}
