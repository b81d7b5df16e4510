package prober

import "github.com/bowline-k8s/bowline/pod"

// Kind is the kind of a probe.
type Kind int

const (
	Startup Kind = iota
	Liveness
	Readiness
)

var kindNames = [...]string{"Startup", "Liveness", "Readiness"}

func (k Kind) String() string { return kindNames[k] }

// Result is the result of one run of a probe.
type Result int

const (
	// Unknown says nothing about the container (the link was down, or the probe returned an error).
	// It changes nothing.
	Unknown Result = iota
	Success
	Failure
)

// Thresholds are the numbers of consecutive results that count (v1.Probe); each is at least 1.
type Thresholds struct{ Success, Failure int }

// Tally accumulates the results of one probe of one container instance.
type Tally struct {
	Verdict pod.Verdict
	// Hold ends the runs for this instance: a startup probe that has succeeded is done, and a
	// container whose startup or liveness probe has failed is being stopped, where another exec
	// could do harm.
	Hold bool

	last Result
	run  int // consecutive results equal to last
}

// First returns the tally before any result: a container is not ready until its readiness probe
// succeeds; whether it has started or is alive is unknown until the first verdict.
func First(k Kind) Tally {
	if k == Readiness {
		return Tally{Verdict: pod.VerdictFailure}
	}
	return Tally{Verdict: pod.VerdictUnknown}
}

// Add returns the tally after one more result.
func (t Tally) Add(k Kind, th Thresholds, r Result) Tally {
	if r == Unknown || t.Hold {
		return t
	}
	if t.last == r {
		t.run++
	} else {
		t.last, t.run = r, 1
	}
	switch {
	case r == Success && t.run >= th.Success:
		t.Verdict = pod.VerdictSuccess
		t.Hold = k == Startup
	case r == Failure && t.run >= th.Failure:
		t.Verdict = pod.VerdictFailure
		t.Hold = k != Readiness
	}
	return t
}
