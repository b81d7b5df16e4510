package plan

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// noSpec stands in for the spec of a pod that no source has. It is read-only.
var noSpec v1.PodSpec

// Decide says what to do next for one pod. It changes nothing that in refers to, and equal inputs
// give equal plans.
func Decide(in Input) Plan {
	d := decision{in: &in, spec: &noSpec, terminate: in.Terminate, ledger: cowLedger{Ledger: in.Ledger}}
	if in.Pod != nil {
		d.spec = &in.Pod.Spec
	}
	if why := d.unusable(); why != "" {
		return Plan{Phase: in.Phase, Terminate: in.Terminate, Ledger: in.Ledger, Reason: why}
	}
	d.ledger.prune(&in.Observed)
	d.sandbox = currentSandbox(&in.Observed)

	phase, illegal := in.Phase, ""
	for {
		var next pod.Phase
		switch phase {
		case pod.Syncing:
			next = d.syncing()
		case pod.Terminating:
			next = d.terminating()
		case pod.Terminated:
			next = d.terminated()
		default:
			next = phase
			d.note("the pod is gone")
		}
		if next == phase {
			break
		}
		if phase, illegal = advance(phase, next); illegal != "" {
			break
		}
	}
	return Plan{Phase: phase, Terminate: d.terminate, Start: d.start, Cancel: d.cancel, Ledger: d.ledger.Ledger,
		WakeAt: d.wake, Reason: d.reason, Illegal: illegal}
}

// syncing starts the pod and keeps it running, or finds why it must end.
func (d *decision) syncing() pod.Phase {
	if d.ends() {
		return pod.Terminating
	}
	if d.restartAll() {
		return pod.Syncing
	}
	d.repair()
	if d.in.Hold != "" {
		d.note("nothing starts: " + d.in.Hold)
		return pod.Syncing
	}
	d.starting = d.turnTaken()
	d.volumes()
	d.ensureSandbox()
	d.resize()
	d.ephemerals()
	if d.inits() {
		d.mains()
	} else {
		d.prefetchMains()
	}
	if d.reason == "" {
		d.note("all containers match the spec")
	}
	return pod.Syncing
}

// decision is the state of one call of Decide.
type decision struct {
	in        *Input
	spec      *v1.PodSpec
	terminate *Terminate
	// sandbox is the current sandbox, see currentSandbox.
	sandbox *pod.Sandbox
	ledger  cowLedger
	// starting says that a container has the turn to start, so no other one may.
	starting bool
	// resizing says that the pod's cgroup is being resized. No container starts until that is done.
	resizing bool
	start    []Operation
	cancel   []Key
	wake     time.Time
	reason   string
}

// unusable says why nothing can be decided on this observation, or is empty.
func (d *decision) unusable() string {
	o := &d.in.Observed
	switch {
	case d.in.Phase < pod.Syncing || d.in.Phase > pod.Gone:
		return "the phase is invalid: nothing is decided"
	case d.in.Phase == pod.Gone:
		return "the pod is gone"
	case o.Stale != "":
		return "the observation is stale, nothing is decided: " + o.Stale
	case o.Seq == 0:
		return "the runtime has not been observed yet"
	case o.Seq < d.in.NeedSeq:
		return "waits for an observation newer than the last change"
	}
	return ""
}

// note appends to the reason.
func (d *decision) note(s string) {
	if d.reason == "" {
		d.reason = s
		return
	}
	d.reason += "; " + s
}

// wakeAt makes the worker decide again at t, or earlier.
func (d *decision) wakeAt(t time.Time) {
	if t.After(d.in.Now) && (d.wake.IsZero() || t.Before(d.wake)) {
		d.wake = t
	}
}

// begin plans an operation unless it is in flight or already planned.
func (d *decision) begin(op Operation) {
	k := op.Key()
	for i := range d.in.InFlight {
		if d.in.InFlight[i].Key() == k {
			return
		}
	}
	for i := range d.start {
		if d.start[i].Key() == k {
			return
		}
	}
	d.start = append(d.start, op)
	if op.Container != "" {
		d.note(op.Kind.String() + " " + op.Container + ": " + op.Reason)
		return
	}
	d.note(op.Kind.String() + ": " + op.Reason)
}

// flying reports whether an operation of this kind is in flight: for the named container, or any if
// name is empty.
func (d *decision) flying(kind OpKind, name string) bool {
	for i := range d.in.InFlight {
		if op := &d.in.InFlight[i]; op.Kind == kind && (name == "" || op.Container == name) {
			return true
		}
	}
	return false
}

// flyingID reports whether an operation of this kind is in flight for this container or sandbox.
func (d *decision) flyingID(kind OpKind, id string) bool {
	for i := range d.in.InFlight {
		if op := &d.in.InFlight[i]; op.Kind == kind && op.ID == id {
			return true
		}
	}
	return false
}

// creating reports whether an operation in flight could still start something.
func (d *decision) creating() bool {
	return d.flying(OpSandbox, "") || d.flying(OpStart, "")
}

// paused reports whether key is in back-off, and if so sets a wake-up for its end.
func (d *decision) paused(key string) bool {
	b := d.ledger.Backoff(key)
	if !b.Until.After(d.in.Now) {
		return false
	}
	d.wakeAt(b.Until)
	return true
}
