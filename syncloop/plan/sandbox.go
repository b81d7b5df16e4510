package plan

import "github.com/bowline-k8s/bowline/pod"

// volumes plans to prepare the volumes, concurrently with everything else: only the start of a
// container needs them.
func (d *decision) volumes() {
	switch {
	case d.in.Volumes == VolumesReady:
	case d.flying(OpVolumes, ""):
		d.note("the volumes are being prepared")
	case d.paused(VolumesKey):
		d.note("the volumes are tried again later" + because(d.ledger.Backoff(VolumesKey)))
	default:
		d.begin(Operation{Kind: OpVolumes, Reason: "the volumes are not known to be ready"})
	}
}

// ensureSandbox plans a new sandbox if there is no current one. The old one must be stopped first,
// and with it everything that ran in it: containers never run in two sandboxes of one pod at once.
func (d *decision) ensureSandbox() {
	if d.sandbox != nil {
		return
	}
	o := &d.in.Observed
	switch {
	case d.flying(OpSandbox, ""):
		d.note("the sandbox is being made")
		return
	case d.flying(OpResize, ""): // the cgroup belongs to the pod: the resize would undo the new sandbox's size
		d.note("the new sandbox waits for the resize under way to end")
		return
	case d.leftovers():
		d.note("the new sandbox waits for the old one to go")
		return
	case d.paused(SandboxKey):
		d.note("the sandbox is tried again later" + because(d.ledger.Backoff(SandboxKey)))
		return
	case d.tooManySandboxes():
		d.note("the new sandbox waits until the garbage collection has removed an old one")
		return
	case d.flaps():
		d.note("the sandbox is replaced later: the last one lived for less than " + sandboxPause.String())
		return
	}
	op := Operation{Kind: OpSandbox, Reason: "the pod has none"}
	if len(o.Sandboxes) > 0 {
		op.Attempt = o.Sandboxes[0].Attempt + 1
		op.Reason = "the last one is not ready"
	}
	d.begin(op)
}

// unaddressed reports whether the newest sandbox is ready and has no address: its network namespace
// is gone, or it never got one. Containers in it are unreachable.
func (d *decision) unaddressed() bool {
	o := &d.in.Observed
	return len(o.Sandboxes) > 0 && o.Sandboxes[0].Ready && o.Sandboxes[0].NoAddress
}

// flaps reports whether the last sandbox, itself a replacement, is too young to be replaced. If its
// creation failed, that has a back-off of its own.
func (d *decision) flaps() bool {
	o := &d.in.Observed
	if d.ledger.Backoff(SandboxKey) != (Backoff{}) || len(o.Sandboxes) == 0 || o.Sandboxes[0].Attempt == 0 {
		return false
	}
	made := o.Sandboxes[0].CreatedAt
	if made.IsZero() || made.After(d.in.Now) {
		return false
	}
	at := made.Add(sandboxPause)
	d.wakeAt(at)
	return at.After(d.in.Now)
}

// leftovers reports whether something of an older sandbox may still be running, or hold its
// network.
func (d *decision) leftovers() bool {
	o := &d.in.Observed
	for i := range o.Containers {
		if live(&o.Containers[i]) {
			return true
		}
	}
	for i := range o.Sandboxes {
		if s := &o.Sandboxes[i]; s.Ready || d.flyingID(OpStopSandbox, s.ID) {
			return true
		}
	}
	return len(o.Sandboxes) > 0 && !d.ledger.Sandboxes[o.Sandboxes[0].ID].Stopped
}

// stopSandbox stops one sandbox once nothing runs in it and nothing is being started. It reports
// whether the sandbox is not known to be stopped yet.
func (d *decision) stopSandbox(s *pod.Sandbox, why string) bool {
	if stopped(d.ledger.Ledger, s) {
		return false
	}
	switch {
	case d.flyingID(OpStopSandbox, s.ID), d.flying(OpStart, ""), d.liveIn(s.ID):
	case d.paused(IDKey(s.ID)):
		d.note("the stop of a sandbox is tried again later" + because(d.ledger.Backoff(IDKey(s.ID))))
	default:
		d.begin(Operation{Kind: OpStopSandbox, ID: s.ID, Attempt: s.Attempt, Reason: why})
	}
	return true
}

func stopped(l Ledger, s *pod.Sandbox) bool { return !s.Ready && l.Sandboxes[s.ID].Stopped }

// HoldsSandbox reports whether the pod has a sandbox that is not known to be stopped, and so may
// hold addresses and ports.
func HoldsSandbox(l Ledger, o *pod.Observed) bool {
	for i := range o.Sandboxes {
		if !stopped(l, &o.Sandboxes[i]) {
			return true
		}
	}
	return false
}

func (d *decision) liveIn(sandbox string) bool {
	for i := range d.in.Observed.Containers {
		if c := &d.in.Observed.Containers[i]; c.SandboxID == sandbox && live(c) {
			return true
		}
	}
	return false
}
