package pod

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

// Restarts reports whether a container that exited with code has to run again: by its own rules
// first, then by its own policy, then by the pod's.
func Restarts(s *v1.PodSpec, c *v1.Container, code int32) bool {
	policy := v1.ContainerRestartPolicy(s.RestartPolicy)
	if c.RestartPolicy != nil {
		if rule := RestartRule(c, code); rule != nil {
			switch rule.Action { // an unknown action leaves the decision to the policy
			case v1.ContainerRestartRuleActionRestart, v1.ContainerRestartRuleActionRestartAllContainers:
				return true
			}
		}
		policy = *c.RestartPolicy
	}
	switch policy {
	case v1.ContainerRestartPolicyNever:
		return false
	case v1.ContainerRestartPolicyOnFailure:
		return code != 0
	}
	return true
}

// RestartRule returns the first of the container's restart rules that matches an exit code, or nil.
func RestartRule(c *v1.Container, code int32) *v1.ContainerRestartRule {
	for i := range c.RestartPolicyRules {
		r := &c.RestartPolicyRules[i]
		if r.ExitCodes == nil {
			continue
		}
		in := slices.Contains(r.ExitCodes.Values, code)
		if in && r.ExitCodes.Operator == v1.ContainerRestartRuleOnExitCodesOpIn || !in && r.ExitCodes.Operator == v1.ContainerRestartRuleOnExitCodesOpNotIn {
			return r
		}
	}
	return nil
}

// CanRestartAll reports whether a rule of some container may restart all of them.
func CanRestartAll(s *v1.PodSpec) bool {
	for c := range Containers(s) {
		if slices.ContainsFunc(c.RestartPolicyRules, restartsAll) {
			return true
		}
	}
	return false
}

// RestartsAll reports whether the exit of a container with code restarts all of them.
func RestartsAll(c *v1.Container, code int32) bool {
	r := RestartRule(c, code)
	return r != nil && restartsAll(*r)
}

func restartsAll(r v1.ContainerRestartRule) bool {
	return r.Action == v1.ContainerRestartRuleActionRestartAllContainers
}
