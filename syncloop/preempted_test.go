package syncloop

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

// A pod that an earlier process started may be preempted before it has a worker, which then learns
// it. A pod that is not preempted is left alone.
func TestPreemptedBeforeItHasAWorker(t *testing.T) {
	l := &Loop{}
	l.admission.verdicts = map[types.UID]*verdict{}
	now := time.Unix(1000, 0)
	for name, preempted := range map[string]bool{"gives-way": true, "stays": false} {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
		if preempted {
			l.admission.preempt(p, now)
		}
		w := newWorker(l, pod.Ref{Name: name, UID: p.UID}, false)
		w.pod = p
		in := plan.Input{Now: now, Observed: pod.Observed{Seq: 1, Sandboxes: []pod.Sandbox{{ID: "s", Ready: true}}}}
		if w.admit(t.Context(), &in) {
			t.Errorf("%s waits", name)
		}
		if got := in.Terminate != nil && in.Terminate.Reason == reasonPreempting; got != preempted {
			t.Errorf("%s ends: %v", name, in.Terminate)
		}
	}
}
