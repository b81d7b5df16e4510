package plan

import (
	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// restartAll executes the rule RestartAllContainers: after a container has exited with a matching
// code, every init and main container is killed and removed, and the pod starts over in its
// sandbox. Containers that triggered the rule are removed last, after the back-off. restartAll
// reports whether this is in progress. The exited container itself is the evidence, so a new
// process continues where the old one stopped.
func (d *decision) restartAll() bool {
	source, o := d.restartSource(), &d.in.Observed
	if source == nil {
		return false
	}
	if d.creating() {
		d.repair()
		d.note("every container restarts, once the start under way has ended")
		return true
	}
	why := "the exit of " + source.Name + " restarts every container"
	running, others := false, false
	for i := range o.Containers {
		if c := &o.Containers[i]; d.resets(c.Name) {
			if live(c) {
				running = true
				d.stop(c, d.in.Now, Stop{StopRestartAll, why})
			}
			others = others || !d.asksRestartAll(c)
		}
	}
	switch stopped := !d.ledger.Containers[source.ID].StopBegan.IsZero(); {
	case running:
		d.note("every container restarts, once all have stopped")
		return true
	case others, stopped: // its exit is not a crash of its own
	case d.crashed(pod.Find(pod.AllContainers(d.spec), source.Name), source):
		d.paused(source.Name)
		d.note("every container restarts later: " + d.ledger.Backoff(source.Name).Message)
		return true
	}
	for i := range o.Containers {
		c := &o.Containers[i]
		if !d.resets(c.Name) || others && d.asksRestartAll(c) {
			continue
		}
		if d.ledger.Names[c.Name].Attempt <= c.Attempt {
			d.ledger.attempts(c.Name, c.Attempt+1)
			d.ledger.crashes(c.Name, d.carried(c))
		}
		if !d.paused(IDKey(c.ID)) {
			d.begin(Operation{Kind: OpRemoveContainer, ID: c.ID, Container: c.Name, Attempt: c.Attempt, Reason: why})
		}
	}
	d.note("every container restarts, once the old ones are removed")
	return true
}

// carried is the crash count that a removed instance passes on to the next one. A failure of its
// own adds one; a stop by us or exit code 0 does not.
func (d *decision) carried(c *pod.Container) uint32 {
	stopped := !d.ledger.Containers[c.ID].StopBegan.IsZero()
	switch spec := pod.Find(pod.AllContainers(d.spec), c.Name); {
	case spec == nil || !d.counts(spec, c):
		return 0
	case stopped || c.ExitCode == 0:
		return d.streak(c)
	}
	return d.streak(c) + 1
}

// restartSource returns the instance whose exit restarts every container, the earliest if there are
// several, or nil.
func (d *decision) restartSource() (source *pod.Container) {
	if !pod.CanRestartAll(d.spec) {
		return nil
	}
	o := &d.in.Observed
	for i := range o.Containers {
		c := &o.Containers[i]
		if o.Newest(c.Name) == c && d.asksRestartAll(c) && (source == nil || c.FinishedAt.Before(source.FinishedAt)) {
			source = c
		}
	}
	return source
}

// stoppedBy reports whether the container ended after source, whose exit restarts it whatever its
// own result. A container that ended before is not affected: a pod that had finished does not start
// over.
func (d *decision) stoppedBy(source *pod.Container, c *v1.Container) bool {
	newest := d.in.Observed.Newest(c.Name)
	return source != nil && newest != nil && newest.State == pod.StateExited && newest.FinishedAt.After(source.FinishedAt)
}

// resets reports whether the named container takes part in a restart of all containers.
func (d *decision) resets(name string) bool {
	return pod.Find(pod.Containers(d.spec), name) != nil
}

func (d *decision) asksRestartAll(c *pod.Container) bool {
	if c.State != pod.StateExited {
		return false
	}
	spec := pod.Find(pod.AllContainers(d.spec), c.Name)
	if spec == nil || !d.resets(c.Name) {
		return false
	}
	rule := pod.RestartRule(spec, c.ExitCode)
	return rule != nil && rule.Action == v1.ContainerRestartRuleActionRestartAllContainers
}
