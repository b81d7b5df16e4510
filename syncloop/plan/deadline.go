package plan

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// defaultGrace is the API server's default of terminationGracePeriodSeconds.
const defaultGrace = 30 * time.Second

// minimumGrace is a kubelet's minimum grace period for a container (minimumGracePeriodInSeconds).
// podGrace applies it.
const minimumGrace = 2 * time.Second

// ends finds why the pod must not run any longer: a request, its deadline, or that it has finished.
// It sets d.terminate.
func (d *decision) ends() bool {
	p := d.in.Pod
	switch {
	case d.terminate != nil:
	case p == nil:
		d.end(CauseOrphan, "", "No source has the pod any more.")
	case p.DeletionTimestamp != nil:
		d.end(CauseDeleted, "", "")
		if s := p.DeletionGracePeriodSeconds; s != nil {
			d.terminate.Grace = seconds(*s)
		}
	case pod.Terminal(p.Status.Phase):
		d.end(CauseFinished, "", "The pod had finished before.")
	case d.overdue():
		d.end(CauseDeadline, "DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
	default:
		why := d.done()
		if why == "" {
			return false
		}
		d.end(CauseFinished, "", why)
	}
	d.note(d.terminate.words())
	return true
}

func (d *decision) end(cause Cause, reason, message string) {
	d.terminate = &Terminate{At: d.in.Now, Grace: d.podGrace(), Cause: cause, Reason: reason, Message: message}
}

// overdue reports whether activeDeadlineSeconds have passed; if not, it sets a wake-up for that
// time.
func (d *decision) overdue() bool {
	s := d.spec.ActiveDeadlineSeconds
	if s == nil {
		return false
	}
	since := d.activeSince()
	if since.IsZero() {
		return false
	}
	at := since.Add(seconds(*s))
	if !at.After(d.in.Now) {
		return true
	}
	d.wakeAt(at)
	return false
}

// activeSince is status.startTime, or, before the API server has one, the creation time of the
// oldest remaining sandbox.
func (d *decision) activeSince() time.Time {
	if st := d.in.Pod.Status.StartTime; st != nil {
		return st.Time
	}
	var t time.Time
	for i := range d.in.Observed.Sandboxes {
		if at := d.in.Observed.Sandboxes[i].CreatedAt; !at.IsZero() && (t.IsZero() || at.Before(t)) {
			t = at
		}
	}
	return t
}

// done says why every container has finished for good, or is empty.
func (d *decision) done() string {
	source := d.restartSource()
	if c := d.failedInit(); c != nil && !d.stoppedBy(source, c) {
		return "Init container " + c.Name + " failed and is not to be restarted."
	}
	all := len(d.spec.Containers) > 0
	for i := range d.spec.Containers {
		if c := &d.spec.Containers[i]; !d.finished(c) || d.stoppedBy(source, c) {
			all = false
			break
		}
	}
	if all {
		return "Every container has finished."
	}
	if d.sandbox == nil && d.spec.RestartPolicy == v1.RestartPolicyNever && !d.creating() && d.ranAnything() {
		return "The pod's sandbox is gone and its restart policy is Never."
	}
	return ""
}

// failedInit returns the init container whose failure ends the pod, or nil.
func (d *decision) failedInit() *v1.Container {
	if d.mainHere() {
		return nil
	}
	for i := range d.spec.InitContainers {
		c := &d.spec.InitContainers[i]
		if pod.Sidecar(c) {
			continue
		}
		if got := d.here(c.Name); got != nil && !d.flying(OpStart, c.Name) && got.State == pod.StateExited && got.ExitCode != 0 && !pod.Restarts(d.spec, c, got.ExitCode) {
			return c
		}
	}
	return nil
}

// ranAnything reports whether some container of the pod ever ran.
func (d *decision) ranAnything() bool {
	for i := range d.in.Observed.Containers {
		if d.in.Observed.Containers[i].State != pod.StateCreated {
			return true
		}
	}
	return false
}

// podGrace is the pod's terminationGracePeriodSeconds, and at least the kubelet's minimum: a
// container that the node itself ends always gets the stop signal first.
func (d *decision) podGrace() time.Duration {
	if s := d.spec.TerminationGracePeriodSeconds; s != nil {
		return max(seconds(*s), minimumGrace)
	}
	return defaultGrace
}

func seconds(s int64) time.Duration {
	const most = int64(1<<63-1) / int64(time.Second)
	return time.Duration(min(max(s, 0), most)) * time.Second
}

// by is the end of the request's grace period.
func (t *Terminate) by() time.Time { return t.At.Add(t.Grace) }

// words says why the pod ends.
func (t *Terminate) words() string {
	switch t.Cause {
	case CauseDeleted:
		return "the pod is being deleted"
	case CauseOrphan:
		return "no source has the pod any more"
	case CauseEvicted:
		return "the pod is evicted"
	case CauseDeadline:
		return "the pod's active deadline has passed"
	case CauseRejected:
		return "the node rejected the pod: " + t.Message
	case CauseShutdown:
		return "the host is shutting down"
	}
	if t.Message != "" {
		return "the pod is finished: " + t.Message
	}
	return "the pod is finished"
}

// Merge combines the request in force with a second one. The earlier end of the grace period wins.
// A deletion or the loss of the source becomes the Cause, which decides what happens to the
// remains. The first Reason and Message stay.
func Merge(old, new *Terminate) *Terminate {
	if old == nil || new == nil {
		if old == nil {
			return new
		}
		return old
	}
	m := *old
	if new.by().Before(old.by()) {
		m.At, m.Grace = new.At, new.Grace
	}
	if old.Cause != CauseDeleted && (new.Cause == CauseDeleted || new.Cause == CauseOrphan) {
		m.Cause = new.Cause
	}
	if m.Reason == "" {
		m.Reason, m.Disruption = new.Reason, new.Disruption
	}
	if m.Message == "" {
		m.Message = new.Message
	}
	return &m
}
