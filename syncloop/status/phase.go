package status

import (
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// phase is the pod's phase according to its containers. Generate then applies reason, finish and
// holdTerminal to it.
func (g *generator) phase(s *v1.PodStatus) v1.PodPhase {
	pendingInit, initFailed := g.initProgress(s)
	if initFailed {
		return v1.PodFailed
	}
	var n tally
	pendingSidecars := g.countSidecars(s, &n)
	g.countMains(s, &n)

	switch {
	case pendingInit, pendingSidecars && !g.mainCreated(true), n.waiting > 0:
		return v1.PodPending
	case n.running > 0 && n.unknown == 0:
		return v1.PodRunning
	case n.running == 0 && n.stopped > 0 && n.unknown == 0:
		switch {
		case g.in.Phase < pod.Terminated && n.stopped > n.finished:
			return v1.PodRunning // between two instances
		case n.stopped == n.succeeded:
			return v1.PodSucceeded
		}
		return v1.PodFailed
	}
	return v1.PodPending
}

// tally counts containers by the effect of their states on the pod's phase.
type tally struct {
	unknown, running, waiting int
	stopped                   int // ended at least once and not running
	finished                  int // of those, never to be started again
	succeeded                 int // of the stopped ones, now terminated with exit code 0
}

// ended returns how a container that is not running last ended, or nil.
func ended(s *v1.ContainerStatus) *v1.ContainerStateTerminated {
	if s.State.Terminated != nil {
		return s.State.Terminated
	}
	return s.LastTerminationState.Terminated
}

// runsAgain reports whether a container that ended like this has to run again.
func (g *generator) runsAgain(c *v1.Container, how *v1.ContainerStateTerminated) bool {
	return how.Reason == reasonRestartingAll || pod.Restarts(g.spec, c, how.ExitCode) || g.restartingAll() ||
		g.again(strings.TrimPrefix(how.ContainerID, g.scheme()))
}

// initProgress looks at the init containers that are not sidecars.
func (g *generator) initProgress(s *v1.PodStatus) (pending, failed bool) {
	for i := range g.spec.InitContainers {
		c := &g.spec.InitContainers[i]
		if pod.Sidecar(c) {
			continue
		}
		cs := find(s.InitContainerStatuses, c.Name)
		if cs == nil || cs.State.Running != nil || ended(cs) == nil {
			pending = true
			continue
		}
		if how := ended(cs); how.ExitCode != 0 && !g.runsAgain(c, how) {
			failed = true
		}
	}
	return pending, failed
}

// countSidecars counts the sidecars. A sidecar that has ended does not affect the phase.
func (g *generator) countSidecars(s *v1.PodStatus, n *tally) (pending bool) {
	for i := range g.spec.InitContainers {
		c := &g.spec.InitContainers[i]
		if !pod.Sidecar(c) {
			continue
		}
		cs := find(s.InitContainerStatuses, c.Name)
		switch {
		case cs == nil:
			n.unknown++
		case cs.State.Running != nil:
			pending = pending || cs.Started == nil || !*cs.Started
			n.running++
		case ended(cs) == nil:
			pending = true
			n.waiting++
		}
	}
	return pending
}

func (g *generator) countMains(s *v1.PodStatus, n *tally) {
	for i := range g.spec.Containers {
		c := &g.spec.Containers[i]
		cs := find(s.ContainerStatuses, c.Name)
		switch {
		case cs == nil:
			n.unknown++
		case cs.State.Running != nil:
			n.running++
		case ended(cs) == nil:
			n.waiting++
		default:
			n.stopped++
			if !g.runsAgain(c, ended(cs)) {
				n.finished++
			}
			if cs.State.Terminated != nil && cs.State.Terminated.ExitCode == 0 {
				n.succeeded++
			}
		}
	}
}

// finish completes the status of a pod in which nothing runs any more: a container without a known
// termination counts as failed, and the phase becomes terminal.
func (g *generator) finish(s *v1.PodStatus) {
	end := func(c *v1.ContainerStatus) {
		if c.State.Terminated != nil {
			return
		}
		no := false
		c.Ready, c.Started = false, &no
		if last := c.LastTerminationState.Terminated; last != nil && last.ContainerID != "" && last.ContainerID == c.ContainerID {
			c.State, c.LastTerminationState = c.LastTerminationState, v1.ContainerState{} // it waited for its next start
			return
		}
		c.State = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
			Reason: reasonUnknown, Message: messageGoneFinished, ExitCode: exitUnknown, ContainerID: c.ContainerID,
		}}
	}
	started := func(c *v1.ContainerStatus) bool {
		return c.State.Waiting == nil || c.LastTerminationState.Terminated != nil
	}
	if g.initialized(s, started) {
		for i := range s.ContainerStatuses {
			end(&s.ContainerStatuses[i])
		}
	}
	// End the init containers up to the last one with any sign of a start, and always the first.
	last := 0
	for i := range s.InitContainerStatuses {
		if started(&s.InitContainerStatuses[i]) {
			last = i
		}
	}
	for i := range s.InitContainerStatuses {
		if i <= last {
			end(&s.InitContainerStatuses[i])
		}
	}
	if !pod.Terminal(s.Phase) {
		s.Phase = v1.PodFailed
	}
}

// initialized reports whether any main container may ever have started.
func (g *generator) initialized(s *v1.PodStatus, started func(*v1.ContainerStatus) bool) bool {
	n := len(g.spec.InitContainers)
	if n == 0 {
		return true
	}
	for i := range s.ContainerStatuses {
		if started(&s.ContainerStatuses[i]) {
			return true
		}
	}
	c := &g.spec.InitContainers[n-1]
	cs := find(s.InitContainerStatuses, c.Name)
	switch {
	case cs == nil:
		return false
	case pod.Sidecar(c):
		return cs.State.Running != nil && cs.Started != nil && *cs.Started
	}
	for _, st := range []v1.ContainerState{cs.State, cs.LastTerminationState} {
		if st.Terminated != nil && st.Terminated.ExitCode == 0 {
			return true
		}
	}
	return false
}
