package hosts

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
)

// event is an event on a Host.
type event struct{ kind, reason, message string }

// reasonManaged is the reason of the event when a host becomes managed.
const reasonManaged = "Managed"

// warned are the reasons of the condition Ready that have an event of the same name each time that
// they begin. Other reasons are ordinary, or follow from these.
var warned = map[string]bool{
	ReasonQuarantined: true, ReasonFailed: true, ReasonInvalid: true, ReasonCredentials: true, ReasonNodeTaken: true,
	ReasonHostTaken: true, ReasonBlocked: true, ReasonOtherMachine: true,
}

// eventsOf returns the events of a change of a Host's status: the host becomes managed, it is
// quarantined or cannot be managed, and its link goes and comes. A reason whose message changes has
// no new event, except for another machine, which is another refusal.
func eventsOf(was, is *v1alpha1.HostStatus) (events []event) {
	before, now := conditionOf(was.Conditions, v1alpha1.ConditionReady), conditionOf(is.Conditions, v1alpha1.ConditionReady)
	managed := func(c metav1.Condition) bool { return c.Status == metav1.ConditionTrue }
	switch {
	case warned[now.Reason] && (now.Reason != before.Reason || now.Reason == ReasonOtherMachine && now.Message != before.Message):
		events = append(events, event{v1.EventTypeWarning, now.Reason, now.Message})
	case managed(now) && !managed(before) && before.Reason != v1alpha1.ReasonLinkDown:
		events = append(events, event{v1.EventTypeNormal, reasonManaged, now.Message})
	}
	before, now = conditionOf(was.Conditions, v1alpha1.ConditionLinkUp), conditionOf(is.Conditions, v1alpha1.ConditionLinkUp)
	switch {
	case now.Status == metav1.ConditionFalse && before.Status != metav1.ConditionFalse:
		events = append(events, event{v1.EventTypeWarning, now.Reason, now.Message})
	case now.Status == metav1.ConditionTrue && before.Status == metav1.ConditionFalse:
		events = append(events, event{v1.EventTypeNormal, now.Reason, now.Message})
	}
	return events
}

// conditionOf returns a condition, or the zero value if there is none.
func conditionOf(conditions []metav1.Condition, kind string) metav1.Condition {
	if c := meta.FindStatusCondition(conditions, kind); c != nil {
		return *c
	}
	return metav1.Condition{}
}
