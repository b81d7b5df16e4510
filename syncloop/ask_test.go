package syncloop

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/syncloop/allocation"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

// TestAsk: a worker decides on the answer for its newest pod. One that ends does not wait for it: a
// pod that is updated all the time could not be deleted.
func TestAsk(t *testing.T) {
	update := func() *v1.Pod { return &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "uid"}} }
	w := &worker{loop: &Loop{allocation: allocation.New(allocation.Config{})}, api: update()}
	if w.ask() {
		t.Error("before the first answer")
	}
	w.answered(&allocation.Answer{Version: 1, Pod: w.api, Decided: true, Allocated: "{}"}, time.Now())
	if !w.ask() {
		t.Error("with its answer")
	}
	w.api = update()
	if w.ask() {
		t.Error("with the answer for an older pod")
	}
	w.term = &plan.Terminate{}
	if !w.ask() {
		t.Error("a pod that ends waits for an answer")
	}
}
