package prober

import "github.com/bowline-k8s/bowline/pod"

// Kind of a probe.
type Kind int

const (
	Startup Kind = iota
	Liveness
	Readiness
)

var kindNames = [...]string{"Startup", "Liveness", "Readiness"}

func (k Kind) String() string { return kindNames[k] }

// Result of one run of a probe.
type Result int

const (
	// Unknown: the run says nothing of the container (the link was down, the
	// probe could not be made). It changes nothing.
	Unknown Result = iota
	Success
	Failure
)

// Thresholds are how many results in a row count (v1.Probe); at least 1 each.
type Thresholds struct{ Success, Failure int }

// Tally is what the results of one probe of one container instance add up to.
type Tally struct {
	Verdict pod.Verdict
	// Hold: no more runs for this instance. A startup probe has done its work;
	// a container that failed its liveness probe is being stopped, and a command
	// run in it then may do harm.
	Hold bool

	last Result
	run  int // results in a row equal to last
}

// First is the tally before any result: a container is not ready until its probe
// says so, and neither dead nor started before a probe has looked.
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
