package plan

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// repair stops what must not run: containers of other sandboxes, second
// instances, containers that failed a probe or whose spec has changed, ones that
// the runtime lost sight of; and sandboxes that are not the current one. It goes
// on while starting is on hold.
func (d *decision) repair() {
	o := &d.in.Observed
	for i := range o.Containers {
		c := &o.Containers[i]
		switch {
		case c.State == pod.StateCreated:
			d.removeUnstarted(c)
		case live(c):
			if s := d.mustStop(c); s.why.Cause != StopNone {
				if s.again && !d.book.Again[c.ID] {
					d.book.again(c.ID)
				}
				d.stop(c, d.in.Now.Add(s.grace), s.why)
			}
		}
	}
	for i := range o.Sandboxes {
		s := &o.Sandboxes[i]
		switch {
		case s == d.sandbox || d.flying(OpSandbox, ""):
		case s.Ready && i == 0:
			d.stopSandbox(s, "it has no address")
		case s.Ready:
			d.stopSandbox(s, "a newer one has taken its place")
		case d.sandbox == nil && i == 0:
			d.stopSandbox(s, "it is not ready any more")
		}
	}
}

// removeUnstarted removes an instance that was created and never started, what a
// crash or a lost reply leaves between the two. Nothing ran in it.
func (d *decision) removeUnstarted(c *pod.Container) {
	if d.flying(OpStart, c.Name) || d.flyingID(OpRemoveContainer, c.ID) {
		return
	}
	if d.paused(IDKey(c.ID)) {
		d.note(c.Name + ": its removal is tried again later" + because(d.book.Backoff[IDKey(c.ID)]))
		return
	}
	if d.book.Attempts[c.Name] < c.Attempt {
		d.book.attempts(c.Name, c.Attempt) // the next instance takes its number
	}
	if d.sandbox != nil && c.SandboxID == d.sandbox.ID && d.book.Crashes[c.Name] != d.streak(c) {
		d.book.crashes(c.Name, d.streak(c))
	}
	d.begin(Operation{Kind: OpRemoveContainer, ID: c.ID, Container: c.Name, Attempt: c.Attempt, Reason: "it was created and never started"})
}

// halt is why a live container must stop while its pod runs (StopNone: it may stay),
// the grace it gets, and whether it is started again whatever its exit code.
type halt struct {
	why   Stop
	grace time.Duration
	again bool
}

func (d *decision) mustStop(c *pod.Container) halt {
	newest := d.in.Observed.Newest(c.Name) == c
	if newest && d.flying(OpStart, c.Name) {
		return halt{} // it is the instance being started
	}
	grace := d.podGrace()
	spec := specOf(d.spec, c.Name)
	if why := d.book.Why[c.ID]; why.Cause != StopNone {
		return halt{why: why, grace: grace} // a stop that was begun is carried through
	}
	switch {
	case spec == nil:
		return halt{why: Stop{StopNotInSpec, "the pod's spec has no such container"}, grace: grace}
	case d.sandbox == nil && d.unaddressed():
		return halt{why: Stop{StopSandboxNotReady, "its sandbox has no address"}, grace: grace, again: newest && !d.never(spec)}
	case d.sandbox == nil:
		return halt{why: Stop{StopSandboxNotReady, "its sandbox is not ready any more"}, grace: grace, again: newest && !d.never(spec)}
	case c.SandboxID != d.sandbox.ID:
		return halt{why: Stop{StopSandboxReplaced, "it belongs to a sandbox that was replaced"}, grace: grace, again: newest && !d.never(spec)}
	case !newest:
		return halt{why: Stop{StopSuperseded, "a newer instance has taken its place"}, grace: grace}
	case c.State == pod.StateUnknown:
		return halt{why: Stop{StopStateUnknown, "the runtime does not know its state"}, grace: grace}
	}
	at := sidecarIndex(d.spec, c.Name)
	if at < 0 && !d.isMain(c.Name) {
		return halt{} // init and ephemeral containers run to their end
	}
	if d.redefined(spec, c) {
		return halt{why: Stop{StopDefinition, "Container " + c.Name + " definition changed"}, grace: grace, again: true}
	}
	v := d.in.Verdicts[c.ID]
	if spec.StartupProbe != nil && v.Startup == pod.VerdictFailure {
		if s := spec.StartupProbe.TerminationGracePeriodSeconds; s != nil {
			grace = seconds(*s)
		}
		return halt{why: Stop{StopStartupProbe, probeWords(c.Name, "startup", v.Message)}, grace: grace, again: !d.never(spec)}
	}
	if spec.LivenessProbe != nil && v.Liveness == pod.VerdictFailure {
		if s := spec.LivenessProbe.TerminationGracePeriodSeconds; s != nil {
			grace = seconds(*s)
		}
		if s := v.LivenessGrace; s != nil {
			grace = seconds(*s)
		}
		return halt{why: Stop{StopLivenessProbe, probeWords(c.Name, "liveness", v.Message)}, grace: grace, again: !d.never(spec)}
	}
	if _, restart := d.unsized(c); restart && d.in.Hold == "" {
		return halt{why: Stop{StopResize, "Container " + c.Name + " resize requires restart"}, grace: grace, again: true}
	}
	return halt{}
}

// never reports whether the container's policy, rules aside, is Never: with no
// exit code of its own there is nothing for a rule to match.
func (d *decision) never(c *v1.Container) bool {
	if c.RestartPolicy != nil {
		return *c.RestartPolicy == v1.ContainerRestartPolicyNever
	}
	return d.spec.RestartPolicy == v1.RestartPolicyNever
}

func probeWords(name, probe, output string) string {
	s := "Container " + name + " failed " + probe + " probe"
	if output != "" {
		s += ": " + output
	}
	return s
}

func (d *decision) isMain(name string) bool {
	for i := range d.spec.Containers {
		if d.spec.Containers[i].Name == name {
			return true
		}
	}
	return false
}

// stop ends one container, killed at the latest at by; the earliest time asked
// for stands. A stop under way that would kill too late is cancelled, and issued
// again with what remains once it has returned: two never run at once.
func (d *decision) stop(c *pod.Container, by time.Time, why Stop) {
	_, again := d.book.StopBegan[c.ID]
	if old, ok := d.book.StopBy[c.ID]; ok && old.Before(by) {
		by = old
	}
	if d.flyingID(OpStop, c.ID) {
		if old := d.book.StopBy[c.ID]; again && old.Sub(by) > time.Second {
			d.cancel = append(d.cancel, Key{OpStop, c.Name, c.ID})
			d.note("the stop of " + c.Name + " gets a shorter grace")
			return
		}
		d.note(c.Name + " is stopping")
		return
	}
	if d.paused(IDKey(c.ID)) {
		d.note("the stop of " + c.Name + " is tried again shortly" + because(d.book.Backoff[IDKey(c.ID)]))
		return
	}
	if !again {
		d.book.stopBegan(c.ID, d.in.Now)
	}
	if old, ok := d.book.StopBy[c.ID]; !ok || !old.Equal(by) {
		d.book.stopBy(c.ID, by)
	}
	if d.book.Why[c.ID].Cause == StopNone {
		d.book.because(c.ID, why)
	}
	grace := max(by.Sub(d.in.Now), 0)
	// Whether a stop that was cut off, or lost on its way, ever sent SIGTERM nobody
	// knows: the next one does, and waits a moment for it. A container whose stops
	// are cut off again and again is killed in the end.
	forced := d.terminate != nil && d.terminate.Grace == 0
	if grace == 0 && !forced && by.After(d.book.StopBegan[c.ID]) && d.book.Stops[c.ID] < stopsCutOff {
		grace = leastGrace
	}
	d.book.stops(c.ID)
	grace = (grace + time.Second - 1).Truncate(time.Second) // the CRI counts in seconds
	d.begin(Operation{Kind: OpStop, ID: c.ID, Container: c.Name, Attempt: c.Attempt, Grace: grace,
		PreStop: grace > 0 && d.preStop(c), Cause: why.Cause, Reason: why.Words})
}

// preStop reports whether a hook is to be run before the container is stopped.
// Where no source has the pod's spec any more, the container's own annotation
// tells.
func (d *decision) preStop(c *pod.Container) bool {
	if c.State != pod.StateRunning || d.book.PreStopped[c.ID] {
		return false
	}
	if spec := specOf(d.spec, c.Name); spec != nil {
		return spec.Lifecycle != nil && spec.Lifecycle.PreStop != nil
	}
	return c.Annotations[pod.AnnotationPreStop] != ""
}
