package provider

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestStandbyAfterLosingTheHost: two processes have the node. The one that lost the machine and
// sees the other's instance reports nothing, whatever it believes of the node. When it gets the
// machine back, it reports again.
func TestStandbyAfterLosingTheHost(t *testing.T) {
	client := fake.NewSimpleClientset()
	var manages atomic.Bool
	manages.Store(true)
	n, err := New(Config{Client: client, LeaseClient: client, Recorder: record.NewFakeRecorder(100), Pods: testPods(t, client), Source: &loop{}, Loop: &loop{}, Held: &loop{},
		Registration: Registration{NodeName: "n1"}, Info: NodeInfo{Facts: facts()},
		Instance: "first", HoldsHost: manages.Load, RepairInterval: 10 * time.Millisecond, LeaseDuration: time.Hour})
	testutil.Must(t, err)
	stop := testutil.Go(t.Context(), n.Run)
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	nodes := client.CoreV1().Nodes()
	get := func() *v1.Node {
		t.Helper()
		node, err := nodes.Get(t.Context(), "n1", metav1.GetOptions{})
		testutil.Must(t, err)
		return node
	}
	testutil.Eventually(t, "a registered node", func() bool {
		node, err := nodes.Get(t.Context(), "n1", metav1.GetOptions{})
		return err == nil && node.Annotations[AnnotationInstance] == "first"
	})

	manages.Store(false)
	theirs := get()
	theirs.Annotations[AnnotationInstance] = "second"
	theirs.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "second's"}}
	if _, err := nodes.UpdateStatus(t.Context(), theirs, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, "silence", n.Standby)
	calls := len(client.Actions())
	// Each report begins with a Get: at the second one, the first is complete.
	for report := 1; report <= 2; report++ {
		n.SetReady(false, "LinkDown", fmt.Sprint("what it believes ", report))
		testutil.Eventually(t, "a report", func() bool {
			reads := 0
			for _, a := range client.Actions()[calls:] {
				if a.GetVerb() == "get" && a.GetResource().Resource == "nodes" {
					reads++
				}
			}
			return reads >= report
		})
	}
	leases := leaseClient{client.CoordinationV1().Leases(v1.NamespaceNodeLease), n.leaseLog, &n.standby}
	if _, err := leases.Update(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.UpdateOptions{}); err != nil {
		t.Error(err)
	}
	for _, a := range client.Actions()[calls:] {
		if verb := a.GetVerb(); verb == "patch" || verb == "update" || verb == "create" {
			t.Errorf("%s of %s", verb, a.GetResource().Resource)
		}
	}
	if c := get().Status.Conditions[0]; c.Reason != "second's" {
		t.Errorf("condition %+v", c)
	}

	manages.Store(true)
	n.Resume()
	testutil.Eventually(t, "its own words", func() bool {
		node := get()
		for _, c := range node.Status.Conditions {
			if c.Type == v1.NodeReady && strings.Contains(c.Message, "what it believes") {
				return node.Annotations[AnnotationInstance] == "first"
			}
		}
		return false
	})
}
