package hosts

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/flap"
)

// event is an event on a Host.
type event struct{ kind, reason, message string }

// Reasons of events that are not those of a condition: the host becomes managed, and the Host is gone.
const (
	reasonManaged  = "Managed"
	reasonReleased = "Released"
	reasonDetached = "Detached"
)

// Messages of the events on Hosts and on Nodes about the lock of a host.
const (
	LockLost       = "lost the lock of the host: nothing changes on it until the lock is held again"
	LockReacquired = "the lock of the host is held again"
)

// eventReasons are the reasons of the condition Ready that have an event of the same name each time that they
// begin, with its type. Other reasons are ordinary, or follow from these.
var eventReasons = map[string]string{
	ReasonQuarantined: v1.EventTypeWarning, ReasonFailed: v1.EventTypeWarning, ReasonInUse: v1.EventTypeWarning,
	ReasonInvalid: v1.EventTypeWarning, ReasonCredentials: v1.EventTypeWarning, ReasonNodeTaken: v1.EventTypeWarning,
	ReasonHostTaken: v1.EventTypeWarning, ReasonBlocked: v1.EventTypeWarning, ReasonOtherMachine: v1.EventTypeWarning,
	ReasonDraining: v1.EventTypeNormal, ReasonReleasing: v1.EventTypeNormal, ReasonDetaching: v1.EventTypeNormal,
}

// eventsOf returns the events of a change of a Host's status: the host becomes managed, it is
// quarantined or cannot be managed, it is released, and its link goes and comes. A reason whose message
// changes has no new event, except for another machine, which is another refusal.
func eventsOf(was, is *v1alpha1.HostStatus) (events []event) {
	before, now := conditionOf(was.Conditions, v1alpha1.ConditionReady), conditionOf(is.Conditions, v1alpha1.ConditionReady)
	managed := func(c metav1.Condition) bool { return c.Status == metav1.ConditionTrue }
	switch {
	case eventReasons[now.Reason] != "" && (now.Reason != before.Reason || now.Reason == ReasonOtherMachine && now.Message != before.Message):
		events = append(events, event{eventReasons[now.Reason], now.Reason, now.Message})
	case managed(now) && !managed(before) && before.Reason != v1alpha1.ReasonLinkDown:
		events = append(events, event{v1.EventTypeNormal, reasonManaged, now.Message})
	}
	before, now = conditionOf(was.Conditions, v1alpha1.ConditionLinkUp), conditionOf(is.Conditions, v1alpha1.ConditionLinkUp)
	switch {
	case now.Status == metav1.ConditionFalse && before.Status != metav1.ConditionFalse:
		events = append(events, event{v1.EventTypeWarning, v1alpha1.ReasonLinkDown, now.Message})
	case now.Status == metav1.ConditionTrue && before.Status == metav1.ConditionFalse:
		events = append(events, event{v1.EventTypeNormal, v1alpha1.ReasonLinkUp, now.Message})
	}
	return events
}

// lockEvent returns the event of a change between two reports of a driver; nil if there is none.
func lockEvent(was, is *Report) *event {
	switch {
	case was == nil || is == nil || was.Unlocked == is.Unlocked:
		return nil
	case is.Unlocked:
		return &event{v1.EventTypeWarning, v1alpha1.ReasonLockLost, LockLost}
	case is.NodeName == "": // the driver has ended
		return nil
	}
	return &event{v1.EventTypeNormal, v1alpha1.ReasonLockReacquired, LockReacquired}
}

// goes are the reasons of events by which something comes back, with those by which it had gone.
var goes = map[string]string{v1alpha1.ReasonLinkUp: v1alpha1.ReasonLinkDown, v1alpha1.ReasonLockReacquired: v1alpha1.ReasonLockLost}

// bounds bound the events of one Host, by reason.
type bounds map[string]*flap.Bound

// allows reports whether to write an event, and counts it.
func (b bounds) allows(e event, now time.Time) bool {
	if gone, back := goes[e.reason]; back {
		return b[gone] == nil || b[gone].Back() // an earlier process may have recorded it
	}
	if b[e.reason] == nil {
		b[e.reason] = &flap.Bound{}
	}
	return b[e.reason].Gone(now)
}

// conditionOf returns a condition, or the zero value if there is none.
func conditionOf(conditions []metav1.Condition, kind string) metav1.Condition {
	if c := meta.FindStatusCondition(conditions, kind); c != nil {
		return *c
	}
	return metav1.Condition{}
}
