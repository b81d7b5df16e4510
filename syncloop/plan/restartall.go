package plan

import (
	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// restartAll carries out the rule RestartAllContainers: when a container exited
// with a code that asks for it, every init and main container is killed and
// removed, the one that asked last and when its back-off is over, and the pod begins
// anew in its sandbox. It reports whether that is under way. The evidence is the
// exited container itself, so a new process carries on where the old one stopped.
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
	switch _, stopped := d.book.StopBegan[source.ID]; {
	case running:
		d.note("every container restarts, once all have stopped")
		return true
	case others, stopped: // its exit is no crash of its own
	case d.crashed(specOf(d.spec, source.Name), source):
		d.paused(source.Name)
		d.note("every container restarts later: " + d.book.Backoff[source.Name].Message)
		return true
	}
	for i := range o.Containers {
		c := &o.Containers[i]
		if !d.resets(c.Name) || others && d.asksRestartAll(c) {
			continue
		}
		if d.book.Attempts[c.Name] <= c.Attempt {
			d.book.attempts(c.Name, c.Attempt+1)
			d.book.crashes(c.Name, d.carried(c))
		}
		if !d.paused(IDKey(c.ID)) {
			d.begin(Operation{Kind: OpRemoveContainer, ID: c.ID, Container: c.Name, Attempt: c.Attempt, Reason: why})
		}
	}
	d.note("every container restarts, once the old ones are removed")
	return true
}

// carried is the crash count that an instance leaves to the next when a restart of
// all removes it: an exit of its own is counted, an end by our signal is not.
func (d *decision) carried(c *pod.Container) uint32 {
	_, stopped := d.book.StopBegan[c.ID]
	switch spec := specOf(d.spec, c.Name); {
	case spec == nil || !d.counts(spec, c):
		return 0
	case stopped || c.ExitCode == 0:
		return d.streak(c)
	}
	return d.streak(c) + 1
}

// restartSource is the instance whose exit restarts every container, the first of
// several; nil: none does.
func (d *decision) restartSource() (source *pod.Container) {
	if !canRestartAll(d.spec) {
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

// stoppedBy reports whether the container has ended after source did, whose exit restarts
// it, whatever it ended with. What had ended by then is no part of that: a pod that was
// finished does not begin anew.
func (d *decision) stoppedBy(source *pod.Container, c *v1.Container) bool {
	newest := d.in.Observed.Newest(c.Name)
	return source != nil && newest != nil && newest.State == pod.StateExited && newest.FinishedAt.After(source.FinishedAt)
}

// resets reports whether the named container takes part in a restart of all.
func (d *decision) resets(name string) bool {
	for i := range d.spec.InitContainers {
		if d.spec.InitContainers[i].Name == name {
			return true
		}
	}
	return d.isMain(name)
}

func (d *decision) asksRestartAll(c *pod.Container) bool {
	if c.State != pod.StateExited {
		return false
	}
	spec := specOf(d.spec, c.Name)
	if spec == nil || !d.resets(c.Name) {
		return false
	}
	rule := matchingRule(spec, c.ExitCode)
	return rule != nil && rule.Action == v1.ContainerRestartRuleActionRestartAllContainers
}
