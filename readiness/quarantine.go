package readiness

import (
	"errors"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/provider"
)

// HostQuarantined is the node's condition for a host that exceeded a budget. A node whose host
// never did does not have the condition.
const HostQuarantined v1.NodeConditionType = "HostQuarantined"

// ReasonQuarantined is the reason of Ready during a quarantine, and of its event.
const ReasonQuarantined = "HostQuarantined"

// ReasonQuarantineEnded is the reason of the event when the host is managed again.
const ReasonQuarantineEnded = "HostQuarantineEnded"

// Quarantined returns the conditions of a node whose host is quarantined, without those that the
// quarantine does not change. unmanaged means that no other process may be managing the host, which
// makes the node not Ready.
func Quarantined(cause error, unmanaged bool) []provider.Condition {
	reason, message := ReasonQuarantined, "the host is quarantined: "+cause.Error()
	var exceeded *budget.ExceededError
	if errors.As(cause, &exceeded) {
		reason = "Budget" + exceeded.Kind.String()
	}
	conditions := []provider.Condition{{Type: HostQuarantined, Status: v1.ConditionTrue, Reason: reason, Message: message}}
	if unmanaged {
		conditions = append(conditions, provider.Condition{Type: v1.NodeReady, Status: v1.ConditionFalse, Reason: ReasonQuarantined, Message: message})
	}
	return conditions
}

// QuarantineEnded returns the condition of a managed node that was quarantined before; false if the
// Node does not say so.
func QuarantineEnded(seen *v1.Node) (provider.Condition, bool) {
	for _, c := range seen.Status.Conditions {
		if c.Type == HostQuarantined && c.Status == v1.ConditionTrue {
			return provider.Condition{Type: HostQuarantined, Status: v1.ConditionFalse, Reason: "WithinBudget", Message: "the host is managed again"}, true
		}
	}
	return provider.Condition{}, false
}
