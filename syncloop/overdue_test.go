package syncloop

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

// TestRecordOverdue: only a pod that the node ends by itself is overdue, after one and a half times its
// grace period, and not before ten seconds.
func TestRecordOverdue(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		term  *plan.Terminate
		phase pod.Phase
		due   time.Duration // 0: never
	}{
		"runs":      {nil, pod.Syncing, 0},
		"evicted":   {&plan.Terminate{At: at, Grace: 20 * time.Second, Cause: plan.CauseEvicted, Reason: "Evicted"}, pod.Terminating, 30 * time.Second},
		"killed":    {&plan.Terminate{At: at, Cause: plan.CauseEvicted, Reason: "Evicted"}, pod.Terminating, 10 * time.Second},
		"shutdown":  {&plan.Terminate{At: at, Grace: 8 * time.Second, Cause: plan.CauseShutdown}, pod.Terminating, 12 * time.Second},
		"preempted": {&plan.Terminate{At: at, Cause: plan.CauseEvicted, Reason: "Preempting"}, pod.Terminating, 0},
		"deleted":   {&plan.Terminate{At: at, Cause: plan.CauseDeleted}, pod.Terminating, 0},
		"ended":     {&plan.Terminate{At: at, Cause: plan.CauseEvicted, Reason: "Evicted"}, pod.Terminated, 0},
	} {
		recorder := record.NewFakeRecorder(10)
		w := &worker{loop: &Loop{cfg: Config{Recorder: recorder}}, pod: &v1.Pod{}, term: c.term, phase: c.phase}
		want := time.Time{}
		if c.due > 0 {
			want = at.Add(c.due)
		}
		if got := w.recordOverdue(at.Add(max(c.due, time.Second) - time.Millisecond)); !got.Equal(want) || len(recorder.Events) > 0 {
			t.Errorf("%s: due %v, want %v, with %d events", name, got, want, len(recorder.Events))
		}
		for range 2 {
			if got := w.recordOverdue(at.Add(max(c.due, time.Hour))); !got.IsZero() {
				t.Errorf("%s: due %v when it is late", name, got)
			}
		}
		if n := len(recorder.Events); (n == 1) != (c.due > 0) || n > 1 {
			t.Errorf("%s: %d events", name, n)
		}
	}
}
