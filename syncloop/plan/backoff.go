package plan

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// The kubelet's figures for a container that exits and is to run again: the first
// restart is at once, the next after 10 s, then twice as long each, at most 300 s;
// a run of 10 minutes resets the count.
const (
	crashFirst = 10 * time.Second
	crashMost  = 300 * time.Second
	GoodRun    = 10 * time.Minute
)

// Pauses after operations that failed, and after one whose fate is unknown.
const (
	retryFirst = time.Second
	retryMost  = 10 * time.Second // how often a kubelet tries a pod that fails to sync
	pullPause  = 10 * time.Second // the image's own, longer back-off is the image manager's
	lostPause  = time.Second
	stopPause  = 250 * time.Millisecond
	// sandboxPause is the least time between two replacements of a pod's sandbox.
	sandboxPause = 10 * time.Second
)

const reasonCrashLoop = "CrashLoopBackOff"

// crashDelay is the wait after the exit of the instance that was restarted
// streak times since the last good run.
func crashDelay(streak uint32) time.Duration {
	if streak == 0 {
		return 0
	}
	if streak > 6 {
		return crashMost
	}
	return min(crashFirst<<(streak-1), crashMost)
}

// retryDelay is the pause after the n-th failure in a row, n from 1.
func retryDelay(n int) time.Duration {
	if n > 5 {
		return retryMost
	}
	return min(retryFirst<<max(n-1, 0), retryMost)
}

// spread lengthens a pause by up to a tenth.
func spread(t time.Duration, jitter float64) time.Duration {
	return t + time.Duration(float64(t)*0.1*min(max(jitter, 0), 1))
}

// crashed reports whether the exited instance prior keeps its container from
// starting for now, and writes the back-off down for the status. The wait is
// derived from the instance's own count and times, so that a new process that
// remembers nothing never restarts a container too early.
func (d *decision) crashed(c *v1.Container, prior *pod.Container) bool {
	if !d.counts(c, prior) {
		return false
	}
	streak := d.streak(prior)
	delay := crashDelay(streak)
	if delay == 0 {
		return false
	}
	// More left than the whole wait means that our clock was set back.
	if b, ok := d.book.Backoff[c.Name]; ok && b.ID == prior.ID && b.Reason == reasonCrashLoop && b.Until.Sub(d.in.Now) <= spread(delay, 1) {
		return b.Until.After(d.in.Now)
	}
	end := prior.FinishedAt
	if end.IsZero() {
		end = prior.CreatedAt
	}
	if end.After(d.in.Now) {
		end = d.in.Now.Round(0) // the two clocks disagree a little, or ours was set
	}
	if !end.Add(delay).After(d.in.Now) {
		return false
	}
	d.book.backoff(c.Name, Backoff{
		Failures: int(streak),
		Until:    end.Add(spread(delay, d.in.Jitter)),
		Reason:   reasonCrashLoop,
		Message:  "back-off " + delay.String() + " restarting failed container=" + c.Name + " pod=" + d.podName(),
		Of:       OpStart,
		ID:       prior.ID,
	})
	return true
}

// counts reports whether the exit of prior counts as a crash of its container: it
// ended in the current sandbox, and was made as the container is wanted now. What
// ends with its sandbox, or with the machine, has not crashed.
func (d *decision) counts(c *v1.Container, prior *pod.Container) bool {
	return prior != nil && d.sandbox != nil && prior.SandboxID == d.sandbox.ID && !d.another(c, prior)
}

// streak is how many restarts within the sandbox led to an instance since the last
// good run, that one included.
func (d *decision) streak(c *pod.Container) uint32 {
	switch {
	case c.State == pod.StateExited && !c.StartedAt.IsZero() && c.FinishedAt.Sub(c.StartedAt) >= GoodRun:
		return 0
	case c.Crashes != nil:
		return *c.Crashes
	}
	// A version that did not count made it. Each sandbox before this one began with
	// a first instance: those are no crashes.
	return c.Attempt - min(c.Attempt, d.sandbox.Attempt)
}

// nextCrashes is the count of the instance that follows prior, or of the first one.
func (d *decision) nextCrashes(c *v1.Container, prior *pod.Container) uint32 {
	switch {
	case d.counts(c, prior):
		return d.streak(prior) + 1
	case d.in.Observed.Newest(c.Name) == nil:
		return d.book.Crashes[c.Name]
	}
	return 0
}

// forgetCrash ends a crash back-off that follows an exit in another sandbox.
func (d *decision) forgetCrash(name string) {
	b, ok := d.book.Backoff[name]
	if !ok || b.Reason != reasonCrashLoop {
		return
	}
	for i := range d.in.Observed.Containers {
		c := &d.in.Observed.Containers[i]
		if c.ID == b.ID && (d.sandbox == nil || c.SandboxID != d.sandbox.ID) {
			d.book.clearBackoff(name)
		}
	}
}

// another reports whether an instance was made with another image or of another size
// than its container has now: its crashes do not count against the next one.
func (d *decision) another(c *v1.Container, o *pod.Container) bool {
	return d.redefined(c, o) || o.Size != nil && d.in.Allocated != "" && *o.Size != pod.SizeOf(d.spec, c)
}

// podName is the form that the kubelet's messages have: name_namespace(uid).
func (d *decision) podName() string {
	r := d.in.Observed.Ref
	if p := d.in.Pod; p != nil {
		r = pod.Ref{Namespace: p.Namespace, Name: p.Name, UID: p.UID}
	}
	return r.Name + "_" + r.Namespace + "(" + string(r.UID) + ")"
}
