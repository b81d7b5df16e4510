package node

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubernetesfake "k8s.io/client-go/kubernetes/fake"

	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/provider"
	"github.com/bowline-k8s/bowline/readiness"
)

func TestQuarantineIsShown(t *testing.T) {
	own := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "box", Annotations: map[string]string{provider.AnnotationDriver: "bowline"}},
		Status: v1.NodeStatus{NodeInfo: v1.NodeSystemInfo{KubeletVersion: "v1"}, Conditions: []v1.NodeCondition{
			{Type: v1.NodeMemoryPressure, Status: v1.ConditionFalse}, {Type: v1.NodeReady, Status: v1.ConditionTrue}}},
	}
	cause := budget.New(budget.Limits{}).Exceed(budget.ReplyBytes, "the reply to ListPodSandbox")
	client := kubernetesfake.NewClientset(own)
	testutil.Must(t, showQuarantine(t.Context(), client, "box", cause))
	node, err := client.CoreV1().Nodes().Get(t.Context(), "box", metav1.GetOptions{})
	testutil.Must(t, err)
	got := map[v1.NodeConditionType]v1.NodeCondition{}
	for _, c := range node.Status.Conditions {
		got[c.Type] = c
	}
	if c := got[readiness.HostQuarantined]; c.Status != v1.ConditionTrue || c.Reason != "BudgetReplyBytes" || !strings.Contains(c.Message, "the reply to ListPodSandbox") {
		t.Errorf("the condition is %+v", c)
	}
	if c := got[v1.NodeReady]; c.Status != v1.ConditionFalse || c.Reason != readiness.ReasonQuarantined || len(got) != 3 {
		t.Errorf("the conditions are %+v", got)
	}
	events, err := client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(events.Items) != 1 || events.Items[0].Reason != readiness.ReasonQuarantined || events.Items[0].Type != v1.EventTypeWarning {
		t.Errorf("the events are %+v, %v", events, err)
	}

	// Not on another agent's Node, and not without a Node.
	other := own.DeepCopy()
	other.Annotations = nil
	client = kubernetesfake.NewClientset(other)
	if err := showQuarantine(t.Context(), client, "box", cause); err == nil {
		t.Error("another agent's node was written")
	}
	for _, a := range client.Actions() {
		if a.GetVerb() != "get" {
			t.Errorf("%s of %s", a.GetVerb(), a.GetResource().Resource)
		}
	}
	if err := showQuarantine(t.Context(), kubernetesfake.NewClientset(), "box", cause); err != nil {
		t.Error(err)
	}
}
