package readiness

import (
	"errors"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/host/budget"
)

// TestQuarantined: the reason names the budget, and a host that another process may manage stays
// Ready.
func TestQuarantined(t *testing.T) {
	exceeded := budget.New(budget.Limits{}).Exceed(budget.ReplyBytes, "the reply to ListPodSandbox")
	for _, c := range []struct {
		cause     error
		unmanaged bool
		reason    string
	}{
		{exceeded, true, "BudgetReplyBytes"},
		{exceeded, false, "BudgetReplyBytes"},
		{errors.New("another cause"), true, ReasonQuarantined},
	} {
		got := Quarantined(c.cause, c.unmanaged)
		if len(got) == 0 || got[0].Type != HostQuarantined || got[0].Status != v1.ConditionTrue || got[0].Reason != c.reason || !strings.Contains(got[0].Message, c.cause.Error()) {
			t.Errorf("%v: %+v", c.cause, got)
			continue
		}
		switch ready := got[1:]; {
		case !c.unmanaged && len(ready) > 0:
			t.Errorf("another process may manage it, and it gets %+v", ready)
		case c.unmanaged && (len(ready) != 1 || ready[0].Type != v1.NodeReady || ready[0].Status != v1.ConditionFalse || ready[0].Reason != ReasonQuarantined):
			t.Errorf("%v: Ready is %+v", c.cause, ready)
		}
	}
}

// TestQuarantineEnded: a node that was never quarantined does not get the condition.
func TestQuarantineEnded(t *testing.T) {
	n := &v1.Node{}
	for _, status := range []v1.ConditionStatus{"", v1.ConditionFalse, v1.ConditionTrue} {
		if status != "" {
			n.Status.Conditions = []v1.NodeCondition{{Type: HostQuarantined, Status: status}}
		}
		c, ended := QuarantineEnded(n)
		if ended != (status == v1.ConditionTrue) || ended && (c.Type != HostQuarantined || c.Status != v1.ConditionFalse) {
			t.Errorf("%q: %v, %+v", status, ended, c)
		}
	}
}
