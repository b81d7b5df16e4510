package hosts

import (
	"reflect"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
)

func TestEventsOfAStatus(t *testing.T) {
	ready := func(status metav1.ConditionStatus, reason, message string) metav1.Condition {
		return metav1.Condition{Type: v1alpha1.ConditionReady, Status: status, Reason: reason, Message: message}
	}
	link := func(up bool) metav1.Condition {
		if up {
			return metav1.Condition{Type: v1alpha1.ConditionLinkUp, Status: metav1.ConditionTrue, Reason: "LinkUp", Message: "connected"}
		}
		return metav1.Condition{Type: v1alpha1.ConditionLinkUp, Status: metav1.ConditionFalse, Reason: "LinkDown", Message: "no route to host"}
	}
	type conditions = []metav1.Condition
	fine := ready(metav1.ConditionTrue, ReasonNodeReady, "the node box is Ready")
	starting := ready(metav1.ConditionFalse, ReasonStarting, "acquiring the host")
	for name, c := range map[string]struct {
		was, is conditions
		want    []event
	}{
		"new":                        {nil, conditions{starting}, nil},
		"managed":                    {conditions{starting}, conditions{fine, link(true)}, []event{{"Normal", "Managed", "the node box is Ready"}}},
		"still managed":              {conditions{fine, link(true)}, conditions{fine, link(true)}, nil},
		"the link goes":              {conditions{fine, link(true)}, conditions{ready(metav1.ConditionTrue, ReasonLinkGrace, "m"), link(false)}, []event{{"Warning", "LinkDown", "no route to host"}}},
		"the grace is over":          {conditions{ready(metav1.ConditionTrue, ReasonLinkGrace, "m"), link(false)}, conditions{ready(metav1.ConditionFalse, "LinkDown", "m"), link(false)}, nil},
		"the link comes":             {conditions{ready(metav1.ConditionFalse, "LinkDown", "m"), link(false)}, conditions{fine, link(true)}, []event{{"Normal", "LinkUp", "connected"}}},
		"quarantined":                {conditions{fine, link(true)}, conditions{ready(metav1.ConditionFalse, ReasonQuarantined, "a budget")}, []event{{"Warning", "Quarantined", "a budget"}}},
		"quarantined for longer":     {conditions{ready(metav1.ConditionFalse, ReasonQuarantined, "a")}, conditions{ready(metav1.ConditionFalse, ReasonQuarantined, "b")}, nil},
		"another machine":            {conditions{starting}, conditions{ready(metav1.ConditionFalse, ReasonOtherMachine, "a")}, []event{{"Warning", "OtherMachine", "a"}}},
		"the same other machine":     {conditions{ready(metav1.ConditionFalse, ReasonOtherMachine, "a")}, conditions{ready(metav1.ConditionFalse, ReasonOtherMachine, "a")}, nil},
		"yet another machine":        {conditions{ready(metav1.ConditionFalse, ReasonOtherMachine, "a")}, conditions{ready(metav1.ConditionFalse, ReasonOtherMachine, "b")}, []event{{"Warning", "OtherMachine", "b"}}},
		"lost to another process":    {conditions{fine}, conditions{ready(metav1.ConditionFalse, ReasonFailed, "another Bowline has the lock")}, []event{{"Warning", "Failed", "another Bowline has the lock"}}},
		"of another process":         {conditions{starting}, conditions{ready(metav1.ConditionFalse, ReasonInUse, "another Bowline")}, []event{{"Warning", "InUse", "another Bowline"}}},
		"in use after a failure":     {conditions{ready(metav1.ConditionFalse, ReasonFailed, "no route")}, conditions{ready(metav1.ConditionFalse, ReasonInUse, "another Bowline")}, []event{{"Warning", "InUse", "another Bowline"}}},
		"deleted":                    {conditions{fine}, conditions{ready(metav1.ConditionFalse, ReasonDraining, "no new pods")}, []event{{"Normal", "Draining", "no new pods"}}},
		"deleted, next message":      {conditions{ready(metav1.ConditionFalse, ReasonDraining, "no new pods")}, conditions{ready(metav1.ConditionFalse, ReasonDraining, "2 pods")}, nil},
		"a node that is not ready":   {conditions{fine}, conditions{ready(metav1.ConditionFalse, "KubeletNotReady", "m")}, nil},
		"deleted, and it is blocked": {conditions{ready(metav1.ConditionFalse, ReasonDraining, "m")}, conditions{ready(metav1.ConditionFalse, ReasonBlocked, "b")}, []event{{"Warning", "Blocked", "b"}}},
	} {
		got := eventsOf(&v1alpha1.HostStatus{Conditions: c.was}, &v1alpha1.HostStatus{Conditions: c.is})
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
