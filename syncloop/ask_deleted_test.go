package syncloop

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/syncloop/allocation"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

// TestDeletedBeforeTheAnswer: a pod that ends does not wait for the allocation manager, and its last
// decision may be made before the manager has answered on the deleted pod. It must see the deletion
// all the same: without it, nothing deletes the API object.
func TestDeletedBeforeTheAnswer(t *testing.T) {
	now, grace := metav1.Now(), int64(5)
	old := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u"}}
	deleted := old.DeepCopy()
	deleted.DeletionTimestamp, deleted.DeletionGracePeriodSeconds = &now, &grace
	w := &worker{api: deleted, pod: old, term: &plan.Terminate{Cause: plan.CauseDeleted},
		answer: allocation.Answer{Version: 1, Pod: old, Decided: true, Allocated: "{}"}}
	w.asked.pod, w.asked.version = deleted, 2
	if !w.ask() {
		t.Fatal("a pod that ends waits for its allocation")
	}
	if w.pod.DeletionTimestamp == nil || *w.pod.DeletionGracePeriodSeconds != grace {
		t.Errorf("the worker's pod does not show the deletion: %+v", w.pod.ObjectMeta)
	}
	if old.DeletionTimestamp != nil {
		t.Error("the manager's pod was changed")
	}
}
