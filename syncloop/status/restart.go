package status

import v1 "k8s.io/api/core/v1"

// restarts reports whether a container that ended with exitCode starts again:
// its own rules in order, then its own policy, then the pod's.
func restarts(c *v1.Container, spec *v1.PodSpec, exitCode int32) bool {
	policy := v1.ContainerRestartPolicy(spec.RestartPolicy)
	if c.RestartPolicy != nil {
		for i := range c.RestartPolicyRules {
			r := &c.RestartPolicyRules[i]
			if matches(r.ExitCodes, exitCode) &&
				(r.Action == v1.ContainerRestartRuleActionRestart || r.Action == v1.ContainerRestartRuleActionRestartAllContainers) {
				return true
			} else if matches(r.ExitCodes, exitCode) {
				break // the first match decides; an action we do not know leaves it to the policy
			}
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
