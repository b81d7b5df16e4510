package provider

import (
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
)

// TestOwnPastIsNotCorrected: the watch shows a report of ours late, after the next change. Only what
// another client wrote is corrected.
func TestOwnPastIsNotCorrected(t *testing.T) {
	pressed := Condition{v1.NodeMemoryPressure, v1.ConditionTrue, "KubeletHasInsufficientMemory", "low"}
	extra := Condition{"LifelineUp", v1.ConditionTrue, "Connected", "connected"}
	for name, c := range map[string]struct {
		change Condition // of ours, after the version that the watch then shows
		edit   func(*v1.Node)
		want   int // reports after the one of the change
	}{
		"an older value":              {change: pressed},
		"before a condition of ours":  {change: extra},
		"the node controller's value": {change: pressed, edit: func(n *v1.Node) { n.Status.Conditions[0].Status = v1.ConditionUnknown }, want: 1},
		"another condition":           {change: pressed, edit: func(n *v1.Node) { n.Status.Conditions[1].Message = "by hand" }, want: 1},
		"a condition that is lost":    {change: pressed, edit: func(n *v1.Node) { n.Status.Conditions = n.Status.Conditions[1:] }, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newNodeStatus(Config{RepairInterval: 10 * time.Second})
				reports := 0
				s.NotifyNodeStatus(t.Context(), func(*v1.Node) { reports++ })
				shown := s.node(time.Now(), true)
				s.setCondition(c.change)
				synctest.Wait()
				if reports != 1 {
					t.Fatalf("%d reports of the change", reports)
				}
				if c.edit != nil {
					c.edit(shown)
				}
				s.observe(shown)
				time.Sleep(time.Minute)
				synctest.Wait()
				if reports-1 != c.want {
					t.Errorf("%d reports of what the watch showed, want %d", reports-1, c.want)
				}
			})
		})
	}
}
