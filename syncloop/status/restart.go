package status

import (
	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// restarts reports whether a container that ended with exitCode starts again:
// its own rules in order, then its own policy, then the pod's.
func restarts(c *v1.Container, spec *v1.PodSpec, exitCode int32) bool {
	policy := v1.ContainerRestartPolicy(spec.RestartPolicy)
	if c.RestartPolicy != nil {
		switch action(c, exitCode) { // one that we do not know leaves it to the policy
		case v1.ContainerRestartRuleActionRestart, v1.ContainerRestartRuleActionRestartAllContainers:
			return true
		}
		policy = *c.RestartPolicy
	}
	switch policy {
	case v1.ContainerRestartPolicyNever:
		return false
	case v1.ContainerRestartPolicyOnFailure:
		return exitCode != 0
	}
	return true
}

// action is that of the first of the container's rules that covers exitCode.
func action(c *v1.Container, exitCode int32) v1.ContainerRestartRuleAction {
	for i := range c.RestartPolicyRules {
		if r := &c.RestartPolicyRules[i]; matches(r.ExitCodes, exitCode) {
			return r.Action
		}
	}
	return ""
}

// canRestartAll reports whether some container's end may restart all of them.
func (g *generator) canRestartAll() bool {
	return g.some(func(c *v1.Container) bool {
		for i := range c.RestartPolicyRules {
			if c.RestartPolicyRules[i].Action == v1.ContainerRestartRuleActionRestartAllContainers {
				return true
			}
		}
		return false
	})
}

// restartingAll reports whether the end of some container restarts all of them: it is the
// last that is removed.
func (g *generator) restartingAll() bool {
	if g.in.Phase != pod.Syncing || g.in.Pod.DeletionTimestamp != nil {
		return false
	}
	return g.some(func(c *v1.Container) bool {
		if len(c.RestartPolicyRules) == 0 {
			return false
		}
		newest, _ := g.instances(c.Name)
		return newest != nil && newest.State == pod.StateExited && action(c, newest.ExitCode) == v1.ContainerRestartRuleActionRestartAllContainers
	})
}

// some reports whether is holds of some init or main container.
func (g *generator) some(is func(*v1.Container) bool) bool {
	for _, list := range [][]v1.Container{g.spec.InitContainers, g.spec.Containers} {
		for i := range list {
			if is(&list[i]) {
				return true
			}
		}
	}
	return false
}

func matches(on *v1.ContainerRestartRuleOnExitCodes, exitCode int32) bool {
	if on == nil {
		return false
	}
	in := false
	for _, v := range on.Values {
		in = in || v == exitCode
	}
	switch on.Operator {
	case v1.ContainerRestartRuleOnExitCodesOpIn:
		return in
	case v1.ContainerRestartRuleOnExitCodesOpNotIn:
		return !in
	}
	return false
}

// sidecar reports whether an init container runs beside the main ones.
func sidecar(c *v1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways
}
