package syncloop

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/syncloop/admit"
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

// TestAllocated: a pod has an allocation for others to see once it is admitted, and never if it is
// rejected.
func TestAllocated(t *testing.T) {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "uid"}}
	for name, c := range map[string]struct {
		answer allocation.Answer
		want   bool
	}{
		"admitted":        {allocation.Answer{Decided: true, Allocated: "{}"}, true},
		"not decided yet": {allocation.Answer{Allocated: "{}"}, false},
		"not known yet":   {allocation.Answer{Decided: true}, false},
		"rejected":        {allocation.Answer{Decided: true, Allocated: "{}", Rejection: &admit.Rejection{}}, false},
	} {
		l := &Loop{allocation: allocation.New(allocation.Config{}), workers: map[types.UID]*worker{}}
		w := &worker{loop: l, api: p}
		l.workers["uid"] = w
		w.ask()
		c.answer.Version, c.answer.Pod = 1, p
		w.answered(&c.answer, time.Now())
		if got := l.allocated("uid"); (got == p) != c.want {
			t.Errorf("%s: %v", name, got)
		}
		if l.allocated("another") != nil {
			t.Error("a pod without a worker")
		}
	}
}
