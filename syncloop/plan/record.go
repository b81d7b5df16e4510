package plan

import (
	"strings"

	v1 "k8s.io/api/core/v1"
)

// Record is the Ledger after an operation ended. Jitter in [0,1) spreads the
// pauses after failures. The Ledger given stays as it was.
func Record(l Ledger, out Outcome, p *v1.Pod, jitter float64) Ledger {
	r := recorder{book: book{Ledger: l}, out: out, jitter: jitter}
	if p != nil {
		r.spec = specOf(&p.Spec, out.Operation.Container)
	}
	switch out.Operation.Kind {
	case OpVolumes, OpRelease:
		r.end(VolumesKey)
	case OpSandbox:
		r.end(SandboxKey)
	case OpResize:
		r.end(ResizeKey)
		for id, s := range out.Sized {
			r.book.sized(id, s)
		}
		made := Cgroup{Allocated: out.Operation.Allocated}
		if !r.succeeded() {
			made = Cgroup{Allocated: out.Operation.Was.Allocated, Unsure: true}
		}
		r.book.cgroup(out.Operation.ID, made)
	case OpPull:
		r.pull()
	case OpStart, OpHook:
		r.start()
	case OpStop:
		r.stop()
	case OpStopSandbox:
		r.end(IDKey(out.Operation.ID))
		if r.succeeded() {
			r.book.stopped(out.Operation.ID)
		}
	case OpRemoveContainer, OpRemoveSandbox:
		r.end(IDKey(out.Operation.ID))
	}
	return r.book.Ledger
}

type recorder struct {
	book   book
	out    Outcome
	jitter float64
	spec   *v1.Container
}

func (r *recorder) succeeded() bool { return r.out.Err == "" && !r.out.Transport }

// end is the plain case: success forgets, a lost reply pauses, a failure counts.
func (r *recorder) end(key string) {
	if r.succeeded() {
		r.book.clearBackoff(key)
		return
	}
	r.pause(key)
}

// pause puts off the next try.
func (r *recorder) pause(key string) {
	b := r.book.Backoff[key]
	switch {
	case r.out.Transport:
		wait := lostPause
		if r.out.Operation.Kind == OpStop {
			wait = stopPause
		}
		if of := r.out.Operation.Kind; b.Of != of && (b.Reason == "" || key == VolumesKey) {
			b = Backoff{Of: of}
		}
		b.Until = r.out.At.Add(spread(wait, r.jitter)) // what it shows stays
		r.book.backoff(key, b)
		return
	case b.Reason == reasonCrashLoop && b.ID != "" || b.Of != r.out.Operation.Kind:
		b = Backoff{}
	}
	wait := retryDelay(b.Failures + 1)
	if r.out.Operation.Kind == OpPull {
		wait = pullPause
	}
	r.book.backoff(key, Backoff{Failures: b.Failures + 1, Until: r.out.At.Add(spread(wait, r.jitter)),
		Reason: r.out.Reason, Message: r.out.Err, Of: r.out.Operation.Kind})
}

func (r *recorder) pull() {
	name := r.out.Operation.Container
	if !r.succeeded() {
		r.book.notPulled(name)
		r.pause(name)
		return
	}
	r.book.pulled(name)
	if b, ok := r.book.Backoff[name]; ok && b.Of == OpPull {
		r.book.clearBackoff(name)
	}
}

// start records a start or a postStart hook that was made up for.
func (r *recorder) start() {
	name, id := r.out.Operation.Container, r.out.ContainerID
	if id == "" && r.out.Operation.Kind == OpHook {
		id = r.out.Operation.ID
	}
	hook := r.spec != nil && r.spec.Lifecycle != nil && r.spec.Lifecycle.PostStart != nil
	switch {
	case r.succeeded():
		r.book.notPulled(name)
		r.book.noCrashes(name)
		r.book.clearBackoff(name)
		if id != "" {
			r.book.hooked(id, true)
		}
	case r.out.Hooked && !r.out.Transport: // the hook failed: the container must not stay
		r.book.notPulled(name)
		r.book.hooked(id, true)
		r.book.because(id, Stop{StopPostStart, strings.TrimSuffix(r.out.Reason+": "+r.out.Err, ": ")})
		r.pause(name)
	default:
		if id != "" && hook {
			r.book.hooked(id, r.out.Hooked)
		}
		if !r.out.Transport {
			r.book.notPulled(name)
		} else if n := r.out.Operation.Attempt + 1; id != "" && r.out.Operation.Kind == OpStart && r.book.Attempts[name] < n {
			// Made, and perhaps started: should the runtime show it as never started,
			// because it went down meanwhile, the next instance counts as a restart.
			r.book.attempts(name, n)
		}
		r.pause(name)
	}
}

func (r *recorder) stop() {
	id := r.out.Operation.ID
	if r.out.Hooked {
		r.book.preStopped(id)
	}
	if !r.succeeded() {
		r.pause(IDKey(id))
		return
	}
	// The next observation shows it dead and this is forgotten; if it does not,
	// the stop is not repeated in a tight loop.
	b := r.book.Backoff[IDKey(id)]
	b.Failures++
	b.Of = OpStop
	b.Until = r.out.At.Add(spread(retryDelay(b.Failures), r.jitter))
	r.book.backoff(IDKey(id), b)
}
