package plan

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// lostExitCode stands for the exit of a container that ran and left no trace; a
// kill's, as the kubelet reports it.
const lostExitCode = 137

// restarts reports whether a container that exited with code is to run again:
// its own rules first, then its own policy, then the pod's.
func restarts(s *v1.PodSpec, c *v1.Container, code int32) bool {
	if c.RestartPolicy != nil {
		if rule := matchingRule(c, code); rule != nil {
			switch rule.Action {
			case v1.ContainerRestartRuleActionRestart, v1.ContainerRestartRuleActionRestartAllContainers:
				return true
			}
		}
		switch *c.RestartPolicy {
		case v1.ContainerRestartPolicyAlways:
			return true
		case v1.ContainerRestartPolicyOnFailure:
			return code != 0
		case v1.ContainerRestartPolicyNever:
			return false
		}
	}
	switch s.RestartPolicy {
	case v1.RestartPolicyNever:
		return false
	case v1.RestartPolicyOnFailure:
		return code != 0
	}
	return true
}

// matchingRule is the first of the container's restart rules that covers code.
func matchingRule(c *v1.Container, code int32) *v1.ContainerRestartRule {
	for i := range c.RestartPolicyRules {
		r := &c.RestartPolicyRules[i]
		if r.ExitCodes == nil {
			continue
		}
		in := slices.Contains(r.ExitCodes.Values, code)
		switch r.ExitCodes.Operator {
		case v1.ContainerRestartRuleOnExitCodesOpIn:
			if in {
				return r
			}
		case v1.ContainerRestartRuleOnExitCodesOpNotIn:
			if !in {
				return r
			}
		}
	}
	return nil
}

// canRestartAll reports whether some container's rule may restart every other.
func canRestartAll(s *v1.PodSpec) bool {
	for _, list := range [...][]v1.Container{s.InitContainers, s.Containers} {
		for i := range list {
			for j := range list[i].RestartPolicyRules {
				if list[i].RestartPolicyRules[j].Action == v1.ContainerRestartRuleActionRestartAllContainers {
					return true
				}
			}
		}
	}
	return false
}

// finished reports whether a main container has exited for good. Its newest
// instance counts, whichever sandbox it was in; where the runtime has none left,
// what the API server was told: a container that must run once never runs twice
// because its remains were collected.
func (d *decision) finished(c *v1.Container) bool {
	if d.flying(OpStart, c.Name) {
		return false
	}
	if newest := d.in.Observed.Newest(c.Name); newest != nil {
		return !d.book.Again[newest.ID] && newest.State == pod.StateExited && !d.anyLive(c.Name) && !restarts(d.spec, c, newest.ExitCode)
	}
	st := d.reported(c.Name)
	if st == nil || canRestartAll(d.spec) {
		return false
	}
	switch {
	case st.State.Terminated != nil:
		return !restarts(d.spec, c, st.State.Terminated.ExitCode)
	case st.State.Running != nil:
		return !restarts(d.spec, c, lostExitCode)
	case st.LastTerminationState.Terminated != nil:
		return !restarts(d.spec, c, st.LastTerminationState.Terminated.ExitCode)
	}
	return false
}

// nextAttempt is the number of the next instance: one more than the newest, or
// than what the API server was told of, so that it never goes back.
func (d *decision) nextAttempt(name string) uint32 {
	if newest := d.in.Observed.Newest(name); newest != nil {
		return newest.Attempt + 1
	}
	n := d.book.Attempts[name]
	if st := d.reported(name); st != nil {
		told := uint32(max(st.RestartCount, 0))
		if st.State.Running != nil || st.State.Terminated != nil || st.LastTerminationState.Terminated != nil {
			told++
		}
		n = max(n, told)
	}
	return n
}
