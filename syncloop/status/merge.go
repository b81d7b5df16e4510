package status

import (
	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// Merge applies ours, made by Generate, to api, which the API server holds. Conditions and fields
// of other components stay as they are in api, a terminal phase is never left, and a terminal pod
// is never Ready.
func Merge(api, ours v1.PodStatus) v1.PodStatus {
	out := *ours.DeepCopy()
	out.Conditions = nil
	for _, c := range api.Conditions {
		if !owned(c.Type) {
			out.Conditions = append(out.Conditions, c)
		}
	}
	for _, c := range ours.Conditions {
		switch {
		case owned(c.Type):
			out.Conditions = append(out.Conditions, c)
		case c.Type == v1.DisruptionTarget && c.Reason == v1.PodReasonTerminationByKubelet:
			set(&out.Conditions, c)
		}
	}
	// Our copy must not restore fields that another component has removed.
	out.VolumeHealth = nil
	keepUnowned(&out, api.DeepCopy())
	out.ObservedGeneration = max(out.ObservedGeneration, api.ObservedGeneration)
	if api.QOSClass != "" {
		out.QOSClass = api.QOSClass // immutable
	}
	if !api.StartTime.IsZero() {
		out.StartTime = api.StartTime
	}
	if pod.Terminal(api.Phase) && out.Phase != api.Phase {
		out.Phase, out.Reason, out.Message = api.Phase, api.Reason, api.Message
	}
	if pod.Terminal(out.Phase) {
		for _, t := range []v1.PodConditionType{v1.ContainersReady, v1.PodReady} {
			c := condition(out.Conditions, t)
			if c == nil || c.Status != v1.ConditionTrue {
				continue
			}
			c.Status, c.Reason, c.Message = v1.ConditionFalse, reasonPodFailed, ""
			if out.Phase == v1.PodSucceeded {
				c.Reason = reasonPodCompleted
			}
		}
	}
	return out
}
