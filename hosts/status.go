package hosts

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/hint"
)

// Reasons of a Host's condition Ready. While the node is not Ready, the reason of the node's own
// Ready condition is used too.
const (
	ReasonNodeReady   = "NodeReady"   // True: managed, and the node is Ready
	ReasonLinkGrace   = "LinkGrace"   // True: the link is down, but linkGrace is not over
	ReasonStarting    = "Starting"    // to be managed, nothing known yet
	ReasonChanged     = "Changed"     // the Host was changed; the old driver is being stopped
	ReasonFailed      = "Failed"      // cannot be managed at the moment; retried
	ReasonInUse       = "InUse"       // another process, cluster or agent manages the host; retried
	ReasonQuarantined = "Quarantined" // it exceeded a budget; retried with a growing pause
	ReasonInvalid     = "Invalid"     // the Host object has a mistake
	ReasonCredentials = "Credentials" // the Secret is missing, or has no key
	ReasonNodeTaken   = "NodeTaken"   // the node's name belongs to a node that was not made of this Host
	ReasonHostTaken   = "HostTaken"   // another Host has this node name or this host
	ReasonDraining    = "Draining"    // deleted: pods are being evicted
	ReasonReleasing   = "Releasing"   // deleted: the host is being released
	ReasonDetaching   = "Detaching"   // deleted: the driver is being stopped
	ReasonBlocked     = "Blocked"     // deleted: a step is blocked; the message says what to do
)

// notReady is what the status says of a Host before its driver is asked.
type notReady struct {
	reason, message string // empty: the Host is managed, and its driver reports
}

func notReadyf(reason, format string, args ...any) *notReady {
	return &notReady{reason, fmt.Sprintf(format, args...)}
}

// longest message of a condition. The API server accepts 32768 bytes; a reader wants fewer.
const longest = 2000

// statusOf computes the status of h, except for the machine, which is recorded separately. wanted
// is the config that h is to be managed by, or nil if it is not. r is the last report on h; it may
// predate the last change of h.
func statusOf(h *v1alpha1.Host, v *notReady, wanted *config.Host, r *Report, now time.Time) *v1alpha1.HostStatus {
	st := &v1alpha1.HostStatus{ObservedGeneration: h.Generation, NodeName: h.Status.NodeName}
	for i := range h.Status.Conditions {
		st.Conditions = append(st.Conditions, *h.Status.Conditions[i].DeepCopy())
	}
	if r != nil {
		observed(st, h, r, now)
	}
	ready := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse}
	var other *OtherMachineError
	var inUse interface{ HostInUse() bool } // syncloop/owner.RefusedError
	switch {
	case v != nil:
		ready.Reason, ready.Message = v.reason, v.message
	case r == nil:
		ready.Reason, ready.Message = ReasonStarting, "acquiring the host"
	case wanted == nil || !equality.Semantic.DeepEqual(r.Config, wanted):
		ready.Reason, ready.Message = ReasonChanged, "the Host was changed: restarting its driver; the containers on the host keep running"
	case !r.Quarantined.IsZero():
		ready.Reason = ReasonQuarantined
		ready.Message = fmt.Sprintf("the host is quarantined until %s: %s", r.Quarantined.UTC().Format(time.RFC3339), hint.Text(r.Err))
	case errors.As(r.Err, &other):
		ready.Reason, ready.Message = ReasonOtherMachine, hint.Text(r.Err)
	case errors.As(r.Err, &inUse) && inUse.HostInUse():
		ready.Reason, ready.Message = ReasonInUse, hint.Text(r.Err)
	case r.Err != nil:
		ready.Reason, ready.Message = ReasonFailed, hint.Text(r.Err)
	case r.NodeName == "":
		ready.Reason, ready.Message = ReasonStarting, "acquiring the host"
	case !r.Ready:
		ready.Reason, ready.Message = r.Reason, r.Message
	case r.Link != nil && !r.Link.Up:
		ready.Status, ready.Reason = metav1.ConditionTrue, ReasonLinkGrace
		ready.Message = "the link is down; the node becomes NotReady after linkGrace: " + r.Link.Message
	default:
		ready.Status, ready.Reason, ready.Message = metav1.ConditionTrue, ReasonNodeReady, "the node "+r.NodeName+" is Ready"
	}
	if ready.Reason == "" {
		ready.Reason = "NotReady"
	}
	set(st, ready, h.Generation, now)
	return st
}

// observed adds what the driver has reported. Until it reports a value, the status keeps the value
// of the driver before it, except for conditions that hold only for the moment.
func observed(st *v1alpha1.HostStatus, h *v1alpha1.Host, r *Report, now time.Time) {
	if r.Err != nil {
		st.LastError = short(hint.Text(r.Err))
	}
	st.Runtime = h.Status.Runtime
	if r.RuntimeName != "" {
		st.Runtime = &v1alpha1.RuntimeStatus{Name: r.RuntimeName, Version: r.RuntimeVersion}
	}
	if r.NodeName == "" {
		meta.RemoveStatusCondition(&st.Conditions, v1alpha1.ConditionLinkUp)
		meta.RemoveStatusCondition(&st.Conditions, v1alpha1.ConditionKubeletExposed)
		return
	}
	st.NodeName = r.NodeName
	if r.Exposed == nil {
		meta.RemoveStatusCondition(&st.Conditions, v1alpha1.ConditionKubeletExposed)
	} else {
		set(st, metav1.Condition{Type: v1alpha1.ConditionKubeletExposed, Status: r.Exposed.Status, Reason: r.Exposed.Reason, Message: r.Exposed.Message}, h.Generation, now)
	}
	pods := int32(r.Pods)
	st.Pods = &pods
	if r.Link == nil {
		st.Link = &v1alpha1.LinkStatus{State: v1alpha1.LinkLocal}
		meta.RemoveStatusCondition(&st.Conditions, v1alpha1.ConditionLinkUp)
		return
	}
	before := ""
	if h.Status.Link != nil {
		before = h.Status.Link.RoundTrip
	}
	up := metav1.Condition{Type: v1alpha1.ConditionLinkUp, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonLinkUp, Message: r.Link.Message}
	if r.Link.Up {
		st.Link = &v1alpha1.LinkStatus{State: v1alpha1.LinkUp, RoundTrip: coarse(before, r.Link.RTT)}
	} else {
		st.Link = &v1alpha1.LinkStatus{State: v1alpha1.LinkDown}
		up.Status, up.Reason = metav1.ConditionFalse, v1alpha1.ReasonLinkDown
	}
	set(st, up, h.Generation, now)
}

func set(st *v1alpha1.HostStatus, c metav1.Condition, generation int64, now time.Time) {
	c.ObservedGeneration, c.LastTransitionTime, c.Message = generation, metav1.NewTime(now.Truncate(time.Second)), short(c.Message)
	meta.SetStatusCondition(&st.Conditions, c)
}

func short(message string) string {
	message = strings.ToValidUTF8(message, "?")
	if len(message) <= longest {
		return message
	}
	return strings.ToValidUTF8(message[:longest], "") + "…"
}

// difference reports whether want differs from have, and whether the change is minor and can wait:
// nothing acts on a round-trip time or on a number of pods.
func difference(have, want *v1alpha1.HostStatus) (differs, minor bool) {
	if equality.Semantic.DeepEqual(have, want) {
		return false, false
	}
	rest := want.DeepCopy()
	rest.Pods = have.Pods
	if rest.Link != nil && have.Link != nil {
		rest.Link.RoundTrip = have.Link.RoundTrip
	}
	return true, equality.Semantic.DeepEqual(have, rest)
}
