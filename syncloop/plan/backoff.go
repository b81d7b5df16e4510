package plan

import (
	"cmp"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// The kubelet's figures for a container that exits and has to run again: the first restart is
// immediate, the next one after Input.FirstRestartPeriod, then twice as long each time, up to
// Input.MaxRestartPeriod. A run of 10 minutes (GoodRun) resets the count.
const (
	crashFirst = 10 * time.Second
	crashMost  = 300 * time.Second
	GoodRun    = 10 * time.Minute
)

// Pauses after operations that failed, and after one whose result is unknown.
const (
	retryFirst = time.Second
	retryMost  = 10 * time.Second // how often a kubelet retries a pod that fails to sync
	pullPause  = 10 * time.Second // the image manager has its own, longer back-off per image
	lostPause  = time.Second
	stopPause  = 250 * time.Millisecond
	// sandboxPause is the minimum time between two replacements of a pod's sandbox.
	sandboxPause = 10 * time.Second
)

// Reasons of a Backoff that something depends on.
const (
	ReasonCrashLoop = "CrashLoopBackOff"
	ReasonConfig    = "CreateContainerConfigError" // what waits for a ConfigMap or Secret
)

// maxDoublings keeps a shift of a pause from overflowing. The delays are computed from counts, and not
// by wait.Backoff or flowcontrol.Backoff, because those keep state and flowcontrol reads the clock.
const maxDoublings = 20

// crashDelay is the wait after the exit of an instance that was the streak-th restart since the
// last good run; first and most are Input.FirstRestartPeriod and Input.MaxRestartPeriod.
func crashDelay(streak uint32, first, most time.Duration) time.Duration {
	if streak == 0 {
		return 0
	}
	return min(cmp.Or(first, crashFirst)<<min(streak-1, maxDoublings), cmp.Or(most, crashMost))
}

// retryDelay is the pause after the n-th failure in a row, n starting at 1.
func retryDelay(n int) time.Duration {
	return min(retryFirst<<min(max(n-1, 0), maxDoublings), retryMost)
}

// spread lengthens a pause by up to 10%.
func spread(t time.Duration, jitter float64) time.Duration {
	return t + time.Duration(float64(t)*0.1*min(max(jitter, 0), 1))
}

// crashed reports whether the exit of instance prior keeps its container in back-off, and records
// the back-off for the status. The delay is derived from the instance's own crash count and times,
// so that a new process with an empty ledger does not restart a container too early.
func (d *decision) crashed(c *v1.Container, prior *pod.Container) bool {
	if !d.counts(c, prior) {
		return false
	}
	streak := d.streak(prior)
	delay := crashDelay(streak, d.in.FirstRestartPeriod, d.in.MaxRestartPeriod)
	if delay == 0 {
		return false
	}
	// If more remains than the whole delay, our clock was set back.
	if b := d.ledger.Backoff(c.Name); b.ID == prior.ID && b.Reason == ReasonCrashLoop && b.Until.Sub(d.in.Now) <= spread(delay, 1) {
		return b.Until.After(d.in.Now)
	}
	end := prior.FinishedAt
	if end.IsZero() {
		end = prior.CreatedAt
	}
	if end.After(d.in.Now) {
		end = d.in.Now.Round(0) // the host's clock differs from ours, or ours was set
	}
	if !end.Add(delay).After(d.in.Now) {
		return false
	}
	d.ledger.backoff(c.Name, Backoff{
		Failures: int(streak),
		Until:    end.Add(spread(delay, d.in.Jitter)),
		Reason:   ReasonCrashLoop,
		Message:  "back-off " + delay.String() + " restarting failed container=" + c.Name + " pod=" + d.podName(),
		Of:       OpStart,
		ID:       prior.ID,
	})
	return true
}

// counts reports whether the exit of prior is a crash of its container: it ended in the current
// sandbox, and had the container's current image and size. An end together with its sandbox or the
// host is not a crash.
func (d *decision) counts(c *v1.Container, prior *pod.Container) bool {
	return prior != nil && d.sandbox != nil && prior.SandboxID == d.sandbox.ID && !d.another(c, prior)
}

// streak is the number of restarts within the sandbox since the last good run, up to and including
// this instance.
func (d *decision) streak(c *pod.Container) uint32 {
	switch {
	case c.State == pod.StateExited && !c.StartedAt.IsZero() && c.FinishedAt.Sub(c.StartedAt) >= GoodRun:
		return 0
	case c.Crashes != nil:
		return *c.Crashes
	}
	// An older version, without crash counts, made it. Each earlier sandbox added an attempt for
	// its first instance, and those are not crashes.
	return c.Attempt - min(c.Attempt, d.sandbox.Attempt)
}

// nextCrashes is the crash count of the instance that follows prior, or of the first one.
func (d *decision) nextCrashes(c *v1.Container, prior *pod.Container) uint32 {
	switch {
	case d.counts(c, prior):
		return d.streak(prior) + 1
	case d.in.Observed.Newest(c.Name) == nil:
		return d.ledger.Names[c.Name].Crashes
	}
	return 0
}

// forgetCrash clears a crash back-off that follows an exit in another sandbox.
func (d *decision) forgetCrash(name string) {
	b := d.ledger.Backoff(name)
	if b.Reason != ReasonCrashLoop {
		return
	}
	for i := range d.in.Observed.Containers {
		c := &d.in.Observed.Containers[i]
		if c.ID == b.ID && (d.sandbox == nil || c.SandboxID != d.sandbox.ID) {
			d.ledger.clearBackoff(name)
		}
	}
}

// another reports whether an instance has another image or size than its container should have now.
// Its crashes do not count for the next instance.
func (d *decision) another(c *v1.Container, o *pod.Container) bool {
	return d.redefined(c, o) || o.Size != nil && d.in.Allocated != "" && *o.Size != pod.SizeOf(d.spec, c)
}

// podName has the form of the kubelet's messages: name_namespace(uid).
func (d *decision) podName() string {
	r := d.in.Observed.Ref
	if p := d.in.Pod; p != nil {
		r = pod.Ref{Namespace: p.Namespace, Name: p.Name, UID: p.UID}
	}
	return r.Name + "_" + r.Namespace + "(" + string(r.UID) + ")"
}
