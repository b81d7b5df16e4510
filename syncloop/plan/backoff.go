package plan

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// The kubelet's figures for a container that exits and is to run again: the first
// restart is at once, the next after 10 s, then twice as long each, at most 300 s;
// a run of 10 minutes begins the count anew.
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
// derived from the instance's attempt and its times, so that a new process that
// remembers nothing never restarts a container too early: without evidence of a
// good run every earlier attempt counts as a crash.
func (d *decision) crashed(c *v1.Container, prior *pod.Container) bool {
	if since := prior.StartedAt; !since.IsZero() && prior.FinishedAt.Sub(since) >= GoodRun {
		if good, ok := d.book.Good[c.Name]; !ok || good != prior.Attempt {
			d.book.good(c.Name, prior.Attempt)
		}
	}
	if d.another(c, prior) {
		return false
	}
	base := d.goodAttempt(c.Name)
	for i := range d.in.Observed.Containers {
		if o := &d.in.Observed.Containers[i]; o.Name == c.Name && d.another(c, o) {
			base = max(base, o.Attempt+1) // the count begins with the first that is as it is wanted now
		}
	}
	if base > prior.Attempt {
		base = prior.Attempt // numbers began anew
	}
	streak := prior.Attempt - base
	delay := crashDelay(streak)
	if delay == 0 {
		return false
	}
	if b, ok := d.book.Backoff[c.Name]; ok && b.ID == prior.ID && b.Reason == reasonCrashLoop {
		return b.Until.After(d.in.Now)
	}
	end := prior.FinishedAt
	if end.IsZero() {
		end = prior.CreatedAt
	}
	if end.After(d.in.Now) {
		end = d.in.Now // the two clocks disagree a little
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

// another reports whether an instance was made with another image or of another size
// than its container has now: its crashes do not count against the next one.
func (d *decision) another(c *v1.Container, o *pod.Container) bool {
	hash := d.in.Hashes[c.Name]
	return hash != "" && o.SpecHash != "" && hash != o.SpecHash || o.Size != nil && d.in.Allocated != "" && *o.Size != pod.SizeOf(d.spec, c)
}

// goodAttempt is the newest attempt known to have run well, or 0.
func (d *decision) goodAttempt(name string) uint32 {
	good := d.book.Good[name]
	for i := range d.in.Observed.Containers {
		c := &d.in.Observed.Containers[i]
		if c.Name == name && c.State == pod.StateExited && !c.StartedAt.IsZero() && c.FinishedAt.Sub(c.StartedAt) >= GoodRun {
			good = max(good, c.Attempt)
		}
	}
	return good
}

// podName is the form that the kubelet's messages have: name_namespace(uid).
func (d *decision) podName() string {
	r := d.in.Observed.Ref
	if p := d.in.Pod; p != nil {
		r = pod.Ref{Namespace: p.Namespace, Name: p.Name, UID: p.UID}
	}
	return r.Name + "_" + r.Namespace + "(" + string(r.UID) + ")"
}
