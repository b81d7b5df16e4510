package plan

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// repair stops what must not run: containers of other sandboxes, superseded instances, containers
// that failed a probe or whose spec changed, and those in state Unknown; also sandboxes other than
// the current one. It works even while Hold forbids starts.
func (d *decision) repair() {
	o := &d.in.Observed
	for i := range o.Containers {
		c := &o.Containers[i]
		switch {
		case c.State == pod.StateCreated:
			d.removeUnstarted(c)
		case live(c):
			if s := d.mustStop(c); s.why.Cause != StopNone {
				if s.again {
					d.ledger.container(c.ID, func(r *ContainerRecord) { r.Again = true })
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

// removeUnstarted removes an instance that was created and never started, which a crash or a lost
// reply leaves behind. Nothing ran in it.
func (d *decision) removeUnstarted(c *pod.Container) {
	if d.flying(OpStart, c.Name) || d.flyingID(OpRemoveContainer, c.ID) {
		return
	}
	if d.paused(IDKey(c.ID)) {
		d.note(c.Name + ": its removal is tried again later" + because(d.ledger.Backoff(IDKey(c.ID))))
		return
	}
	if d.ledger.Names[c.Name].Attempt < c.Attempt {
		d.ledger.attempts(c.Name, c.Attempt) // the next instance takes its number
	}
	if d.sandbox != nil && c.SandboxID == d.sandbox.ID && d.ledger.Names[c.Name].Crashes != d.streak(c) {
		d.ledger.crashes(c.Name, d.streak(c))
	}
	d.begin(Operation{Kind: OpRemoveContainer, ID: c.ID, Container: c.Name, Attempt: c.Attempt, Reason: "it was created and never started"})
}

// halt says why a live container must stop while its pod runs (StopNone: it may stay), its grace
// period, and whether it is started again whatever its exit code.
type halt struct {
	why   Stop
	grace time.Duration
	again bool
}

func (d *decision) mustStop(c *pod.Container) halt {
	newest := d.in.Observed.Newest(c.Name) == c
	if newest && d.flying(OpStart, c.Name) {
		return halt{} // it is the instance that is being started
	}
	grace := d.podGrace()
	spec := pod.Find(pod.AllContainers(d.spec), c.Name)
	if why := d.ledger.Containers[c.ID].Why; why.Cause != StopNone {
		return halt{why: why, grace: grace} // a stop that has begun is completed
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
		return halt{} // init and ephemeral containers run to completion
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

// never reports whether the container's restart policy, without its rules, is Never. Rules do not
// apply, because a container that we stop has no exit code of its own to match.
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
	return slices.ContainsFunc(d.spec.Containers, func(c v1.Container) bool { return c.Name == name })
}

// stop stops one container and has it killed no later than by; the earliest by of several calls
// holds. If a stop in flight would kill too late, it is cancelled, and issued again with the
// remaining grace period once it has returned, so that two never run at once.
func (d *decision) stop(c *pod.Container, by time.Time, why Stop) {
	was := d.ledger.Containers[c.ID]
	again := !was.StopBegan.IsZero()
	if !was.StopBy.IsZero() && was.StopBy.Before(by) {
		by = was.StopBy
	}
	if d.flyingID(OpStop, c.ID) {
		if again && was.StopBy.Sub(by) > time.Second {
			d.cancel = append(d.cancel, Key{OpStop, c.Name, c.ID})
			d.note("the stop of " + c.Name + " gets a shorter grace")
			return
		}
		d.note(c.Name + " is stopping")
		return
	}
	if d.paused(IDKey(c.ID)) {
		d.note("the stop of " + c.Name + " is tried again shortly" + because(d.ledger.Backoff(IDKey(c.ID))))
		return
	}
	began := was.StopBegan
	if !again {
		began = d.in.Now
	}
	grace := max(by.Sub(d.in.Now), 0)
	// A stop that was cut off or lost may not have sent SIGTERM. So the next one sends it and waits
	// briefly. A container whose stops are cut off repeatedly (stopsCutOff) is killed in the end.
	forced := d.terminate != nil && d.terminate.Grace == 0
	if grace == 0 && !forced && by.After(began) && was.Stops < stopsCutOff {
		grace = leastGrace
	}
	d.ledger.container(c.ID, func(r *ContainerRecord) {
		r.StopBegan, r.Stops = began, r.Stops+1
		if !r.StopBy.Equal(by) {
			r.StopBy = by
		}
		if r.Why.Cause == StopNone {
			r.Why = why
		}
	})
	grace = (grace + time.Second - 1).Truncate(time.Second) // the CRI counts in seconds
	d.begin(Operation{Kind: OpStop, ID: c.ID, Container: c.Name, Attempt: c.Attempt, Grace: grace,
		PreStop: grace > 0 && d.preStop(c), Cause: why.Cause, Reason: why.Words})
}

// preStop reports whether a preStop hook has to run before the container is stopped. If no source
// has the pod's spec any more, the container's annotation says so.
func (d *decision) preStop(c *pod.Container) bool {
	if c.State != pod.StateRunning || d.ledger.Containers[c.ID].PreStopped {
		return false
	}
	if spec := pod.Find(pod.AllContainers(d.spec), c.Name); spec != nil {
		return spec.Lifecycle != nil && spec.Lifecycle.PreStop != nil
	}
	return c.Annotations[pod.AnnotationPreStop] != ""
}
