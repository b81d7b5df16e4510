package plan

import (
	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// Record returns the Ledger after an operation has ended. Jitter in [0,1) spreads the pauses after
// failures. It does not change l.
func Record(l Ledger, out Outcome, p *v1.Pod, jitter float64) Ledger {
	r := recorder{ledger: cowLedger{Ledger: l}, out: out, jitter: jitter}
	if p != nil {
		r.spec = pod.Find(pod.AllContainers(&p.Spec), out.Operation.Container)
	}
	switch out.Operation.Kind {
	case OpVolumes, OpRelease:
		r.end(VolumesKey)
	case OpSandbox:
		r.end(SandboxKey)
	case OpResize:
		r.end(ResizeKey)
		for id, s := range out.Sized {
			r.ledger.sized(id, s)
		}
		made := Cgroup{Allocated: out.Operation.Allocated}
		if !r.succeeded() {
			made = Cgroup{Allocated: out.Operation.Was.Allocated, Unsure: true}
		}
		r.ledger.cgroup(out.Operation.ID, made)
	case OpPull:
		r.pull()
	case OpStart, OpHook:
		r.start()
	case OpStop:
		r.stop()
	case OpStopSandbox:
		r.end(IDKey(out.Operation.ID))
		if r.succeeded() {
			r.ledger.sandbox(out.Operation.ID, func(s *SandboxRecord) { s.Stopped = true })
		}
	case OpRemoveContainer, OpRemoveSandbox:
		r.end(IDKey(out.Operation.ID))
	}
	return r.ledger.Ledger
}

type recorder struct {
	ledger cowLedger
	out    Outcome
	jitter float64
	spec   *v1.Container
}

func (r *recorder) succeeded() bool { return r.out.Err == "" && !r.out.Transport }

// end handles the simple case: success clears the back-off, a lost reply pauses, a failure counts.
func (r *recorder) end(key string) {
	if r.succeeded() {
		r.ledger.clearBackoff(key)
		return
	}
	r.pause(key)
}

// pause delays the next attempt.
func (r *recorder) pause(key string) {
	b := r.ledger.Backoff(key)
	switch {
	case r.out.Transport:
		wait := lostPause
		if r.out.Operation.Kind == OpStop {
			wait = stopPause
		}
		if of := r.out.Operation.Kind; b.Of != of && (b.Reason == "" || key == VolumesKey) {
			b = Backoff{Of: of}
		}
		b.Until = r.out.At.Add(spread(wait, r.jitter)) // Reason and Message stay
		r.ledger.backoff(key, b)
		return
	case b.Reason == ReasonCrashLoop && b.ID != "" || b.Of != r.out.Operation.Kind:
		b = Backoff{}
	}
	wait := retryDelay(b.Failures + 1)
	if r.out.Operation.Kind == OpPull {
		wait = pullPause
	}
	r.ledger.backoff(key, Backoff{Failures: b.Failures + 1, Until: r.out.At.Add(spread(wait, r.jitter)),
		Reason: r.out.Reason, Message: r.out.Err, Of: r.out.Operation.Kind})
}

func (r *recorder) pull() {
	name := r.out.Operation.Container
	if !r.succeeded() {
		r.ledger.pulled(name, false)
		r.pause(name)
		return
	}
	r.ledger.pulled(name, true)
	if r.ledger.Backoff(name).Of == OpPull {
		r.ledger.clearBackoff(name)
	}
}

// start records the outcome of a start, or of a postStart hook that was run afterwards.
func (r *recorder) start() {
	name, id := r.out.Operation.Container, r.out.ContainerID
	if id == "" && r.out.Operation.Kind == OpHook {
		id = r.out.Operation.ID
	}
	hook := r.spec != nil && r.spec.Lifecycle != nil && r.spec.Lifecycle.PostStart != nil
	switch {
	case r.succeeded():
		r.ledger.pulled(name, false)
		r.ledger.crashes(name, 0)
		r.ledger.clearBackoff(name)
		if id != "" {
			r.ledger.hooked(id, HookDone)
		}
	case r.out.Hooked && !r.out.Transport: // the hook failed: the container must be stopped
		r.ledger.pulled(name, false)
		r.ledger.hooked(id, HookDone)
		why := r.out.Reason
		if r.out.Err != "" {
			why += ": " + r.out.Err
		}
		r.ledger.because(id, Stop{StopPostStart, why})
		r.pause(name)
	default:
		if id != "" && hook {
			state := HookPending
			if r.out.Hooked {
				state = HookDone
			}
			r.ledger.hooked(id, state)
		}
		if !r.out.Transport {
			r.ledger.pulled(name, false)
		} else if n := r.out.Operation.Attempt + 1; id != "" && r.out.Operation.Kind == OpStart && r.ledger.Names[name].Attempt < n {
			// The container was created and perhaps started. If the host went down before the
			// runtime recorded the start, the container looks never started; the next instance
			// counts as a restart nevertheless.
			r.ledger.attempts(name, n)
		}
		r.pause(name)
	}
}

func (r *recorder) stop() {
	id := r.out.Operation.ID
	if r.out.Hooked {
		r.ledger.container(id, func(c *ContainerRecord) { c.PreStopped = true })
	}
	if !r.succeeded() {
		r.pause(IDKey(id))
		return
	}
	// The next observation should show the container dead, and prune forgets this. If it does not,
	// this pause keeps the stop from being repeated in a tight loop.
	b := r.ledger.Backoff(IDKey(id))
	b.Failures++
	b.Of = OpStop
	b.Until = r.out.At.Add(spread(retryDelay(b.Failures), r.jitter))
	r.ledger.backoff(IDKey(id), b)
}
