package provider

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/bowline-k8s/bowline/internal/testutil"
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

// TestPastThatComesBackIsCorrected: when the watch has shown a change, a client that writes the value
// before it is corrected.
func TestPastThatComesBackIsCorrected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newNodeStatus(Config{RepairInterval: 10 * time.Second})
		reports := 0
		s.NotifyNodeStatus(t.Context(), func(*v1.Node) { reports++ })
		before := s.node(time.Now(), true)
		s.setCondition(Condition{v1.NodeReady, v1.ConditionTrue, "KubeletReady", "ready"})
		synctest.Wait()
		s.observe(s.node(time.Now(), true))
		s.observe(before)
		time.Sleep(time.Minute)
		synctest.Wait()
		if reports != 2 {
			t.Errorf("%d reports, want one of the change and one of the correction", reports)
		}
	})
}

// TestFailedReportIsRetried: a report that the API server refused a few times is written within the repair
// interval, not with the next regular report.
func TestFailedReportIsRetried(t *testing.T) {
	client := fake.NewSimpleClientset()
	var refusals atomic.Int32 // that are left
	client.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return refusals.Add(-1) >= 0, nil, apierrors.NewInternalError(errors.New("no leader"))
	})
	n, _ := newTestNode(t, client, &loop{})
	<-n.Registered()
	refusals.Store(5)
	n.SetReady(true, "", "")
	testutil.Eventually(t, "Ready after refused reports", func() bool {
		node, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
		return err == nil && slices.ContainsFunc(node.Status.Conditions, func(c v1.NodeCondition) bool {
			return c.Type == v1.NodeReady && c.Status == v1.ConditionTrue
		})
	})
}
